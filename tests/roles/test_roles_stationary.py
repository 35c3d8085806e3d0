"""Demand that only its own chance moves: role control lets it; and demand that does alternate.

Everything is virtual, from one seed to the next. The fleet has eight engines and ten requests a
second: what a window of 20 s holds then varies by some 8 %. One with fewer and longer requests sees
more of that chance.
"""

from __future__ import annotations

import pytest
from role_fleet_sim import FleetSim, Mix

SETTLED_S = 300.0
HOUR_S = 3600
ALTERNATING = (Mix(9.0, 300, 20), Mix(9.0, 33, 110))
"""4P4D is at 0.84 of prefill and hardly decodes, then the other way round."""


def mix(load: float) -> Mix:
    """Prefill and decode of 4P4D at some 0.65 of what each bears, if `load` is 1."""
    return Mix(10.4 * load, 200, 98)


SPARSE = Mix(2.6, 600, 295)
"""A window of 20 s holds 52 of these, which vary by some 18 %."""


def late_moves(preset: str, demand: Mix, seed: int, *, engines: int = 8) -> int:
    """Moves of an hour, but for the beginning."""
    sim = FleetSim(preset, seed, engines=engines)
    sim.run(demand, HOUR_S)
    return sum(each.at > SETTLED_S for each in sim.flips)


@pytest.mark.parametrize("preset", ["reference", "responsive"])
def test_at_moderate_load_nothing_moves_once_it_has_settled(preset: str) -> None:
    assert [late_moves(preset, mix(1.0), seed) for seed in range(20)] == [0] * 20


@pytest.mark.parametrize("preset", ["reference", "responsive"])
@pytest.mark.parametrize("load", [0.7, 1.1])
def test_at_other_loads_it_moves_twice_an_hour_at_most(preset: str, load: float) -> None:
    assert late_moves(preset, mix(load), seed=1) <= 2


def test_few_requests_are_not_taken_for_a_trend() -> None:
    moves = [late_moves("responsive", SPARSE, seed, engines=6) for seed in range(5)]
    assert max(moves) <= 4
    assert sum(moves) <= 10


def test_close_to_saturation_the_reference_keeps_still_and_responsive_is_bounded() -> None:
    """Beyond `content_below` responsive follows demand's chance, there and back."""
    assert late_moves("reference", mix(1.3), seed=1) <= 2
    assert late_moves("responsive", mix(1.3), seed=1) <= 30


@pytest.mark.parametrize("preset", ["reference", "responsive"])
@pytest.mark.parametrize("seed", range(3))
def test_alternating_demand_is_followed_with_four_moves_a_phase_at_most(
    preset: str, seed: int
) -> None:
    sim, moves = FleetSim(preset, seed), []
    for phase in range(12):
        before = len(sim.flips)
        sim.run(ALTERNATING[phase % 2], 100)
        moves.append(len(sim.flips) - before)
    assert max(moves) <= 4
    assert sum(moves) > 0
