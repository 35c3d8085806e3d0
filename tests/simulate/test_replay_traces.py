"""Traces: three formats, told apart by what is in them, and what is wrong with a line of each."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from narwhal.model import ConfigError, Phase, Route, Terminal, TtftScope
from narwhal.simulate.overload import Arm, Experiment
from narwhal.simulate.overload.run import Load, run_load
from narwhal.simulate.replay.arrivals import Arrival
from narwhal.simulate.replay.journals import INVALID, LOST, TORN, UNSIZED
from narwhal.simulate.replay.outputs import UNKNOWN, Outputs
from narwhal.simulate.replay.traces import Format, Trace, TraceError, read_trace
from narwhal.telemetry import RequestRow, StartRow, encode
from narwhal.telemetry.rows import Row
from narwhal.testing import MemoryFleet

HEAD = "TIMESTAMP,ContextTokens,GeneratedTokens"
AZURE = (
    f"{HEAD}\r\n"
    "2023-11-16 18:17:04.0319600,3180,8\r\n"
    "2023-11-16 18:17:03.9799600,4808,10\r\n"
    "\r\n"
    "2023-11-16 18:18:03.9799600,0,0"
)
MOONCAKE = (
    '{"timestamp": 3052, "input_length": 7234, "output_length": 794, "hash_ids": [0, 28]}\n'
    '{"timestamp": 52, "input_length": 6758, "output_length": 0, "hash_ids": []}\n'
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "some.trace"


def read(file: Path, text: str | bytes, **options: Any) -> Trace:
    file.write_bytes(text.encode() if isinstance(text, str) else text)
    return read_trace(file, **options)


def sizes(trace: Trace) -> list[tuple[float, int, int, int | None]]:
    return [(round(each.at, 6), each.prompt, each.output, each.cap) for each in trace.arrivals]


def test_azure_is_sorted_and_counted_from_the_first(file: Path) -> None:
    trace = read(file, AZURE)
    assert trace.format is Format.AZURE
    assert sizes(trace) == [(0, 4808, 10, None), (0.052, 3180, 8, None), (60, 1, 1, None)]
    assert {each.kind for each in trace.arrivals} == {"some"}
    assert trace.seconds == pytest.approx(60)
    assert not trace.left_out
    assert not trace.estimated


def test_azure_of_2024_has_a_zone_and_not_always_a_fraction(file: Path) -> None:
    trace = read(
        file,
        b"\xef\xbb\xbf" + HEAD.lower().encode() + b"\n"
        b"2024-05-10 00:00:00.009930+00:00,2162,5\n2024-05-10 02:00:01+02:00,2399,6\n",
        kind="code",
    )
    assert sizes(trace) == [(0, 2162, 5, None), (0.99007, 2399, 6, None)]
    assert trace.arrivals[0].kind == "code"


def test_azure_columns_may_be_in_any_order_with_others_between(file: Path) -> None:
    trace = read(file, "GeneratedTokens,Region,TIMESTAMP,ContextTokens\n3,eu,2024-05-10,7\n")
    assert trace.arrivals == (Arrival(at=0.0, prompt=7, output=3, kind="some"),)


def test_mooncake_counts_milliseconds(file: Path) -> None:
    trace = read(file, MOONCAKE)
    assert trace.format is Format.MOONCAKE
    assert sizes(trace) == [(0, 6758, 1, None), (3, 7234, 794, None)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        (f"{HEAD}\n", "holds no request"),
        ("hello\n", 'line 1: is no line of a trace, "hello": it begins neither'),
        ('{"a": 1}\n', 'line 1: is no row of a trace, with "a": it begins neither'),
        ("{\n", "line 1: is not JSON"),
        (b"\xff\xfe\n", "is not UTF-8 text; unpack it"),
        ("x" * 1_000_001, "line 1: has more than 1000000 characters"),
        (f"{HEAD}\n2023-11-16,1\n", "line 2: has 2 columns, and the head has 3; delete"),
        (f"{HEAD}\nnow,1,1\n", "line 2: TIMESTAMP must be a time such as 2023-11-16 18:17:03.97"),
        (f"{HEAD}\n\n2023-11-16,1.5,1\n", 'line 3: ContextTokens must be an integer, not "1.5"'),
        (f"{HEAD}\n2023-11-16,1,-1\n", 'line 2: GeneratedTokens must be an integer, not "-1"'),
        (f"{HEAD}\n2023-11-16,999999999,1\n", "line 2: ContextTokens must be from 0 to 100000000"),
        (MOONCAKE + "[1]\n", "line 3: must be a JSON object, not a list; delete the line"),
        (MOONCAKE + "{}\n", "line 3: timestamp is missing; mend or delete the line"),
        (MOONCAKE.replace("3052", "NaN"), "line 1: timestamp must be from 0 to 1e+13, not NaN"),
        (MOONCAKE.replace("3052", "9" * 400), "line 1: timestamp must be from 0 to 1e+13, not an"),
        (MOONCAKE.replace("3052", '"1"'), 'line 1: timestamp must be a number, not "1"'),
        (MOONCAKE.replace("7234", "true"), "line 1: input_length must be an integer, not true"),
        (MOONCAKE.replace("794", "-1"), "line 1: output_length must be from 0 to"),
        ('{"event": "request", "terminal": "gone"}\n', "line 1: terminal must be one of completed"),
        ('{"event": "start", "schema": 99}\n', "line 1: schema must be 1, not 99; replay it with"),
        ('{"event": "rotated", "schema": 2}\n', "line 1: schema must be 1, not 2; replay it with"),
    ],
)
def test_what_is_wrong_is_named_with_its_place_and_a_way_out(
    file: Path, text: str | bytes, message: str
) -> None:
    with pytest.raises(TraceError) as caught:
        read(file, text)
    (problem,) = caught.value.problems
    assert problem.startswith(f"some.trace: {message}")
    assert isinstance(caught.value, ConfigError)


@pytest.mark.parametrize("path", ["missing.csv", "nul\0.csv", "."])
def test_a_file_that_cannot_be_read(tmp_path: Path, path: str) -> None:
    with pytest.raises(TraceError, match=r"cannot be read: .*; check the path"):
        read_trace(tmp_path / path)


# The journal, as the router writes it

START = StartRow(
    ts=1000.0,
    version="1",
    model="m",
    ttft_s=1.0,
    ttft_scope=TtftScope.PREFILL,
    tpot_s=0.1,
    engines=(),
)


def row(
    arrival: float,
    terminal: Terminal = Terminal.COMPLETED,
    *,
    prompt: int | None = 100,
    cap: int | None = 64,
    output: int = 0,
    ahead: float = 1_700_000_000.0,
    took: float = 2.0,
) -> RequestRow:
    return RequestRow(
        ts=ahead + arrival + took,
        arrival=arrival,
        request_id="r",
        route=Route.CHAT,
        terminal=terminal,
        status=200,
        prompt_tokens=prompt,
        max_tokens=cap,
        completion_tokens=output,
        spent={Phase.DECODE: took},
    )


def test_a_journal_is_what_was_asked_for_by_the_routers_clock(file: Path) -> None:
    rows: list[Row] = [
        START,
        row(512.5, output=7, took=9.0),
        row(510.0, output=9),
        row(511.0, output=90),
    ]
    trace = read(file, encode(rows))
    assert trace.format is Format.JOURNAL
    assert sizes(trace) == [(0, 100, 9, 64), (1, 100, 90, 90), (2.5, 100, 7, 64)]
    assert not trace.left_out
    assert not trace.estimated


def test_who_was_not_served_gets_what_was_seen_of_the_same_cap(file: Path) -> None:
    rows = [
        row(0, output=3),
        row(1, output=5),
        row(2, cap=128, output=77),
        row(3, Terminal.REFUSED),
        row(4, Terminal.EXPIRED),
        row(5, Terminal.FAILED, output=20),
        row(6, Terminal.REFUSED, cap=100),
        row(7, Terminal.CANCELLED, cap=4),
        row(8, Terminal.REFUSED, cap=None),
    ]
    trace = read(file, encode(rows))
    assert [each.output for each in trace.arrivals[3:]] == [3, 5, 20, 77, 3, 5]
    assert [each.cap for each in trace.arrivals[3:]] == [64, 64, 64, 100, 4, None]
    assert trace.estimated == 6


def test_outputs_without_anything_to_go_by_are_the_cap() -> None:
    assert Outputs.of([]).draw(40) == 40
    assert Outputs.of([]).draw(None) == UNKNOWN
    assert Outputs.of([(None, 9)]).draw(5) == 5
    assert Outputs.of([(0, 0)]).draw(0) == 1


def test_what_says_nothing_of_demand_is_left_out_and_counted(file: Path) -> None:
    rows = [
        encode([START, row(0, output=1), row(1, Terminal.INVALID, prompt=None)]),
        encode([row(2, Terminal.REJECTED, prompt=None), row(3, Terminal.REFUSED, prompt=0)]),
        encode([row(4, output=1)])[:40] + b"\n",
        b'\n{"event": "engine", "engine": "p0"}\n{"event": "stop", "ts": 1, "dropped": 5}\n',
    ]
    trace = read(file, b"".join(rows))
    assert len(trace.arrivals) == 1
    assert trace.left_out == {INVALID: 1, UNSIZED: 2, TORN: 1, LOST: 5}


def test_a_journal_without_any_demand_says_what_it_has(file: Path) -> None:
    with pytest.raises(TraceError, match="holds no request; 1 requests that were not valid; give"):
        read(file, encode([row(1, Terminal.INVALID)]))


def test_starts_of_the_router_are_placed_by_the_wall_clock(file: Path) -> None:
    """Each start has a clock of its own; rows of two routers that share a file are mixed."""
    first = [row(900_000.0 + at, output=1, ahead=1e9) for at in (0.0, 1.25)]
    second = [row(at, output=2, ahead=1e9 + 900_100.0, took=0.5) for at in (0.0, 0.5)]
    # The wall clock was set by a second in between: the router's own clock counts.
    second[1] = row(0.5, output=2, ahead=1e9 + 900_101.0)
    mixed = encode([second[0], first[1], second[1], first[0]])
    trace = read(file, mixed)
    times = [each.at for each in trace.arrivals]
    assert times[1] == pytest.approx(1.25, abs=1e-6)
    assert times[3] - times[2] == pytest.approx(0.5, abs=1e-6)
    assert times[2] == pytest.approx(100.5, abs=1e-6)
    assert [each.output for each in trace.arrivals] == [1, 1, 2, 2]


def test_a_field_of_a_row_that_cannot_be_read(file: Path) -> None:
    text = json.loads(encode([row(1, output=1)]))
    text["arrival"] = "soon"
    with pytest.raises(TraceError, match=r'line 1: arrival must be a number, not "soon"; mend'):
        read(file, json.dumps(text))


def test_the_journal_of_a_router_tells_what_its_clients_asked_for(file: Path) -> None:
    """Overload, so that many are refused: they are demand like the others."""
    experiment = Experiment(requests=60, prefill=1, decode=1, warm_up_s=0.0)
    config = experiment.config(Arm.EXACT)
    rate = 5 * experiment.capacity.rate
    load = Load(seed=1, counted=experiment.demand, rate=rate, warm_up_s=0.0)
    outcome = run_load(config, load, MemoryFleet(config).profiles)
    counted = [outcome.rows[client.name] for client in outcome.clients]
    rows = sorted(counted, key=lambda each: each.ts)
    served = [each for each in rows if each.terminal is Terminal.COMPLETED]
    assert 0 < len(served) < len(rows) == 60
    trace = read(file, encode([START, *rows]))
    assert trace.estimated == len(rows) - len(served)
    asked = sorted((each.prompt, each.cap) for each in experiment.demand)
    assert sorted((each.prompt, each.cap) for each in trace.arrivals) == asked
    arrivals = sorted(each.arrival for each in rows)
    assert [each.at for each in trace.arrivals] == pytest.approx(
        [at - arrivals[0] for at in arrivals], abs=1e-5
    )
