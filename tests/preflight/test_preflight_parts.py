from __future__ import annotations

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from narwhal.config import EngineSpec, FleetConfig
from narwhal.model import Role
from narwhal.preflight import Calibration, Finding, Gate, Grade, Timing
from narwhal.preflight.agreement import odd_ones
from narwhal.preflight.calibrating import LEAST_S, lengths_for, propose, quantile
from narwhal.preflight.gates import NEEDS, About
from narwhal.preflight.ledger import Ledger
from narwhal.preflight.pairs import may_have, permitted_pairs, ring_pairs, rounds
from narwhal.testing import fleet_config

specs = st.lists(st.tuples(st.sampled_from(Role), st.booleans()), min_size=1, max_size=7).map(
    lambda drawn: tuple(
        EngineSpec(iid=f"e{n}", url=f"http://e{n}:8000", role=role, pin=pin)
        for n, (role, pin) in enumerate(drawn)
    )
)


@st.composite
def fleets(draw: st.DrawFn) -> FleetConfig:
    config = fleet_config()
    controller = attrs.evolve(config.controller, advisory=draw(st.booleans()))
    return attrs.evolve(config, engines=draw(specs), controller=controller)


@given(fleets())
def test_every_pair_may_have_its_roles_and_none_is_left_out(config: FleetConfig) -> None:
    pairs = permitted_pairs(config)
    by_iid = {spec.iid: spec for spec in config.engines}
    assert len(set(pairs)) == len(pairs)
    for producer, decoder in pairs:
        assert producer != decoder
        assert may_have(config, by_iid[producer], Role.PREFILL)
        assert may_have(config, by_iid[decoder], Role.DECODE)
    for spec in config.engines:
        for other in config.engines:
            one_then_other = spec.role is Role.PREFILL and other.role is Role.DECODE
            assert not one_then_other or (spec.iid, other.iid) in pairs


@given(fleets())
def test_a_pinned_engine_is_in_its_own_part_alone(config: FleetConfig) -> None:
    pairs = permitted_pairs(config)
    pinned = {spec.iid for spec in config.engines if spec.pin and spec.role is Role.PREFILL}
    assert pinned.isdisjoint(decoder for _, decoder in pairs)


@given(fleets())
def test_a_ring_has_every_producer_and_every_decoder(config: FleetConfig) -> None:
    pairs = permitted_pairs(config)
    ring = ring_pairs(pairs)
    assert set(ring) <= set(pairs)
    assert len(set(ring)) == len(ring)
    assert {pair[0] for pair in ring} == {pair[0] for pair in pairs}
    assert {pair[1] for pair in ring} == {pair[1] for pair in pairs}
    assert len(ring) <= 2 * len(config.engines)


@given(fleets())
def test_in_a_round_each_engine_is_in_one_pair(config: FleetConfig) -> None:
    pairs = permitted_pairs(config)
    made = rounds(pairs)
    assert sorted(pair for each in made for pair in each) == sorted(pairs)
    for each in made:
        engines = [iid for pair in each for iid in pair]
        assert len(set(engines)) == len(engines)


def test_two_pools_take_as_many_rounds_as_the_larger_has_engines() -> None:
    pairs = permitted_pairs(fleet_config(prefill=4, decode=6, controller={"advisory": True}))
    assert len(pairs) == 24
    assert len(rounds(pairs)) <= 9  # 6 would do; a greedy order takes a few more


@given(st.dictionaries(st.text(max_size=3), st.integers(0, 2)))
def test_who_says_something_else_than_most_is_odd(said: dict[str, int]) -> None:
    odd = odd_ones(said)
    rest = {value for iid, value in said.items() if iid not in odd}
    assert len(rest) <= 1
    for iid, (value, usual) in odd.items():
        assert value == said[iid] != usual
        assert {usual} == rest
        same = sum(each == value for each in said.values())
        assert same <= sum(each == usual for each in said.values())


@given(st.permutations([Gate.REACH, Gate.MODEL, Gate.CONSUME]))
def test_a_ledger_gives_findings_out_in_the_order_of_gates(order: list[Gate]) -> None:
    seen: list[Finding] = []
    ledger = Ledger(seen.append)
    for gate in order:
        ledger.add([About(gate, "p0").passed("well")])
    assert [each.gate for each in seen] == order
    assert [each.gate for each in ledger.findings] == [Gate.REACH, Gate.MODEL, Gate.CONSUME]
    assert ledger.counts()[Grade.PASS] == 3


def test_only_what_failed_before_is_an_obstacle_and_only_to_that_engine() -> None:
    ledger = Ledger()
    ledger.add([About(Gate.REACH, "p0").failed("down", "up", "start it")])
    ledger.add([About(Gate.MODEL, "d0").warned("odd", "even", "look")])
    assert ledger.obstacle(Gate.RELEASE, "p0") is Gate.REACH
    assert ledger.obstacle(Gate.RELEASE, "d0") is None
    assert ledger.obstacle(Gate.SLO, "p0") is None


def test_no_gate_needs_a_later_one() -> None:
    order = list(Gate)
    for gate, needed in NEEDS.items():
        assert all(order.index(each) < order.index(gate) for each in needed)


@given(st.lists(st.floats(0, 100), min_size=1, max_size=300), st.floats(0.01, 1))
def test_a_quantile_is_one_of_the_values_with_enough_of_them_below(
    values: list[float], share: float
) -> None:
    ordered = sorted(values)
    found = quantile(ordered, share)
    assert found in ordered
    assert sum(each <= found for each in ordered) >= share * len(ordered) - 1e-9


@given(st.floats(0, 100))
def test_a_proposal_has_headroom_and_is_a_round_figure(p99: float) -> None:
    proposed = propose(p99)
    assert max(LEAST_S, 1.5 * p99) - 1e-6 <= proposed <= max(LEAST_S, 1.5 * p99) + 0.1
    assert proposed == pytest.approx(round(proposed, 1), abs=1e-9)


@given(st.integers(8, 1_000_000), st.none() | st.integers(8, 1_000_000))
def test_lengths_go_up_to_the_longest_that_fits(context: int, memory: int | None) -> None:
    lengths = lengths_for(context, memory)
    longest = min(context, memory or context) - 2
    assert lengths == tuple(sorted(set(lengths)))
    assert 1 <= lengths[0] <= lengths[-1] == longest
    assert 1 <= len(lengths) <= 5


def test_the_slowest_length_makes_the_proposal() -> None:
    timings = tuple(
        Timing(producer="p0", decoder="d0", tokens=tokens, seconds=seconds)
        for tokens, seconds in [(64, 0.1)] * 200 + [(4096, 2.0)]
    )
    calibration = Calibration(timings=timings)
    assert calibration.p99_s == 0.1
    assert calibration.proposed_s == pytest.approx(3.0)
