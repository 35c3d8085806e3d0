"""The metrics that are read at a scrape rather than counted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from narwhal.telemetry.catalogue import CATALOGUE, LEGS
from narwhal.telemetry.kinds import Kind, PoolSlot
from narwhal.telemetry.roles_view import roles_readings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from prometheus_client import Metric as Family

    from narwhal.telemetry.live import LiveState, Readings


def live_readings(live: LiveState) -> Readings:
    """Return what `live` says about the scraped metrics."""
    readings: Readings = {
        "ready": {(): float(live.ready)},
        "draining": {(): float(live.draining)},
        "admission_seats": {(): live.admission_seats},
        "admitted_requests": {(): live.admitted},
        "queue_capacity": {(): live.queue_capacity},
        "queue_depth": {(): live.waiting},
        "seats_waited_for": {(leg,): live.seats_waited_for.get(leg, 0) for leg in LEGS},
        "retained_requests": {(): live.retained},
        "retry_credits": {(): live.retry_credits},
        "kv_orphan_tokens": {(engine.iid,): engine.orphan_tokens for engine in live.engines},
        "prefill_backlog_seconds": {(e.iid,): e.backlog_s for e in live.engines},
        "kv_tokens": {(engine.iid,): engine.reserved_tokens for engine in live.engines},
        "engine_role": {(e.iid, e.role): 1.0 for e in live.engines},
        "seats": {},
        "seat_limit": {},
        "residents": {},
        "pace_ratio": {},
        "engine_state": {(e.iid, e.state): 1.0 for e in live.engines},
        "engine_failure_streak": {
            (e.iid, failure): count for e in live.engines for failure, count in e.streaks.items()
        },
        "monitor_degraded": {(): float(live.degraded is not None)},
        "pool_connections": {},
    }
    for engine in live.engines:
        for leg in LEGS:
            readings["seats"][engine.iid, leg] = engine.seats.get(leg, 0)
            readings["seat_limit"][engine.iid, leg] = engine.seat_limit.get(leg, 0)
            readings["residents"][engine.iid, leg] = engine.residents.get(leg, 0)
            readings["pace_ratio"][engine.iid, leg] = engine.pace.get(leg, 1.0)
        for pool, view in engine.pools.items():
            counts = zip(PoolSlot, (view.idle, view.busy, view.waiting), strict=True)
            for slot, count in counts:
                readings["pool_connections"][engine.iid, pool, slot] = count
    if live.roles is not None:
        readings |= roles_readings(live.roles)
    return readings


class ScrapeCollector:
    """Gives a registry the scraped metrics of the catalogue.

    Each series of the catalogue is there at every scrape, 0 where nothing was read for it; a
    reading for a series that is not in the catalogue is left out.
    """

    def __init__(
        self, read: Callable[[], Readings], open_labels: Mapping[str, Sequence[str]]
    ) -> None:
        self._read = read
        self._series = {
            metric.name: tuple(metric.series(open_labels)) for metric in CATALOGUE if metric.scraped
        }

    def describe(self) -> list[Family]:
        """Nothing: so that registering this does not read the router's state."""
        return []

    def collect(self) -> Iterator[Family]:
        """Read once, and make a family for each scraped metric."""
        readings = self._read()
        for metric in CATALOGUE:
            if not metric.scraped:
                continue
            kind = CounterMetricFamily if metric.kind is Kind.COUNTER else GaugeMetricFamily
            labels = [label.name for label in metric.labels]
            family = kind(metric.full_name, metric.help, labels=labels)
            values = readings.get(metric.name, {})
            for series in self._series[metric.name]:
                family.add_metric(series, values.get(series, 0.0))
            yield family
