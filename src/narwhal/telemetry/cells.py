"""Counted values, as cheap as Python makes them, and their way to a Prometheus registry.

prometheus_client's own counters take a lock for each increment, 0.3 to 0.7 us of it, and a
request makes thirty of them: a twentieth of its time in the router. One task at a time counts
here, so a cell is a number. The library still does all of the exposition.
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate
from math import inf
from typing import TYPE_CHECKING

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.utils import floatToGoString

from narwhal.telemetry.catalogue import CATALOGUE, buckets
from narwhal.telemetry.kinds import Kind, Scale

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from prometheus_client import Metric as Family

    from narwhal.telemetry.catalogue import Metric


class Cell:
    """One series of a counter or gauge."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0.0

    def inc(self, amount: float = 1.0) -> None:
        """Count `amount` more."""
        self.value += amount

    def set(self, value: float) -> None:
        """Make it `value`; for gauges."""
        self.value = value


class HistogramCell:
    """One series of a histogram: counts of values up to each edge, and their sum."""

    __slots__ = ("_edges", "counts", "total")

    def __init__(self, edges: Sequence[float]) -> None:
        self._edges = tuple(edge for edge in edges if edge != inf)
        self.counts = [0] * (len(self._edges) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        """Count a value, in the unit of the metric."""
        self.counts[bisect_left(self._edges, value)] += 1
        self.total += value

    @property
    def count(self) -> int:
        """Values observed."""
        return sum(self.counts)

    def buckets(self) -> list[tuple[str, float]]:
        """Each edge as text, with the number of values up to it."""
        edges = [str(floatToGoString(edge)) for edge in (*self._edges, inf)]  # type: ignore[no-untyped-call]  # the library has no types here
        return list(zip(edges, accumulate(self.counts), strict=True))


class Cells:
    """The cells of every counted metric of the catalogue, and the collector that shows them.

    All series exist from the start, so their number never changes.
    """

    def __init__(
        self, open_labels: Mapping[str, Sequence[str]], *, ttft_s: float, tpot_s: float
    ) -> None:
        self._metrics = [metric for metric in CATALOGUE if not metric.scraped]
        self._cells: dict[str, dict[tuple[str, ...], Cell]] = {}
        self._histograms: dict[str, dict[tuple[str, ...], HistogramCell]] = {}
        for metric in self._metrics:
            if metric.kind is Kind.HISTOGRAM:
                edges = buckets(metric.scale or Scale.REQUEST, ttft_s=ttft_s, tpot_s=tpot_s)
                self._histograms[metric.name] = {
                    key: HistogramCell(edges) for key in metric.series(open_labels)
                }
            else:
                self._cells[metric.name] = {key: Cell() for key in metric.series(open_labels)}

    def cell(self, name: str, *labels: str) -> Cell:
        """The cell of a counter or gauge with these label values; KeyError if there is none."""
        return self._cells[name][labels]

    def histogram(self, name: str, *labels: str) -> HistogramCell:
        """The cell of a histogram with these label values; KeyError if there is none."""
        return self._histograms[name][labels]

    def counters(self) -> dict[str, dict[tuple[str, ...], float]]:
        """The counters that are kept and not zero, by name and label values."""
        found = {
            metric.name: {
                key: cell.value for key, cell in self._cells[metric.name].items() if cell.value
            }
            for metric in self._metrics
            if metric.kind is Kind.COUNTER and metric.kept
        }
        return {name: series for name, series in found.items() if series}

    def count_on(self, counters: Mapping[str, Mapping[tuple[str, ...], float]]) -> None:
        """Add to the counters; KeyError if there is no such series, and nothing is added then."""
        cells = [
            (self._cells[name][key], value)
            for name, series in counters.items()
            for key, value in series.items()
        ]
        for cell, value in cells:
            cell.inc(value)

    def describe(self) -> list[Family]:
        """Nothing: names are checked by the catalogue's own tests."""
        return []

    def collect(self) -> Iterator[Family]:
        """Make a family for each counted metric."""
        for metric in self._metrics:
            yield self._histogram(metric) if metric.kind is Kind.HISTOGRAM else self._plain(metric)

    def _plain(self, metric: Metric) -> Family:
        kind = CounterMetricFamily if metric.kind is Kind.COUNTER else GaugeMetricFamily
        labels = [label.name for label in metric.labels]
        family = kind(metric.full_name, metric.help, labels=labels)
        for key, cell in self._cells[metric.name].items():
            family.add_metric(key, cell.value)
        return family

    def _histogram(self, metric: Metric) -> Family:
        labels = [label.name for label in metric.labels]
        family = HistogramMetricFamily(metric.full_name, metric.help, labels=labels)
        for key, cell in self._histograms[metric.name].items():
            family.add_metric(key, cell.buckets(), cell.total)
        return family
