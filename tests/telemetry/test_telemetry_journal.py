from __future__ import annotations

import json
from collections import deque
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from telemetry_samples import CHANGE, ROW, make_telemetry, rows

from narwhal.fleet import Transition
from narwhal.model import Role, Terminal, TtftScope
from narwhal.telemetry import (
    Change,
    EngineSummary,
    Journal,
    RequestRow,
    StartRow,
    StopRow,
    clean_text,
    encode,
)
from narwhal.telemetry.rows import MAX_TEXT


def decoded(*written: RequestRow | StartRow | StopRow) -> list[dict[str, Any]]:
    return [json.loads(line) for line in encode(written).split(b"\n")[:-1]]


def test_a_request_s_row() -> None:
    (row,) = decoded(ROW)
    attempts = row.pop("attempts")
    assert row == {
        "event": "request",
        "ts": 1_700_000_000.25,
        "arrival": 12.5,
        "request_id": "r-1",
        "client_request_id": "mine",
        "route": "chat",
        "stream": True,
        "terminal": "completed",
        "status": 200,
        "code": None,
        "limit": None,
        "limits_fired": ["first_token"],
        "prompt_tokens": 100,
        "prompt_exact": True,
        "tokenize_fallback": False,
        "max_tokens": 64,
        "completion_tokens": 50,
        "request_s": 4.0,
        "ttft_s": 3.1,
        "prefill_ttft_s": 3.0,
        "first_token_ttft_s": 3.05,
        "projected_ttft_s": 2.5,
        "tpot_s": 0.02,
        "projected_tpot_s": 0.025,
        "spent_s": {"ingress": 0.01, "queue": 0.25, "prefill": 0.3, "backoff": 0.04, "decode": 3.4},
    }
    assert attempts[0] == {
        "n": 1,
        "prefill": "n0",
        "prefill_why": "least_cost",
        "prefill_runner_up": "n1",
        "decode": "n1",
        "decode_why": "unserved",
        "decode_runner_up": None,
        "result": "failed",
        "code": "first_token",
        "phase": "decode",
        "engine": "n1",
        "failure": "timeout",
        "limit": "first_token",
        "engine_status": None,
        "prefill_s": 0.2,
        "handoff_age_s": 0.21,
        "first_token_s": None,
    }
    assert attempts[1]["result"] == "completed"


def test_start_and_stop_rows() -> None:
    start = StartRow(
        ts=1.0,
        version="9.9",
        model="tiny",
        ttft_s=2.0,
        ttft_scope=TtftScope.FIRST_TOKEN,
        tpot_s=0.05,
        engines=(EngineSummary("n0", Role.PREFILL, pin=True),),
    )
    stop = StopRow(ts=3.5, uptime_s=2.5, terminals={Terminal.COMPLETED: 4}, dropped=1)
    assert decoded(start, stop) == [
        {
            "event": "start",
            "ts": 1.0,
            "schema": 1,
            "version": "9.9",
            "model": "tiny",
            "slo": {"ttft_s": 2.0, "ttft_scope": "first_token", "tpot_s": 0.05},
            "engines": [{"iid": "n0", "role": "prefill", "pin": True}],
        },
        {"event": "stop", "ts": 3.5, "uptime_s": 2.5, "terminals": {"completed": 4}, "dropped": 1},
    ]


@given(st.lists(rows()))
def test_each_row_is_one_line_whatever_its_texts_hold(written: list[RequestRow]) -> None:
    data = encode(written)
    assert data.count(b"\n") == len(written)
    assert [line["terminal"] for line in decoded(*written)] == [row.terminal for row in written]


@given(rows())
def test_the_phases_of_a_row_sum_to_its_length(row: RequestRow) -> None:
    (line,) = decoded(row)
    assert sum(line["spent_s"].values()) == pytest.approx(line["request_s"], abs=1e-5)


@given(st.text() | st.binary())
def test_cleaned_text_is_short_plain_and_stays_as_it_is(text: str | bytes) -> None:
    clean = clean_text(text)
    assert clean is not None
    assert len(clean) <= MAX_TEXT
    assert clean.isascii()
    assert clean.isprintable()
    assert not set(clean) & set(" \"'\\<>{}`$;&|")
    assert clean_text(clean) == clean


def test_cleaned_text_keeps_what_ids_are_made_of() -> None:
    for text in ("cmpl-8ae989f7", "a/b:c@d.e_f+g=", "0af7651916cd43dd8448eb211c80319c"):
        assert clean_text(text) == text
    assert clean_text("x\r\ny") == "x__y"
    assert clean_text(b"caf\xe9") == "caf_"
    assert clean_text(None) is None


def test_texts_from_outside_are_cleaned_on_the_way_in() -> None:
    row = attrs.evolve(ROW, client_request_id='"\n{"event":"stop"}', code="a b")
    assert row.client_request_id == "____event_:_stop__"
    assert row.code == "a_b"


@given(st.integers(1, 5), st.lists(st.integers(-1, 4), max_size=40))
def test_the_buffer_is_a_bounded_queue_that_counts_what_it_drops(
    capacity: int, steps: list[int]
) -> None:
    """A step of -1 appends, another drains that many."""
    journal = Journal(capacity=capacity)
    expected: deque[str] = deque()
    dropped = 0
    for number, step in enumerate(steps):
        if step < 0:
            journal.append_nowait(attrs.evolve(ROW, request_id=str(number)))
            if len(expected) < capacity:
                expected.append(str(number))
            else:
                dropped += 1
        else:
            drained = journal.drain(step)
            wanted = [expected.popleft() for _ in range(min(step, len(expected)))]
            assert [row.request_id for row in drained if isinstance(row, RequestRow)] == wanted
        assert len(journal) == len(expected)
        assert journal.dropped == dropped


def test_rows_that_were_not_written_count_as_dropped() -> None:
    journal = Journal()
    journal.note_lost(3)
    assert journal.dropped == 3


def test_a_journal_without_room_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1 row, not 0"):
        Journal(capacity=0)


def test_nothing_to_write_is_nothing() -> None:
    assert encode([]) == b""


def test_a_change_of_an_engine_s_state_is_a_row_of_its_own() -> None:
    telemetry = make_telemetry()
    seen: list[Transition] = []
    telemetry.watch(seen.append)
    telemetry.engine_changed(CHANGE, ts=1_700_000_001.5)
    assert seen == [CHANGE]
    (row,) = telemetry.journal.drain(9)
    assert [json.loads(line) for line in encode([row]).splitlines()] == [
        {
            "event": "engine",
            "ts": 1_700_000_001.5,
            "engine": "n0",
            "from": "serving",
            "to": "held",
            "cause": "suspected",
            "reason": "3 failures in a row: stream",
        }
    ]


def test_a_change_of_the_router_is_a_row_of_its_own() -> None:
    telemetry = make_telemetry()
    telemetry.router_changed(Change.DEGRADED, ts=1_700_000_002.5, reason="5 passes failed")
    make_telemetry(journaled=False).router_changed(Change.DRAINING, ts=1.0)
    (row,) = telemetry.journal.drain(9)
    assert json.loads(encode([row])) == {
        "event": "router",
        "ts": 1_700_000_002.5,
        "change": "degraded",
        "reason": "5 passes failed",
    }
