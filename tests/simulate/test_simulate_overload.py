"""Overload, on a small fleet: what is let in is served in time, and there is no less of it."""

from __future__ import annotations

import functools
import random
from itertools import islice

import attrs
import pytest

from narwhal.emulator import TimeModel
from narwhal.model import Terminal
from narwhal.simulate.overload import (
    Arm,
    Demand,
    Experiment,
    Figures,
    Point,
    capacity_of,
    draw_demand,
    profiles_of,
    run_overload,
    run_point,
)
from narwhal.simulate.overload.figures import figures_of
from narwhal.simulate.overload.run import Load, Outcome, run_load
from narwhal.testing import MemoryFleet

SMALL = Experiment(requests=120, prefill=1, decode=1, warm_up_s=5.0)
DECODE_BOUND = Experiment(requests=300, prefill=9, decode=1, warm_up_s=3.0)
OFF = (Arm.LOW, Arm.HIGH, Arm.MIXED)


@functools.cache
def figures(arm: Arm, load: float) -> Figures:
    return run_point(SMALL, Point(arm=arm, load=load))


def met(found: Figures, count: int) -> float:
    share = found.share(count)
    assert share is not None
    return share


@pytest.mark.parametrize("load", SMALL.loads)
def test_with_exact_profiles_what_is_let_in_is_in_time(load: float) -> None:
    found = figures(Arm.EXACT, load)
    assert met(found, found.ttft_met) >= 0.99
    assert met(found, found.tpot_met) >= 0.99
    assert not found.failed


@pytest.mark.parametrize("load", [1.0, 3.0])
@pytest.mark.parametrize("arm", OFF)
def test_nor_is_it_late_when_profiles_are_off(arm: Arm, load: float) -> None:
    found = figures(arm, load)
    assert met(found, found.ttft_met) >= 0.95
    assert met(found, found.tpot_met) >= 0.95


@pytest.mark.parametrize("arm", [Arm.EXACT, *OFF])
def test_overload_costs_nothing(arm: Arm) -> None:
    over, full = figures(arm, 3.0), figures(arm, 1.0)
    assert over.goodput >= 0.95 * full.goodput
    assert over.good_tokens_rate >= 0.8 * full.good_tokens_rate, "long prompts are turned away"
    assert over.admitted < 0.8 * over.offered, "three times what it can do is not all let in"


def test_open_admission_collapses() -> None:
    found = figures(Arm.OPEN, 3.0)
    assert found.goodput < 0.1 * figures(Arm.EXACT, 3.0).goodput
    assert met(found, found.ttft_met) < 0.1


def test_where_decode_is_the_bottleneck_tokens_are_in_time() -> None:
    assert DECODE_BOUND.capacity.bottleneck == "decode"
    found = run_point(DECODE_BOUND, Point(arm=Arm.LOW, load=3.0))
    assert met(found, found.tpot_met) >= 0.95
    assert met(found, found.ttft_met) >= 0.95
    assert found.goodput >= 0.8 * DECODE_BOUND.capacity.rate


def test_prefills_that_wait_for_a_place_are_work_ahead() -> None:
    config = SMALL.config(Arm.EXACT)
    config = attrs.evolve(config, serving=attrs.evolve(config.serving, prefill_concurrency=2))
    profiles = MemoryFleet(config).profiles
    outcome = run_load(config, load_of(3.0), profiles)
    found = summed_up(outcome, Arm.EXACT, 3.0)
    assert met(found, found.ttft_met) >= 0.99
    assert found.refused.keys() == {"projected_ttft"}


def load_of(load: float, experiment: Experiment = SMALL) -> Load:
    return Load(
        seed=experiment.seed,
        counted=experiment.demand,
        rate=load * experiment.capacity.rate,
        warm_up_s=experiment.warm_up_s,
    )


def summed_up(outcome: Outcome, arm: Arm, load: float) -> Figures:
    slo = SMALL.config(arm).slo
    seconds = load_of(load).seconds
    return figures_of(arm, load, outcome.clients, outcome.rows, slo=slo, seconds=seconds)


# What is measured


def test_what_is_counted_is_what_came_in_the_measured_time() -> None:
    load = load_of(0.7)
    outcome = run_load(SMALL.config(Arm.OPEN), load, None)
    assert len(outcome.clients) == SMALL.requests
    begin, end = load.warm_up_s, load.warm_up_s + load.seconds
    others = [row for name, row in outcome.rows.items() if name.startswith("other")]
    assert all(begin <= client.at <= end for client in outcome.clients)
    assert any(row.arrival > end for row in others), "the last ones have company"
    before = [row for row in others if row.arrival < begin]
    assert len(before) == pytest.approx(load.rate * load.warm_up_s, rel=0.4)
    for client in outcome.clients:
        row = outcome.rows[client.name]
        assert row.terminal is Terminal.COMPLETED
        assert (row.arrival, row.prompt_tokens) == (client.at, client.demand.prompt)
        assert row.completion_tokens == client.demand.answer
        assert row.max_tokens == client.demand.cap
        # The client's clock and the journal agree, as nothing lies between them here.
        assert client.first_token_s == pytest.approx(row.ttft_s)
        assert client.tpot_s == pytest.approx(row.tpot_s)


def test_figures_are_sums_over_the_clients() -> None:
    config = SMALL.config(Arm.EXACT)
    outcome = run_load(config, load_of(3.0), MemoryFleet(config).profiles)
    found = summed_up(outcome, Arm.EXACT, 3.0)
    rows = [outcome.rows[client.name] for client in outcome.clients]
    refused = [row for row in rows if row.terminal in (Terminal.REFUSED, Terminal.REJECTED)]
    in_time = [row for row in rows if row.prefill_ttft_s and row.prefill_ttft_s <= 2.0]
    assert found.admitted == len(rows) - len(refused) == found.offered - len(refused)
    assert sum(found.refused.values()) == len(refused)
    assert found.ttft_met == len(in_time)
    assert found.offered_rate == pytest.approx(3.0 * SMALL.capacity.rate)


def test_the_same_seed_gives_the_same_figures_on_any_number_of_processes() -> None:
    few = attrs.evolve(SMALL, requests=20, arms=(Arm.MIXED, Arm.OPEN), loads=(1.5,), warm_up_s=1.0)
    one, two = list(run_overload(few)), list(run_overload(few, jobs=2))
    assert one == two
    assert [(each.arm, each.load) for each in one] == [(Arm.MIXED, 1.5), (Arm.OPEN, 1.5)]
    assert list(run_overload(attrs.evolve(few, seed=1))) != one


# What it is made of


def test_prompts_and_answers_have_heavy_tails_and_enough_room() -> None:
    drawn = list(islice(draw_demand(random.Random(1)), 5000))
    for sizes in ([each.prompt for each in drawn], [each.answer for each in drawn]):
        by_size = sorted(sizes, reverse=True)
        assert sum(by_size[:500]) > 0.3 * sum(by_size), "a tenth of them is a third of the work"
    assert all(each.cap >= each.answer for each in drawn)
    assert any(each.cap > 2 * each.answer for each in drawn)


def test_capacity_is_the_rate_of_the_scarcer_phase() -> None:
    time = TimeModel(prefill=(0.0, 1e-3, 0.0), decode=(0.01, 1e-3, 1e-5))
    demand = [Demand(prompt=90, answer=20, cap=32), Demand(prompt=190, answer=20, cap=32)]
    found = capacity_of(demand, time, prefill=2, decode=1, tpot_s=0.05)
    assert found.prefill_rate == pytest.approx(2 / 0.14)
    # (100 + 200) / 2 tokens in a batch of r: 0.01 + r (0.001 + 0.0015) is 0.05 at r = 16.
    assert found.context_tokens == pytest.approx(150.0)
    assert found.seats in (15, 16)
    assert found.decode_rate == pytest.approx(found.seats / (20 * 0.05))
    assert (found.rate, found.bottleneck) == (found.prefill_rate, "prefill")
    assert found.tokens == pytest.approx(160.0)
    more = capacity_of(demand, time, prefill=4, decode=1, tpot_s=0.05)
    assert (more.rate, more.bottleneck) == (more.decode_rate, "decode")
    with pytest.raises(ValueError, match=r"no request decodes within 0.01 s"):
        capacity_of(demand, time, prefill=1, decode=1, tpot_s=0.01)


def test_profiles_are_off_as_the_arm_says() -> None:
    exact = MemoryFleet(Experiment().config(Arm.EXACT)).profiles

    def factors(arm: Arm) -> set[float]:
        changed = profiles_of(arm, exact, off=0.1, rng=random.Random(3))
        assert changed is not None
        found = set()
        for iid, profile in changed.items():
            true = exact[iid]
            for name in "abc":
                found.add(getattr(profile.prefill, name) / getattr(true.prefill, name))
            for name in ("t0", "tr", "tk"):
                found.add(getattr(profile.decode, name) / getattr(true.decode, name))
        return {round(factor, 9) for factor in found}

    assert factors(Arm.EXACT) == {1.0}
    assert factors(Arm.LOW) == {0.9}
    assert factors(Arm.HIGH) == {1.1}
    assert factors(Arm.MIXED) == {0.9, 1.1}
    assert profiles_of(Arm.OPEN, exact, off=0.1, rng=random.Random(3)) is None
