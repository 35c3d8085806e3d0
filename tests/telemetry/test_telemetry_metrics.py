from __future__ import annotations

import attrs
import prometheus_client
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from telemetry_samples import (
    ENGINES,
    LIVE,
    MOVE,
    ROW,
    FixedSource,
    everything_happens,
    make_telemetry,
    rows,
    scraped,
    value,
    values_of,
)

from narwhal.model import Phase, Route, TtftScope
from narwhal.telemetry import CONTENT_TYPE, RequestRow
from narwhal.telemetry.catalogue import CATALOGUE
from narwhal.telemetry.cells import HistogramCell
from narwhal.telemetry.kinds import Endpoint
from narwhal.telemetry.scrape import live_readings


@settings(max_examples=25, deadline=None)
@given(st.lists(rows(), max_size=5))
def test_nothing_that_happens_adds_a_series(happened: list[RequestRow]) -> None:
    telemetry = make_telemetry()
    before = scraped(telemetry).keys()
    for row in happened:
        telemetry.request_started(row.route)
        telemetry.request_ended(row)
        telemetry.answered(Endpoint.OTHER, row.status)
    assert scraped(telemetry).keys() == before


def test_the_series_are_the_catalogue_s_from_the_start() -> None:
    samples = scraped(make_telemetry())
    open_labels = {"engine": ENGINES, "version": ("9.9",)}
    for metric in CATALOGUE:
        assert len(values_of(samples, metric)) == len(list(metric.series(open_labels)))


def test_attaching_a_source_adds_no_series_even_for_an_engine_the_fleet_has_not() -> None:
    telemetry = make_telemetry()
    before = scraped(telemetry).keys()
    stranger = attrs.evolve(LIVE.engines[0], iid="n77")
    telemetry.attach(FixedSource(attrs.evolve(LIVE, engines=(*LIVE.engines, stranger))))
    assert scraped(telemetry).keys() == before


def test_each_metric_is_bound_to_something_that_moves_it() -> None:
    telemetry = make_telemetry()
    telemetry.attach(FixedSource())
    everything_happens(telemetry)
    telemetry.journal.note_lost(1)
    samples = scraped(telemetry)
    still = [m.name for m in CATALOGUE if not any(values_of(samples, m))]
    assert still == ["journal_write_errors_total"]


def test_each_scraped_metric_is_read_from_somewhere() -> None:
    own = {"requests_in_flight", "journal_dropped_total", "journal_write_errors_total"}
    assert live_readings(LIVE).keys() | own == {m.name for m in CATALOGUE if m.scraped}


def test_live_values_are_those_of_the_source() -> None:
    telemetry = make_telemetry()
    telemetry.attach(FixedSource())
    samples = scraped(telemetry)
    assert value(samples, "queue_depth") == 3
    assert value(samples, "retained_requests") == 7
    assert value(samples, "retry_credits") == 9.5
    assert value(samples, "seats", engine="n0", phase="decode") == 2
    assert value(samples, "residents", engine="n1", phase="prefill") == 3
    assert value(samples, "kv_orphan_tokens", engine="n1") == 512
    assert value(samples, "pool_connections", engine="n0", pool="serving", state="waiting") == 8


def test_two_routers_in_one_process_share_nothing() -> None:
    one, other = make_telemetry(), make_telemetry()
    one.request_started(Route.CHAT)
    assert value(scraped(one), "requests_received_total", route="chat") == 1
    assert value(scraped(other), "requests_received_total", route="chat") == 0
    assert b"narwhal" not in prometheus_client.generate_latest(prometheus_client.REGISTRY)


def test_created_series_are_left_out_without_touching_the_process_s_setting() -> None:
    assert b"_created" not in make_telemetry().metrics.render()
    registry = prometheus_client.CollectorRegistry()
    prometheus_client.Counter("a_total", "a", registry=registry)
    assert b"_created" in prometheus_client.generate_latest(registry)


def test_the_content_type_is_that_of_the_text_format() -> None:
    assert CONTENT_TYPE.startswith("text/plain; version=")


def test_the_share_of_requests_within_the_target_is_exact() -> None:
    telemetry = make_telemetry()
    for ttft in (1.99, 2.0, 2.01):
        telemetry.request_ended(attrs.evolve(ROW, ttft_s=ttft))
    samples = scraped(telemetry)
    assert value(samples, "ttft_seconds_bucket", le="2.0") == 2
    assert value(samples, "ttft_seconds_count") == 3


def test_a_negative_phase_does_not_stop_the_count() -> None:
    telemetry = make_telemetry()
    telemetry.request_ended(attrs.evolve(ROW, spent={Phase.DECODE: -1e-9}))
    assert value(scraped(telemetry), "phase_seconds_total", phase="decode") == 0


@given(st.lists(st.floats(0, 100, allow_nan=False), max_size=50), st.integers(1, 6))
def test_a_histogram_cell_counts_as_prometheus_clients_own(values: list[float], edges: int) -> None:
    bounds = [0.1 * 4**n for n in range(edges)]
    cell = HistogramCell(bounds)
    registry = prometheus_client.CollectorRegistry()
    reference = prometheus_client.Histogram("h", "help", buckets=bounds, registry=registry)
    for observed in values:
        cell.observe(observed)
        reference.observe(observed)
    (family,) = registry.collect()
    expected = {s.labels["le"]: s.value for s in family.samples if s.name == "h_bucket"}
    assert dict(cell.buckets()) == expected
    assert cell.count == len(values)
    assert cell.total == pytest.approx(sum(values))


def test_what_is_counted_with_every_evaluation_is_shown_but_not_kept() -> None:
    telemetry = make_telemetry()
    telemetry.decided(MOVE)
    assert value(scraped(telemetry), "role_gates_total", gate="none") == 1
    assert telemetry.counters().series == {"role_moves_total": {("n0", "decode"): 1.0}}


def test_what_a_request_made_of_its_targets_is_counted() -> None:
    telemetry = make_telemetry()
    telemetry.request_ended(attrs.evolve(ROW, prefill_ttft_s=2.0, tpot_s=0.051))
    telemetry.request_ended(attrs.evolve(ROW, prefill_ttft_s=2.01, tpot_s=None))
    telemetry.request_ended(attrs.evolve(ROW, prefill_ttft_s=None, tpot_s=0.05))
    samples = scraped(telemetry)
    found = {
        (target, result): value(samples, "target_results_total", target=target, result=result)
        for target in ("ttft", "tpot")
        for result in ("met", "missed")
    }
    assert set(found.values()) == {1.0}
    assert value(samples, "target_seconds", target="ttft") == 2.0
    assert value(samples, "target_seconds", target="tpot") == 0.05


def test_the_ttft_that_is_compared_with_its_target_is_the_one_of_the_scope() -> None:
    telemetry = make_telemetry(ttft_scope=TtftScope.FIRST_TOKEN)
    telemetry.request_ended(attrs.evolve(ROW, prefill_ttft_s=1.0, first_token_ttft_s=2.5))
    telemetry.request_ended(attrs.evolve(ROW, prefill_ttft_s=1.0, first_token_ttft_s=None))
    samples = scraped(telemetry)
    assert value(samples, "target_results_total", target="ttft", result="missed") == 1
    assert value(samples, "target_results_total", target="ttft", result="met") == 0


def test_waits_for_seats_are_told_apart_by_their_phase() -> None:
    telemetry = make_telemetry()
    telemetry.waited_for_seat(Phase.PREFILL, 0.5)
    telemetry.waited_for_seat(Phase.PREFILL, 0.25)
    telemetry.waited_for_seat(Phase.DECODE, 3.0)
    samples = scraped(telemetry)
    assert value(samples, "seat_wait_seconds_count", phase="prefill") == 2
    assert value(samples, "seat_wait_seconds_sum", phase="prefill") == 0.75
    assert value(samples, "seat_wait_seconds_bucket", phase="decode", le="2.0") == 0
    assert value(samples, "seat_wait_seconds_sum", phase="decode") == 3.0
