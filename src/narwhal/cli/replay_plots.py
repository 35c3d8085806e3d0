"""The plots of replays: what happened when, as panels of charts."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING

import attrs

from narwhal.cli.chart import COLOURS, Panel, Series
from narwhal.simulate.replay.figures import windows_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from narwhal.simulate.replay.figures import Share, Window
    from narwhal.simulate.replay.results import Result, Sample

    ShareOf = Callable[[Window], Share | None]

ALL = "all requests"
_MOST_KINDS = 5
"""With a panel of their own: six panels are two rows."""


@attrs.frozen
class Span:
    """The time that is drawn: its unit, its end, and how long a window is."""

    unit: str
    unit_s: float
    end_s: float
    width_s: float

    def at(self, seconds: float) -> float:
        """Where a moment lies."""
        return seconds / self.unit_s

    def panel(
        self, title: str, y_label: str, series: Sequence[Series], *, reaching: float = 0.0
    ) -> Panel:
        """With the same time axis for all panels, and room up to `reaching`."""
        return Panel(
            title=title,
            x_label=f"{self.unit} since the replay began",
            y_label=y_label,
            series=series,
            x_room=(0.0, self.at(self.end_s)),
            x_to_ticks=False,
            y_room=(reaching,),
        )

    def lines(
        self,
        name: str,
        values: Iterable[tuple[float, float | None]],
        *,
        dashed: bool = False,
        dots: bool = False,
    ) -> list[Series]:
        """A value for each window, by its beginning, as one line or, around gaps, several.

        A load without an engine to bear it is infinite, and a gap.
        """
        runs: list[list[tuple[float, float]]] = [[]]
        for at, value in values:
            if value is not None and math.isfinite(value):
                runs[-1].append((self.at(at + self.width_s / 2), value))
            elif runs[-1]:
                runs.append([])
        return [
            # A point that is alone would make no line.
            Series(name=name, points=run, dots=dots or len(run) == 1, dashed=dashed)
            for run in runs
            if run
        ]


def span_of(results: Sequence[Result], width_s: float) -> Span:
    """In the largest unit of which there are some, up to the end of the longest replay."""
    end = max((result.virtual_s for result in results), default=0.0)
    if end <= 600:  # noqa: PLR2004 - ten minutes
        return Span("seconds", 1.0, end, width_s)
    if end <= 10_800:  # noqa: PLR2004 - three hours
        return Span("minutes", 60.0, end, width_s)
    return Span("hours", 3600.0, end, width_s)


def overlay(
    results: Sequence[Result], kinds: Sequence[str], width_s: float, *, solid: Iterable[str]
) -> list[Panel]:
    """Attainment of every arm over time: of all requests, and of each kind if they are few.

    `solid` are the arms that are not dashed. The first arm lies on top of the others.
    """
    span, solid = span_of(results, width_s), frozenset(solid)
    windows = {result.arm: windows_of(result, width_s) for result in results}

    def panel(title: str, share: ShareOf) -> Panel:
        arms = [
            span.lines(
                arm, _percents(each, share), dashed=arm not in solid, dots=place >= len(COLOURS)
            )
            for place, (arm, each) in enumerate(windows.items())
        ]
        # Once for its colour, which goes by the order, and once to lie on top.
        series = [line for lines in [*arms, *arms[:1]] for line in lines]
        return span.panel(title, "% of the offered in time", series, reaching=100.0)

    panels = [panel(f"Attained: {ALL}", _of_all)]
    if 1 < len(kinds) <= _MOST_KINDS:
        panels += [panel(f"Attained: {kind}", partial(_of_kind, kind)) for kind in kinds]
    return panels


def request_panels(result: Result, width_s: float) -> list[Panel]:
    """What clients saw of one replay: attainment, arrivals and refusals over time."""
    span = span_of([result], width_s)
    windows = windows_of(result, width_s)
    return [_attained(windows, span), _offered(windows, span), _refusals(windows, span)]


def fleet_panels(result: Result, width_s: float) -> list[Panel]:
    """What the fleet did meanwhile: queue, roles, and loads where a controller measured them."""
    span = span_of([result], width_s)
    panels = [_queue(result.samples, span), _roles(result.samples, span)]
    loads = _loads(result.samples, span)
    return panels if loads is None else [*panels, loads]


# By windows of requests


def _attained(windows: Sequence[Window], span: Span) -> Panel:
    series = span.lines(ALL, _percents(windows, _of_all))
    for kind in _several(windows):
        series += span.lines(kind, _percents(windows, partial(_of_kind, kind)), dashed=True)
    return span.panel("Attainment", "% of the offered in time", series, reaching=100.0)


def _offered(windows: Sequence[Window], span: Span) -> Panel:
    series = span.lines(ALL, [(each.at, each.all.offered / span.width_s) for each in windows])
    for kind in _several(windows):
        shares = [(each.at, _of_kind(kind, each)) for each in windows]
        rates = [(at, share.offered / span.width_s if share else 0.0) for at, share in shares]
        series += span.lines(kind, rates, dashed=True)
    return span.panel("Arrivals", "requests/s", series)


def _refusals(windows: Sequence[Window], span: Span) -> Panel:
    series = []
    codes = _names(window.refused for window in windows)
    for code in codes:
        rates = [(each.at, each.refused.get(code, 0) / span.width_s) for each in windows]
        series += span.lines(code, rates)
    return span.panel("Refusals" if codes else "Refusals: none", "requests/s", series)


def _several(windows: Sequence[Window]) -> list[str]:
    """The kinds, if there is more than one: one alone is all requests."""
    kinds = _names(window.kinds for window in windows)
    return kinds if len(kinds) > 1 else []


def _percents(windows: Sequence[Window], share: ShareOf) -> list[tuple[float, float | None]]:
    found = [(window.at, share(window)) for window in windows]
    fractions = [(at, None if each is None else each.fraction) for at, each in found]
    return [(at, None if each is None else 100 * each) for at, each in fractions]


def _of_all(window: Window) -> Share:
    return window.all


def _of_kind(kind: str, window: Window) -> Share | None:
    return window.kinds.get(kind)


def _names(counts: Iterable[Iterable[str]]) -> list[str]:
    return sorted({name for each in counts for name in each})


# By samples of the fleet


def _queue(samples: Sequence[Sample], span: Span) -> Panel:
    most = _by_window([(each.at, each.queue) for each in samples], span, max)
    return span.panel("Queue", "most that waited", span.lines("waiting", most))


def _roles(samples: Sequence[Sample], span: Span) -> Panel:
    series = [
        _steps("prefill", [(each.at, each.prefill) for each in samples], span),
        _steps("decode", [(each.at, each.decode) for each in samples], span),
    ]
    return span.panel("Roles", "engines in service", series)


def _loads(samples: Sequence[Sample], span: Span) -> Panel | None:
    series = [
        *span.lines("prefill", _means([(each.at, each.prefill_load) for each in samples], span)),
        *span.lines("decode", _means([(each.at, each.decode_load) for each in samples], span)),
    ]
    if not series:
        return None
    ends = [(0.0, 1.0), (span.at(span.end_s), 1.0)]
    target = Series(name="target", points=ends, dots=False, dashed=True)
    return span.panel("Loads", "load over target", [*series, target])


def _means(
    values: Iterable[tuple[float, float | None]], span: Span
) -> list[tuple[float, float | None]]:
    known = [(at, value) for at, value in values if value is not None]
    return _by_window(known, span, lambda found: sum(found) / len(found))


def _by_window(
    values: Iterable[tuple[float, float]], span: Span, of: Callable[[list[float]], float]
) -> list[tuple[float, float | None]]:
    """A value for every window, None where there is none."""
    slots: dict[int, list[float]] = {}
    for at, value in values:
        slots.setdefault(int(at // span.width_s), []).append(value)
    return [
        (n * span.width_s, of(slots[n]) if n in slots else None)
        for n in range(max(slots, default=-1) + 1)
    ]


def _steps(name: str, values: Sequence[tuple[float, int]], span: Span) -> Series:
    """Where it changes, and the last moment: a level in between says nothing more."""
    kept = [
        value
        for n, value in enumerate(values)
        if n in (0, len(values) - 1) or value[1] != values[n - 1][1]
    ]
    points = [(span.at(at), count) for at, count in kept]
    return Series(name=name, points=points, dots=len(points) == 1, stepped=True)
