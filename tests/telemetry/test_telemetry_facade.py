from __future__ import annotations

from collections import Counter

import attrs
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from telemetry_samples import (
    LIVE,
    ROW,
    FixedSource,
    everything_happens,
    make_telemetry,
    rows,
    scraped,
    value,
)

from narwhal.admission import Cause
from narwhal.model import FailureClass, Limit, Phase, Route, Terminal, TtftScope
from narwhal.telemetry import JournalFile, RequestRow, encode
from narwhal.telemetry.codes import ERROR_CODES
from narwhal.telemetry.kinds import Endpoint


@settings(max_examples=25)
@given(st.lists(rows(), max_size=8))
def test_metrics_state_and_journal_tell_the_same_totals(happened: list[RequestRow]) -> None:
    telemetry = make_telemetry()
    for row in happened:
        telemetry.request_started(row.route)
        telemetry.request_ended(row)

    expected = Counter(str(row.terminal) for row in happened)
    state = msgspec.json.decode(telemetry.state(101.0))
    samples = scraped(telemetry)
    lines = encode(telemetry.journal.drain(99)).split(b"\n")[:-1]
    journal = [msgspec.json.decode(line) for line in lines]
    for terminal in Terminal:
        in_metrics = [value(samples, "requests_total", route=r, terminal=terminal) for r in Route]
        assert sum(in_metrics) == expected[terminal]
        assert state["requests"]["terminals"][terminal] == expected[terminal]
        assert sum(line["terminal"] == terminal for line in journal) == expected[terminal]
    fired = Counter(str(limit) for row in happened for limit in row.limits_fired)
    for limit in Limit:
        assert value(samples, "limits_fired_total", limit=limit) == fired[limit]
        assert state["limits_fired"][limit] == fired[limit]
    rejected = Counter(
        row.code if row.code in ERROR_CODES else "ok" if row.code is None else "other"
        for row in happened
        if row.terminal in (Terminal.REJECTED, Terminal.REFUSED)
    )
    assert state["admission"]["rejections"] == rejected
    assert state["attempts"]["total"] == sum(len(row.attempts) for row in happened)
    assert state["attempts"]["retries"] == value(samples, "retries_total")
    assert telemetry.in_flight == 0


def test_listeners_are_told_of_every_row_from_then_on() -> None:
    telemetry = make_telemetry()
    telemetry.request_ended(ROW)
    heard: list[RequestRow] = []
    telemetry.listen(heard.append)
    telemetry.request_ended(ROW)
    assert heard == [ROW]


def test_in_flight_is_what_was_received_less_what_ended() -> None:
    telemetry = make_telemetry()
    telemetry.request_started(Route.CHAT)
    telemetry.request_started(Route.CHAT)
    telemetry.request_ended(ROW)
    assert telemetry.in_flight == 1
    assert value(scraped(telemetry), "requests_in_flight") == 1
    assert msgspec.json.decode(telemetry.state(101.0))["requests"]["in_flight"] == 1


def test_a_retried_request_counts_once_and_its_attempts_each() -> None:
    telemetry = make_telemetry()
    telemetry.request_ended(ROW)
    samples = scraped(telemetry)
    assert value(samples, "requests_total", route="chat", terminal="completed") == 1
    assert value(samples, "requests_ended_total", code="ok") == 1
    assert value(samples, "attempts_total", result="failed") == 1
    assert value(samples, "attempts_total", result="completed") == 1
    assert value(samples, "retries_total") == 1
    assert value(samples, "phase_seconds_total", phase="prefill") == pytest.approx(0.3)
    assert value(samples, "queue_wait_seconds_sum") == 0.25
    assert value(samples, "request_seconds_sum") == pytest.approx(4.0)


@pytest.mark.parametrize(
    ("scope", "ratio"), [(TtftScope.PREFILL, 3.0 / 2.5), (TtftScope.FIRST_TOKEN, 3.05 / 2.5)]
)
def test_a_projection_is_compared_with_what_it_was_about(scope: TtftScope, ratio: float) -> None:
    telemetry = make_telemetry(ttft_scope=scope)
    telemetry.request_ended(ROW)
    assert value(scraped(telemetry), "ttft_projection_ratio_count") == 0, "it was retried"
    telemetry.request_ended(attrs.evolve(ROW, attempts=ROW.attempts[1:]))
    samples = scraped(telemetry)
    assert value(samples, "ttft_projection_ratio_count") == 1
    assert value(samples, "ttft_projection_ratio_sum") == pytest.approx(ratio)
    assert value(samples, "prefill_ttft_seconds_sum") == pytest.approx(6.0)
    assert value(samples, "first_token_ttft_seconds_sum") == pytest.approx(6.1)
    assert value(samples, "ttft_seconds_sum") == pytest.approx(6.2)


def test_a_request_that_never_waited_is_not_in_the_queue_s_histogram() -> None:
    telemetry = make_telemetry()
    telemetry.request_ended(attrs.evolve(ROW, spent={Phase.INGRESS: 0.1}))
    assert value(scraped(telemetry), "queue_wait_seconds_count") == 0


def test_tokens_relayed_one_by_one_are_not_counted_again_at_the_end() -> None:
    telemetry = make_telemetry()
    telemetry.metrics.tokens_completion.inc(48)
    telemetry.request_ended(ROW)
    assert value(scraped(telemetry), "tokens_total", kind="completion") == 50
    over = attrs.evolve(ROW, completion_tokens=10, tokens_counted=12)
    telemetry.request_ended(over)
    assert value(scraped(telemetry), "tokens_total", kind="completion") == 50


def test_a_prompt_counts_only_once_it_was_prefilled() -> None:
    telemetry = make_telemetry()
    telemetry.request_ended(attrs.evolve(ROW, prefill_ttft_s=None))
    assert value(scraped(telemetry), "tokens_total", kind="prompt") == 0
    telemetry.request_ended(ROW)
    assert value(scraped(telemetry), "tokens_total", kind="prompt") == 100


def test_only_completed_requests_are_in_the_histogram_of_their_length() -> None:
    telemetry = make_telemetry()
    telemetry.request_ended(attrs.evolve(ROW, terminal=Terminal.EXPIRED, code="request_expired"))
    samples = scraped(telemetry)
    assert value(samples, "request_seconds_count") == 0
    assert value(samples, "requests_ended_total", code="request_expired") == 1


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (200, "2xx"),
        (404, "4xx"),
        (429, "4xx"),
        (504, "5xx"),
        (301, "other"),
        (499, "none"),
        (None, "none"),
    ],
)
def test_answers_count_by_class_of_status(status: int | None, kind: str) -> None:
    telemetry = make_telemetry()
    telemetry.answered(Endpoint.OTHER, status)
    telemetry.request_ended(attrs.evolve(ROW, status=status))
    samples = scraped(telemetry)
    assert value(samples, "http_responses_total", **{"endpoint": "other", "class": kind}) == 1
    assert value(samples, "http_responses_total", **{"endpoint": "chat", "class": kind}) == 1


def test_the_state_says_what_admission_was_offered_and_what_it_made_of_it() -> None:
    telemetry = make_telemetry()
    empty = msgspec.json.decode(telemetry.state(101.0))["admission"]
    assert empty["ttft_projection"] == {"scope": "prefill", "requests": 0, "mean_ratio": None}
    assert not any(empty["refusals"].values())
    telemetry.offered(sized=True)
    telemetry.offered(sized=True)
    telemetry.offered(sized=False)
    telemetry.refused(Cause.LENGTH)
    telemetry.unserved(Phase.DECODE)
    for projected in (1.5, 3.0):
        row = attrs.evolve(ROW, attempts=ROW.attempts[1:], projected_ttft_s=projected)
        telemetry.request_ended(row)
    telemetry.request_ended(attrs.evolve(ROW, terminal=Terminal.REFUSED, code="answer_too_long"))
    telemetry.request_ended(attrs.evolve(ROW, terminal=Terminal.REJECTED, code="queue_full"))
    shown = msgspec.json.decode(telemetry.state(101.0))["admission"]
    assert shown["offers"] == {"sized": 2, "unsized": 1}
    assert shown["refusals"]["length"] == 1
    assert sum(shown["refusals"].values()) == 1
    assert shown["rejections"] == {"answer_too_long": 1, "queue_full": 1}
    assert shown["unserved_placements"] == {"prefill": 0, "decode": 1}
    assert shown["ttft_projection"]["requests"] == 2
    assert shown["ttft_projection"]["mean_ratio"] == pytest.approx((2.0 + 1.0) / 2)


def test_an_orphan_is_a_failed_release_only_if_one_was_tried() -> None:
    telemetry = make_telemetry()
    telemetry.kv_orphaned(release_failed=False)
    telemetry.kv_orphaned(release_failed=True)
    telemetry.kv_released()
    samples = scraped(telemetry)
    assert value(samples, "kv_orphaned_total") == 2
    assert value(samples, "kv_release_failures_total") == 1
    assert value(samples, "kv_released_total") == 1
    assert telemetry.totals().kv_orphaned == 2
    assert telemetry.totals().kv_released == 1


def test_a_handoff_is_rejected_as_missing_or_as_incomplete() -> None:
    telemetry = make_telemetry()
    telemetry.handoff_rejected(missing=False)
    samples = scraped(telemetry)
    assert value(samples, "handoff_missing_total") == 0
    assert value(samples, "handoff_incomplete_total") == 1


def test_rows_go_into_the_journal_only_if_somebody_empties_it() -> None:
    telemetry = make_telemetry(journaled=False)
    telemetry.request_ended(ROW)
    assert len(telemetry.journal) == 0
    assert telemetry.totals().terminals[Terminal.COMPLETED] == 1


def test_an_engine_s_failures_count_by_class() -> None:
    telemetry = make_telemetry()
    telemetry.engine_failed("n1", FailureClass.STREAM)
    samples = scraped(telemetry)
    failures = {"engine": "n1", "class": "stream"}
    assert value(samples, "engine_failures_total", **failures) == 1


def test_journal_errors_show_in_the_metrics() -> None:
    telemetry = make_telemetry()
    file = JournalFile("/nonexistent/journal.jsonl")
    telemetry.attach(FixedSource(), journal_file=file)
    file.write(b"{}\n")
    assert value(scraped(telemetry), "journal_write_errors_total") == 1


def test_totals_are_a_value_that_later_events_leave_alone() -> None:
    telemetry = make_telemetry()
    before = telemetry.totals()
    everything_happens(telemetry)
    assert before.terminals[Terminal.COMPLETED] == 0
    assert before.limits_fired[Limit.HEALTH] == 0
    assert before.received == 0


def test_the_stop_row_closes_the_account() -> None:
    telemetry = make_telemetry()
    telemetry.request_ended(ROW)
    telemetry.journal.note_lost(2)
    row = telemetry.stop_row(ts=5.0, now=160.0)
    assert row.uptime_s == 60.0
    assert row.dropped == 2
    assert row.terminals[Terminal.COMPLETED] == 1


def test_the_state_document_before_and_after_the_router_is_attached() -> None:
    telemetry = make_telemetry()
    unattached = msgspec.json.decode(telemetry.state(100.0))
    assert unattached["ready"] is False
    assert unattached["engines"] == []
    telemetry.attach(FixedSource())
    attached = msgspec.json.decode(telemetry.state(102.5))
    assert attached["uptime_s"] == 2.5
    assert attached["slo"] == {"ttft_s": 2.0, "ttft_scope": "prefill", "tpot_s": 0.05}
    assert attached["ready"] is LIVE.ready
    assert [engine["iid"] for engine in attached["engines"]] == ["n0", "n1"]
