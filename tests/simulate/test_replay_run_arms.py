"""Replays of one fleet under other orders."""

from __future__ import annotations

import pytest
from replay_fleets import fleet, profile, replay, steady

from narwhal.model import Role, Terminal
from narwhal.simulate.replay import arms
from narwhal.simulate.replay.arrivals import Arrival
from narwhal.simulate.replay.run import run_replay


def test_a_split_gives_the_first_engines_to_prefill_and_pins_them() -> None:
    config = arms.pinned(fleet(1, 3), 3)
    assert [spec.role for spec in config.engines] == [Role.PREFILL] * 3 + [Role.DECODE]
    assert all(spec.pin for spec in config.engines)
    assert arms.split_name(config, 3) == "3P1D"


def test_a_start_is_a_split_that_may_be_left() -> None:
    config = arms.start_at(fleet(1, 3), 2)
    assert [spec.role for spec in config.engines] == [Role.PREFILL] * 2 + [Role.DECODE] * 2
    assert not any(spec.pin for spec in config.engines)


@pytest.mark.parametrize("split", [0, 4])
def test_a_split_leaves_both_roles_an_engine(split: int) -> None:
    with pytest.raises(ValueError, match=f"1 to 3 of them to prefill, not {split}"):
        arms.pinned(fleet(1, 3), split)


def test_no_pool_starts_below_its_floor() -> None:
    config = arms.pinned(fleet(4, 4, controller={"min_prefill": 3, "min_decode": 3}), 1)
    assert (config.controller.min_prefill, config.controller.min_decode) == (1, 3)


def test_advice_only() -> None:
    config = arms.advisory(fleet())
    assert config.controller.advisory


def test_an_aggregated_fleet_runs_both_phases_on_each_engine() -> None:
    config = arms.aggregated(fleet(1, 1))
    result = run_replay(replay(config, steady(40, every_s=0.2, output=10), arm="aggregated"))
    assert {served.terminal for served in result.requests} == {Terminal.COMPLETED}
    assert all(served.attained for served in result.requests)
    assert {(sample.prefill, sample.decode) for sample in result.samples} == {(2, 2)}


def test_phases_that_meet_on_an_engine_slow_each_other() -> None:
    config = arms.aggregated(fleet(1, 1))
    # Two on each engine: the second prompt's chunks are in the first one's way.
    arrivals = [Arrival(at=at, prompt=400, output=60) for at in (0.0, 0.0, 0.5, 0.5)]
    slowed = run_replay(replay(config, arrivals, chunk_tokens=40))
    beside = run_replay(replay(config, arrivals, chunk_tokens=None))
    assert [served.tpot_s for served in beside.requests] == pytest.approx([0.01] * 4)
    first = slowed.requests[0]
    # Eight of its 60 tokens came with 40 ms of a chunk each, or thereabouts.
    assert first.tpot_s is not None
    assert 0.013 < first.tpot_s < 0.02
    # The later prompts wait for a step of 10 ms with each of ten chunks.
    assert slowed.requests[2].first_token_s == pytest.approx(0.4 + 10 * 0.01, abs=0.011)


def test_more_prefill_engines_serve_more_prompts() -> None:
    arrivals = steady(80, every_s=0.1, prompt=300, output=20)
    shares = []
    for split in (1, 3):
        result = run_replay(replay(arms.pinned(fleet(2, 2), split), arrivals, ttft_s=1.1))
        shares.append(sum(served.attained for served in result.requests))
    assert shares[0] < 60
    assert shares[1] == 80


def test_wrong_profiles_let_in_what_is_late_and_more_are_refused_when_they_are_too_high() -> None:
    config = fleet(serving={"admission": "predictive"})
    arrivals = steady(60, every_s=0.25, prompt=500)

    def terminals(token: float) -> list[Terminal]:
        believed = {spec.iid: profile(token=token) for spec in config.engines}
        result = run_replay(replay(config, arrivals, believed=believed))
        return [served.terminal for served in result.requests]

    exact, high = terminals(0.001), terminals(0.0019)
    assert high.count(Terminal.COMPLETED) < exact.count(Terminal.COMPLETED)
