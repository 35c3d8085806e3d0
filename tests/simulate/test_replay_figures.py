"""What replays come to."""

from __future__ import annotations

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from narwhal.model import Terminal
from narwhal.simulate.replay.arrivals import Arrival
from narwhal.simulate.replay.figures import (
    Share,
    Times,
    figures_of,
    percentile,
    width_for,
    windows_of,
)
from narwhal.simulate.replay.results import Move, Result, Served


def served(
    at: float,
    kind: str = "a",
    *,
    terminal: Terminal = Terminal.COMPLETED,
    code: str | None = None,
    ttft: float | None = None,
    tpot: float | None = None,
    output: int = 5,
    attained: bool = False,
) -> Served:
    return Served(
        arrival=Arrival(at=at, prompt=1, output=output, kind=kind),
        terminal=terminal,
        code=code,
        first_token_s=ttft,
        tpot_s=tpot,
        attained=attained,
    )


def result(*requests: Served, seed: int = 0, moves: int = 0) -> Result:
    return Result(
        arm="x",
        seed=seed,
        requests=requests,
        samples=(),
        moves=tuple(Move(at=float(n), iid="p0", to="decode", rule="r") for n in range(moves)),
        decisions={"r/moved": moves, "idle/none": 2},
        virtual_s=10.0,
        real_s=1.0,
    )


ONE = result(
    served(0.0, ttft=0.1, tpot=0.01, attained=True),
    served(1.0, "b", terminal=Terminal.REFUSED, code="queue_full"),
    served(2.0, "b", terminal=Terminal.REJECTED),
    served(3.0, "b", ttft=0.5, tpot=0.0, output=1, attained=True),
    moves=1,
)
TWO = result(
    served(0.0, terminal=Terminal.FAILED, code="engine_lost", ttft=0.2),
    served(5.0, ttft=0.3, tpot=0.03, attained=True),
    seed=1,
    moves=2,
)


def test_seeds_are_summed_up_and_told_apart() -> None:
    found = figures_of("x", [ONE, TWO])
    assert found.seeds == (0, 1)
    assert found.all == Share(offered=6, attained=3)
    assert found.kinds == {"a": Share(offered=3, attained=2), "b": Share(offered=3, attained=1)}
    assert found.by_seed == {0: Share(offered=4, attained=2), 1: Share(offered=2, attained=1)}
    assert found.refused == {"queue_full": 1, "rejected": 1}
    assert found.failed == {"engine_lost": 1}
    assert found.ttft == Times(p50=0.2, p99=0.5)
    # A single token has no interval, and 0 would be no time that anything took.
    assert found.tpot == Times(p50=0.01, p99=0.03)
    assert (found.moves, found.virtual_s, found.real_s) == (3, 20.0, 2.0)
    assert found.decisions == {"idle/none": 4, "r/moved": 3}
    assert found.worst_kind == pytest.approx(1 / 3)


def test_nothing_has_no_share_and_no_time() -> None:
    found = figures_of("x", [result()])
    assert found.all.fraction is None
    assert found.worst_kind is None
    assert found.ttft == found.tpot == Times(p50=None, p99=None)
    assert windows_of(result(), 1.0) == ()
    assert width_for([]) == width_for([result()]) == 1.0


def test_windows_are_by_arrival_and_none_is_left_out() -> None:
    first, empty, last = windows_of(
        attrs.evolve(ONE, requests=(*ONE.requests[:2], *TWO.requests[1:])), 2.0
    )
    assert (first.at, empty.at, last.at) == (0.0, 2.0, 4.0)
    assert first.all == Share(offered=2, attained=1)
    assert first.kinds == {"a": Share(offered=1, attained=1), "b": Share(offered=1, attained=0)}
    assert first.refused == {"queue_full": 1}
    assert empty.all == Share(offered=0, attained=0)
    assert (empty.kinds, empty.refused) == ({}, {})
    assert last.kinds == {"a": Share(offered=1, attained=1)}


@pytest.mark.parametrize(
    ("seconds", "width"), [(45.0, 1.0), (46.0, 2.0), (400.0, 10.0), (3600.0, 120.0), (1e6, 25200.0)]
)
def test_windows_are_round_and_not_too_many(seconds: float, width: float) -> None:
    assert width_for([result(served(0.0)), result(served(seconds))]) == width


@given(st.lists(st.floats(0, 100), min_size=1, max_size=300), st.floats(0.01, 1.0))
def test_a_percentile_is_the_least_value_that_enough_are_not_above(
    values: list[float], share: float
) -> None:
    found = percentile(values, share)
    assert found in values
    enough = share * len(values) - 1e-6
    assert sum(value <= found for value in values) >= enough
    assert sum(value < found for value in values) < share * len(values) + 1e-6


def test_known_percentiles() -> None:
    hundred = [float(n) for n in range(1, 101)]
    assert (percentile(hundred, 0.5), percentile(hundred, 0.99)) == (50.0, 99.0)
    assert percentile([], 0.5) is None
