from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from telemetry_samples import CHANGE, MOVE, make_telemetry, rows

from narwhal.model import Phase, Terminal, TtftScope
from narwhal.telemetry import Change, RequestRow, encode
from narwhal.telemetry.report import (
    MOST_WINDOWS,
    SchemaError,
    Share,
    Targets,
    Wanted,
    figures_of,
    width_for,
)
from narwhal.telemetry.report.columns import Names
from narwhal.telemetry.report.reading import MOST_KEPT
from narwhal.telemetry.report.sums import times_of

from journal_lines import START, attempt, line, read, refused, request

# What the router writes, the report reads


@settings(deadline=None)
@given(st.lists(rows(), max_size=20))
def test_every_row_that_is_written_is_counted(written: list[RequestRow]) -> None:
    reading = read(line(START), *encode(written).splitlines(keepends=True))
    assert (reading.bad, reading.torn, reading.unknown, reading.left_out) == (0, 0, 0, 0)
    figures = figures_of(reading)
    ends = Counter(row.terminal for row in written)
    assert {each.terminal: each.requests for each in figures.terminals} == ends
    assert figures.requests == len(written)
    assert figures.attempts == sum(len(row.attempts) for row in written)
    assert sum(window.requests for window in figures.windows) == len(written)
    assert sum(each.requests for each in figures.endings) == len(written) - ends[Terminal.COMPLETED]
    for phase in figures.phases:
        spent = [row.spent[phase.phase] for row in written if phase.phase in row.spent]
        assert phase.times.count == len(spent)
        assert phase.seconds == pytest.approx(sum(spent), rel=1e-5, abs=1e-5)
        assert phase.times.most == pytest.approx(max(spent), rel=1e-5, abs=1e-5)


def test_rows_of_all_other_kinds_are_read() -> None:
    telemetry = make_telemetry()
    telemetry.role_row(MOVE, ts=1001.0)
    telemetry.engine_changed(CHANGE, ts=1002.0)
    telemetry.router_changed(Change.DRAINING, ts=1003.0)
    lines = encode([*telemetry.journal.drain(9), telemetry.stop_row(ts=1003.5, now=200.0)])
    reading = read(START, *lines.splitlines(keepends=True))
    figures = figures_of(reading)
    assert (figures.starts, figures.stops, figures.bad, figures.moves, figures.changes) == (
        *(1, 1, 0, 1, 1),
    )
    assert [(row.engine, row.to, row.split, row.proposed) for row in figures.roles] == [
        ("n0", "decode", "2P1D", "1P2D")
    ]
    assert [(row.source, row.target, row.cause) for row in figures.standings] == [
        ("serving", "held", "suspected")
    ]
    assert [(row.ts, row.change, row.reason) for row in figures.router] == [
        *((1000.0, "started", "version 9.9"), (1003.0, "draining", ""), (1003.5, "stopped", "")),
    ]
    assert (figures.models, figures.versions) == (("tiny",), ("9.9",))


# Attainment


def attained(*rows_: dict[str, Any], **wanted: Any) -> Share:
    return figures_of(read(START, *rows_, wanted=Wanted(**wanted))).attained


def test_what_attains_and_what_does_not() -> None:
    assert attained(request()) == Share(1, 1)
    assert attained(request(tpot_s=None)) == Share(1, 1), "one token has no time between tokens"
    assert attained(request(prefill_ttft_s=2.0, tpot_s=0.1)) == Share(1, 1), "at the target"
    assert attained(request(prefill_ttft_s=2.01)) == Share(0, 1)
    assert attained(request(tpot_s=0.101)) == Share(0, 1)
    assert attained(request(terminal="failed")) == Share(0, 1)
    assert attained(refused()) == Share(0, 1)
    assert attained(request(terminal="expired")) == Share(0, 1)
    for terminal in ("invalid", "cancelled"):
        assert attained(request(), request(terminal=terminal)) == Share(1, 1), "says nothing"


def test_the_target_is_about_what_the_journal_says() -> None:
    late = request(first_token_ttft_s=2.5)
    assert attained(late) == Share(1, 1)
    assert attained(late, ttft_scope=TtftScope.FIRST_TOKEN) == Share(0, 1)
    start = START | {"slo": START["slo"] | {"ttft_scope": "first_token"}}
    assert figures_of(read(start, late)).attained == Share(0, 1)


def test_rows_are_measured_by_the_targets_that_held_when_they_were_written() -> None:
    strict = START | {"event": "rotated", "slo": START["slo"] | {"ttft_s": 0.1}}
    figures = figures_of(read(START, request(), strict, request(), request()))
    assert figures.attained == Share(1, 3)
    assert [each.ttft_s for each in figures.targets] == [2.0, 0.1]
    assert figures.starts == 1, "a rotation is no start"


def test_targets_can_be_given_in_place_of_the_journal_s() -> None:
    assert attained(request(), ttft_s=0.4) == Share(0, 1)
    assert attained(request(), tpot_s=0.04) == Share(0, 1)
    alone = figures_of(read(request(), wanted=Wanted(ttft_s=0.6, tpot_s=1.0)))
    assert alone.attained == Share(1, 1)
    assert alone.targets == (Targets(ttft_s=0.6, tpot_s=1.0),)


def test_without_targets_nothing_is_known_to_be_met() -> None:
    figures = figures_of(read(request(), wanted=Wanted(ttft_s=1.0)))
    assert (figures.attained, figures.ttft_met, figures.targets) == (Share(0, 1), Share(0, 0), ())


def test_the_targets_of_one_file_are_not_those_of_the_next() -> None:
    reading = read(START, request())
    reading.begin("other")
    reading.add(line(request()))
    assert figures_of(reading).ttft_met == Share(1, 1)


# Times


@given(st.lists(st.floats(0, 1e6, width=32), min_size=1, max_size=300))
def test_percentiles_are_values_that_so_many_are_not_above(values: list[float]) -> None:
    times = times_of(np.array([*values, math.nan], dtype="f"))
    assert times.count == len(values)
    for share, found in ((0.5, times.p50), (0.9, times.p90), (0.95, times.p95), (0.99, times.p99)):
        assert found is not None
        below = sum(value <= found + 1e-6 for value in values)
        assert below >= round(share * len(values), 6)
        strictly = sum(value < found - 1e-6 for value in values)
        assert strictly < share * len(values)
    assert times.most == pytest.approx(max(values), abs=1e-6)
    assert times.mean == pytest.approx(sum(values) / len(values), rel=1e-5, abs=1e-6)


def test_the_times_of_each_kind() -> None:
    whole = request(stream=False, ttft_s=9.0, took=4.0)
    figures = figures_of(
        read(START, request(took=3.0), whole, request(terminal="failed", took=8.0))
    )
    assert figures.times["ttft"].count == 2, "of a whole answer it is no time to a first token"
    assert figures.times["prefill_ttft"].count == 3
    assert figures.times["request"].most == 4.0, "of what completed"
    assert figures.times["queue"].count == 0
    assert figures.times["handoff"].p50 == 0.45
    queued = request(spent_s={"queue": 0.7, "decode": 0.3})
    assert figures_of(read(START, queued)).times["queue"].p99 == 0.7


def test_where_the_time_went() -> None:
    figures = figures_of(read(START, request(took=1.0), request(took=2.0)))
    assert {each.phase: each.share for each in figures.phases} == {
        Phase.PREFILL: pytest.approx(1 / 3, abs=1e-5),
        Phase.DECODE: pytest.approx(2 / 3, abs=1e-5),
    }


def test_projections_are_compared_where_they_can_be() -> None:
    figures = figures_of(
        read(
            START,
            request(projected_ttft_s=0.25, projected_tpot_s=0.1),
            request(projected_ttft_s=0.25, attempts=[attempt(), attempt()]),
            request(projected_ttft_s=0.0),
        )
    )
    assert (figures.ttft_ratio.count, figures.ttft_ratio.p50) == (1, 2.0)
    assert (figures.tpot_ratio.count, figures.tpot_ratio.p50) == (1, 0.5)


# Who and why


def test_engines_have_what_attempts_did_there() -> None:
    failed = attempt(
        decode="d1", result="failed", engine="d1", failure="timeout", first_token_s=None
    )
    again = attempt(n=2, prefill="p1", prefill_s=0.2, first_token_s=0.5)
    figures = figures_of(read(START, request(attempts=[failed, again]), refused()))
    engines = {each.iid: each for each in figures.engines}
    assert list(engines) == ["d0", "d1", "p0", "p1"]
    assert [(each.prefills, each.decodes) for each in engines.values()] == [
        *((0, 1), (0, 1), (1, 0), (1, 0)),
    ]
    assert engines["p1"].prefill.p50 == 0.2
    assert (engines["d0"].first_token.p50, engines["d1"].first_token.count) == (0.5, 0)
    assert (engines["d0"].tpot.count, engines["d1"].tpot.count) == (1, 0)
    assert (engines["d1"].failures, engines["d0"].failures) == ({"timeout": 1}, {})
    assert (figures.attempts, figures.retried, figures.recovered) == (2, 1, 1)


def test_what_did_not_complete_is_named_by_code_and_limit() -> None:
    cut = request(terminal="expired", code="request_expired", limit="request")
    both = cut | {"limits_fired": ["first_token", "request"]}
    figures = figures_of(read(START, refused(), cut, both, request(terminal="failed", code=None)))
    assert [(each.terminal, each.code, each.limit, each.requests) for each in figures.endings] == [
        ("expired", "request_expired", "request", 2),
        ("refused", "projected_ttft", None, 1),
        ("failed", "-", None, 1),
    ]
    assert figures.limits == {"first_token": 1, "request": 1}


# Over time


def test_windows_are_by_arrival_and_have_no_gaps() -> None:
    figures = figures_of(
        read(START, request(1003.0, took=900.0), request(1009.9), refused(1031.0)), width_s=10
    )
    assert [(w.at, w.requests, w.attained) for w in figures.windows] == [
        (1000.0, 2, Share(2, 2)),
        (1010.0, 0, Share(0, 0)),
        (1020.0, 0, Share(0, 0)),
        (1030.0, 1, Share(0, 1)),
    ]
    assert figures.windows[3].ends == {Terminal.REFUSED: 1}
    assert (figures.windows[0].ttft_p99, figures.windows[1].ttft_p99) == (0.55, None)
    assert figures.windows[0].completion_tokens == 20
    assert (figures.since, figures.until) == (1003.0, 1903.0)


@given(st.floats(0, 1e9))
def test_the_width_that_suits_is_round_and_draws_everything(seconds: float) -> None:
    width = width_for(seconds)
    assert width >= 1
    assert seconds / width <= 47
    assert width == 1 or seconds / width > 8, "no coarser than it has to be"


def test_more_windows_than_anybody_looks_at_are_refused() -> None:
    reading = read(START, request(0.0), request(MOST_WINDOWS + 10.0))
    with pytest.raises(ValueError, match="windows of 1 s"):
        figures_of(reading, width_s=1.0)
    assert len(figures_of(reading).windows) < 49


# What is asked for


def test_only_what_is_asked_for_counts() -> None:
    role = {
        "event": "role",
        "ts": 1001.0,
        "engine": "d0",
        "to": "prefill",
        "verdict": "moved",
    }
    lines = [
        START,
        request(1000.0),
        request(1005.0, route="completions", attempts=[attempt(decode="d1")]),
        role,
        role | {"engine": "d1", "ts": 1005.0, "verdict": "advised"},
        START | {"model": "other"},
        request(1010.0),
    ]

    def count(**wanted: Any) -> tuple[int, int, int]:
        figures = figures_of(read(*lines, wanted=Wanted(**wanted)))
        assert figures.requests + figures.left_out == 3
        return figures.requests, figures.moves, len(figures.roles)

    assert count() == (3, 1, 2)
    assert count(since=1005.0) == (2, 0, 1)
    assert count(until=1005.0) == (1, 1, 1)
    assert count(model="tiny") == (2, 1, 2)
    assert count(model="other") == (1, 0, 0)
    assert count(model="none") == (0, 0, 0)
    assert count(route="completions") == (1, 1, 2)
    assert count(engine="d1") == (1, 0, 1)
    assert count(engine="p0") == (3, 0, 0)


def test_nothing_is_a_report_too() -> None:
    figures = figures_of(read())
    assert (figures.requests, figures.since, figures.seconds, figures.windows) == (0, None, 0.0, ())


# What is no row


def test_lines_that_are_no_rows_are_counted_and_named() -> None:
    reading = read(
        *(START, b"\n", b"{\n", b"[]\n", b"\xff\xfe\n", b'{"a": 1}\n'),
        *(line({"event": "request"}), line(request(terminal="lost")), line(request(ts=1e11))),
        line(request(request_s="1")),
        b"[" * 100_000 + b"\n",
        line(request()),
    )
    assert [each.number for each in reading.bad_lines] == [3, 4, 5, 6, 7, 8, 9, 10, 11]
    assert {each.name for each in reading.bad_lines} == {"j"}
    assert "ts" in reading.bad_lines[4].why
    assert (reading.bad, reading.lines, len(reading.requests)) == (9, 11, 1)


def test_of_very_many_bad_lines_there_is_the_count() -> None:
    reading = read(*[b"x\n"] * (MOST_KEPT + 5))
    assert (reading.bad, len(reading.bad_lines)) == (MOST_KEPT + 5, MOST_KEPT)


@given(st.integers(1, len(line(request())) - 2))
def test_a_last_line_that_is_cut_off_is_no_fault(length: int) -> None:
    reading = read(START, request(), line(request())[:length])
    assert (reading.bad, reading.torn, len(reading.requests)) == (0, 1, 1)


def test_a_last_line_that_is_whole_counts() -> None:
    assert len(read(START, line(request()).rstrip()).requests) == 1


def test_events_of_later_versions_are_none_of_its_business() -> None:
    reading = read({"event": "weather", "ts": "fine"}, request() | {"more": [1]})
    assert (reading.bad, reading.unknown, len(reading.requests)) == (0, 1, 1)


@pytest.mark.parametrize("event", ["start", "rotated"])
def test_a_journal_of_another_format_is_not_guessed_at(event: str) -> None:
    with pytest.raises(SchemaError, match="format 2, and this version reads 1"):
        read(START | {"event": event, "schema": 2})


def test_what_a_file_says_is_fit_for_a_terminal() -> None:
    evil = "d0\x1b[31m\n" + "x" * 999
    row = request(
        code=evil,
        terminal="failed",
        attempts=[attempt(decode=evil, engine=evil, failure=evil)],
    )
    figures = figures_of(read(START | {"model": evil}, row, evil.encode()))
    engine = figures.engines[1]
    texts = [engine.iid, *engine.failures, figures.endings[0].code, *figures.models]
    for text in texts:
        assert text.isprintable()
        assert len(text) == 300


@given(st.lists(st.text(max_size=3), max_size=30), st.integers(1, 6))
def test_names_are_numbers_and_the_last_is_all_the_others(texts: list[str], most: int) -> None:
    names = Names(most)
    found = [names.number(text) for text in texts]
    kept = list(dict.fromkeys(texts))[:most]
    for text, number in zip(texts, found, strict=True):
        assert names.texts[number] == (text if text in kept else Names.OTHER)
    assert len(names.texts) <= most + 1


def test_a_request_of_one_attempt_takes_a_hundred_bytes() -> None:
    reading = read(START, request())
    columns = [*reading.requests._arrays.values(), *reading.attempts._arrays.values()]
    assert sum(column.itemsize * len(column) for column in columns) <= 110
