"""Workloads: what can be made of traces, and that it is the same each time."""

from __future__ import annotations

import csv
import random
from datetime import datetime
from itertools import pairwise
from pathlib import Path

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from narwhal.model import ConfigError
from narwhal.simulate.replay.arrivals import Arrival
from narwhal.simulate.replay.pacing import between, gaps_of, mean_rate, merged, paced, with_burst
from narwhal.simulate.replay.traces import read_trace
from narwhal.simulate.replay.workload import Burst, Giant, Shape, shape

REAL = Path(__file__).parents[3] / "shared/data/traces"
# Requests/s that the best split of the reference fleet just serves, each kind alone.
KNEES = {"code": 14.5, "conv": 15.1}
PHASES = ("code", "conv", "code", "conv")


def trace(*times: float, kind: str = "a") -> tuple[Arrival, ...]:
    return tuple(
        Arrival(at=at, prompt=10 + number, output=1 + number, kind=kind)
        for number, at in enumerate(times)
    )


def times(arrivals: tuple[Arrival, ...]) -> list[float]:
    return [round(each.at, 9) for each in arrivals]


def prompts(arrivals: tuple[Arrival, ...]) -> list[int]:
    return [each.prompt for each in arrivals]


A = trace(0, 1, 3, 4, 8)
B = trace(0, 2, 4, kind="b")


# As they are, faster, and cut


def test_a_shape_of_nothing_leaves_a_trace_as_it_is() -> None:
    assert shape({"a": A}, Shape()) == A


def test_traces_at_once_are_merged_by_time_and_told_apart_by_name() -> None:
    both = shape({"x": A, "y": B}, Shape())
    assert times(both) == [0, 0, 1, 2, 3, 4, 4, 8]
    assert "".join(each.kind for each in both) == "xyxyxxyx"


def test_twice_the_rate_is_half_the_time() -> None:
    assert times(shape({"a": A}, Shape(scale=2))) == [0, 0.5, 1.5, 2, 4]


def test_a_rate_is_that_of_the_whole_trace() -> None:
    fast = shape({"a": A, "b": B}, Shape(rates={"a": 10.0}, scale=0.5))
    assert mean_rate([each for each in fast if each.kind == "a"]) == pytest.approx(5)
    assert mean_rate([each for each in fast if each.kind == "b"]) == pytest.approx(3 / 4 / 2)


def test_a_trace_of_one_moment_has_no_rate_and_stays() -> None:
    assert paced(trace(0, 0), rate=5) == trace(0, 0)
    with pytest.raises(ConfigError, match='trace "a" takes no time, so it has no rate'):
        shape({"a": trace(0, 0)}, Shape(phases=("a",)))


def test_a_slice_is_cut_from_each_trace_and_counts_from_its_beginning() -> None:
    assert times(between(A, 1, 3)) == [0, 2]
    assert times(shape({"a": A}, Shape(start_s=0.5, seconds=3.5))) == [0.5, 2.5]
    assert times(shape({"a": A}, Shape(start_s=3))) == [0, 1, 5]


def test_a_limit_counts_the_whole_workload() -> None:
    assert len(shape({"a": A, "b": B}, Shape(limit=3))) == 3


# Smoothing


def test_gaps_are_smoothed_over_their_neighbours() -> None:
    assert gaps_of(A) == (1, 2, 1, 4, 0)
    assert gaps_of(A, smooth=3) == pytest.approx(
        (1 / 1.5, 2 / (4 / 3), 1 / (7 / 3), 4 / (5 / 3), 0)
    )
    assert gaps_of(trace(5, 5), smooth=3) == (0, 0)


def test_smoothing_takes_the_minutes_and_leaves_the_whole() -> None:
    slow = [float(at) for at in range(0, 200, 10)]
    fast = [200 + at / 10 for at in range(200)]
    smooth = shape({"a": trace(*slow, *fast)}, Shape(smooth=5))
    assert smooth[-1].at == pytest.approx(fast[-1], rel=0.01)
    busiest = [sum(start <= each.at < start + 22 for each in smooth) for start in range(0, 220, 22)]
    assert max(busiest) < 2 * min(busiest)


# Phases


def test_phases_take_consecutive_requests_of_their_traces_in_turn() -> None:
    found = shape(
        {"a": A, "b": B},
        Shape(phases=("a", "b", "a"), phase_s=4, rates={"a": 0.5, "b": 0.75}, skip=1, skip_phase=1),
    )
    assert [each.kind for each in found] == ["a", "a", "b", "b", "b", "a", "a"]
    # a: requests 1 and 2 with gaps of 2 and 1; b: 2, then again from its beginning; a: 3 and 4.
    assert prompts(found) == [11, 12, 12, 10, 11, 13, 14]
    assert times(found) == [0, round(4 * 2 / 3, 9), 4, 4, 6, 8, 12]


def test_another_seed_takes_other_requests() -> None:
    one = Shape(phases=("a",), phase_s=2, rates={"a": 1.0}, skip=0, skip_seed=3)
    assert prompts(shape({"a": A}, one)) == [10, 11]
    assert prompts(shape({"a": A}, attrs.evolve(one, seed=1))) == [13, 14]


def test_more_load_is_more_requests_of_the_same_phase() -> None:
    one = Shape(phases=("a",), phase_s=10, rates={"a": 1.0}, scale=0.3)
    assert len(shape({"a": A}, one)) == 3
    assert len(shape({"a": A}, attrs.evolve(one, scale=0.001))) == 1


# The mixed workload that routers are compared by, told here a second time: rows of the trace from
# a place on, as many as the rate gives, with smoothed gaps, fitted into the phase.


def plain_phase(
    rows: list[tuple[float, int, int]], rate: float, seconds: float, skip: int, start: float
) -> list[tuple[float, int, int]]:
    gaps = [after[0] - before[0] for before, after in pairwise(rows)] + [0.0]
    smooth = []
    for i, gap in enumerate(gaps):
        near = gaps[max(0, i - 50) : i + 51]
        smooth.append(gap / (sum(near) / len(near)))
    picked = [(skip + i) % len(rows) for i in range(round(rate * seconds))]
    stretch = seconds / sum(smooth[i] for i in picked)
    at, out = start, []
    for i in picked:
        out.append((at, rows[i][1], rows[i][2]))
        at += smooth[i] * stretch
    return out


def plain_mix(
    rows: dict[str, list[tuple[float, int, int]]], load: float, seed: int
) -> list[tuple[float, int, int]]:
    mix = []
    for i, kind in enumerate(PHASES):
        skip = 200 + 2000 * i + 911 * seed
        mix += plain_phase(rows[kind], load * KNEES[kind], 100.0, skip, 100.0 * i)
    return mix


def assert_same(found: tuple[Arrival, ...], wanted: list[tuple[float, int, int]]) -> None:
    assert [(each.prompt, each.output) for each in found] == [each[1:] for each in wanted]
    assert [each.at for each in found] == pytest.approx([each[0] for each in wanted], abs=1e-9)


def mix_shape(load: float, seed: int) -> Shape:
    return Shape(phases=PHASES, rates=KNEES, scale=load, seed=seed, smooth=101)


@pytest.mark.parametrize(("load", "seed"), [(0.65, 0), (1.0, 3)])
def test_the_mixed_workload_of_synthetic_traces(load: float, seed: int) -> None:
    rng = random.Random(7)
    rows, at = {}, 0.0
    for kind in KNEES:
        at, rows[kind] = 0.0, list[tuple[float, int, int]]()
        for number in range(700):
            rows[kind].append((at, rng.randint(2, 5000), 1 + number % 90))
            at += rng.expovariate(1.0) * (1 + number // 100)
    traces = {
        kind: tuple(Arrival(at=at, prompt=prompt, output=output) for at, prompt, output in each)
        for kind, each in rows.items()
    }
    assert_same(shape(traces, mix_shape(load, seed)), plain_mix(rows, load, seed))


@pytest.mark.skipif(not REAL.is_dir(), reason="the traces themselves are not part of this")
def test_the_mixed_workload_of_the_azure_traces() -> None:
    rows = {}
    for kind in KNEES:
        with (REAL / f"azure_llm_2023_{kind}.csv").open() as file:
            rows[kind] = [
                (
                    datetime.fromisoformat(row["TIMESTAMP"][:26] + "+00:00").timestamp(),
                    int(row["ContextTokens"]),
                    int(row["GeneratedTokens"]),
                )
                for row in csv.DictReader(file)
            ]
    traces = {kind: read_trace(REAL / f"azure_llm_2023_{kind}.csv").arrivals for kind in KNEES}
    assert [len(each) for each in traces.values()] == [8819, 19366]
    assert_same(shape(traces, mix_shape(0.8, 1)), plain_mix(rows, 0.8, 1))
    alone = Shape(
        phases=("conv",), phase_s=200, rates=KNEES, seed=2, skip=500, skip_seed=3000, smooth=101
    )
    wanted = plain_phase(rows["conv"], KNEES["conv"], 200.0, 6500, 0.0)
    assert_same(shape(traces, alone), wanted)


# Bursts and giants


def test_a_burst_adds_requests_of_its_time_and_moves_nothing() -> None:
    steady = trace(*range(100))
    burst = Burst(at=20, seconds=10, factor=3.5)
    found = shape({"a": steady}, Shape(bursts=(burst,)))
    assert found == shape({"a": steady}, Shape(bursts=(burst,)))
    assert {*steady} <= {*found}
    more = [each for each in found if each not in steady]
    assert 20 <= len(more) <= 30
    assert all(20 <= each.at < 30 for each in more)
    assert {each.prompt for each in more} <= set(range(30, 40))
    assert times(found) == sorted(times(found))


def test_a_burst_below_one_takes_requests_away() -> None:
    steady = trace(*range(100))
    found = shape({"a": steady}, Shape(bursts=(Burst(at=50, seconds=50, factor=0),)))
    assert found == steady[:50]
    with pytest.raises(ConfigError, match="no request is left"):
        shape({"a": steady}, Shape(bursts=(Burst(at=0, seconds=100, factor=0),)))


@given(
    st.lists(st.floats(0, 100), max_size=30),
    st.floats(0, 100),
    st.floats(0.1, 50),
    st.floats(0, 4),
    st.integers(0, 9),
)
def test_a_burst_touches_only_its_time(
    at: list[float], start: float, seconds: float, factor: float, seed: int
) -> None:
    steady = trace(*sorted(at))
    found = with_burst(steady, start=start, seconds=seconds, factor=factor, rng=random.Random(seed))

    def outside(arrivals: tuple[Arrival, ...]) -> list[Arrival]:
        return [each for each in arrivals if not start <= each.at <= start + seconds]

    within = len(steady) - len(outside(steady))
    assert outside(found) == outside(steady)
    assert [each.at for each in found] == sorted(each.at for each in found)
    assert len(found) - len(outside(found)) <= max(1, factor + 1) * within


def test_a_giant_comes_once_and_is_a_kind_of_its_own() -> None:
    found = shape({"a": A}, Shape(giants=(Giant(at=2, prompt=100_000),)))
    assert found[2] == Arrival(at=2, prompt=100_000, output=16, kind="giant")
    assert found[:2] + found[3:] == A


# What cannot be


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scale": 0}, "Shape.scale must be positive, not 0"),
        ({"scale": float("nan")}, "Shape.scale must be a finite number, not NaN"),
        ({"phase_s": -1.0}, "Shape.phase_s must be positive, not -1.0"),
        ({"seconds": 0}, "Shape.seconds must be positive, not 0"),
        ({"start_s": -1}, "Shape.start_s must be zero or positive, not -1"),
        ({"limit": 0}, "Shape.limit must be at least 1, not 0"),
        ({"smooth": 1.5}, "Shape.smooth must be an integer, not 1.5"),
        ({"seed": -1}, "Shape.seed must be zero or positive, not -1"),
        ({"rates": {"a": 0}}, 'Shape.rates["a"] must be positive requests/s, not 0'),
        ({"rates": {"c": 1}}, 'Shape.rates names a trace "c", and there are: "a", "b"'),
        ({"phases": ("a", "d")}, 'Shape.phases names a trace "d", and there are: "a", "b"'),
        (
            {"start_s": 5, "seconds": 2},
            'trace "a" is empty from 5 s on for 2 s, it ends at 8 s: change start_s or seconds',
        ),
    ],
)
def test_what_cannot_be_says_what_to_change(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        shape({"a": A, "b": B}, Shape(**options))  # type: ignore[arg-type]  # wrong on purpose
    assert caught.value.problems == (message,)


def test_no_trace_at_all() -> None:
    with pytest.raises(ConfigError, match="there is no trace to replay: give one at least"):
        shape({}, Shape())
    with pytest.raises(ConfigError, match="it has no request at all"):
        shape({"a": ()}, Shape())


def test_bursts_and_giants_are_checked_too() -> None:
    with pytest.raises(ConfigError, match=r"Burst\.seconds must be positive, not 0"):
        Burst(at=0, seconds=0, factor=2)
    with pytest.raises(ConfigError, match=r"Giant\.prompt must be at least 1, not 0"):
        Giant(at=0, prompt=0)


def test_merging_keeps_the_order_of_traces_at_one_moment() -> None:
    one, other = trace(1, kind="one"), trace(1, kind="other")
    assert [each.kind for each in merged([one, other])] == ["one", "other"]
