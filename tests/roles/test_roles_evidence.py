"""Section 7.6: what has to be known before decode gives an engine away."""

from __future__ import annotations

from typing import Any

import pytest
from role_scenes import DECODE_HEAVY, PREFILL_HEAVY, Demand, Scene, controller_of, gates

from narwhal.roles import Estimate, Gate, Risk, Rule, Verdict
from narwhal.roles.evidence import rising

SPANS = {"evidence_span_s": 60.0, "evidence_max_span_s": 120.0, "evidence_min_arrivals": 10}
AT_ONCE: dict[str, Any] = {
    "thresholds": {"sustained_intervals": 1},
    "reactive": {"confirmations": 1},
}


@pytest.mark.parametrize(
    ("arrivals", "elapsed", "closed"),
    [
        pytest.param(10, 59.9, False, id="7.6 arrivals enough, too early"),
        pytest.param(10, 60.0, True, id="7.6 span and arrivals"),
        pytest.param(9, 60.0, False, id="7.6 too few arrivals"),
        pytest.param(9, 119.9, False, id="7.6 sparse, not long enough"),
        pytest.param(0, 120.0, True, id="7.6 sparse traffic has to do"),
    ],
)
def test_76_the_window_closes_either_way(arrivals: int, elapsed: float, closed: bool) -> None:
    evidence = controller_of(reactive=SPANS).evidence
    assert not evidence.state(100.0).closed
    for _ in range(arrivals):
        evidence.arrived(100.0)
    state = evidence.state(100.0 + elapsed)
    assert (state.closed, state.arrivals) == (closed, arrivals)
    assert state.elapsed_s == pytest.approx(elapsed)


def test_76_a_risk_opens_it_again_and_arrivals_count_from_there() -> None:
    evidence = controller_of(reactive=SPANS).evidence
    for _ in range(20):
        evidence.arrived(0.0)
    assert evidence.state(60.0).closed
    evidence.reset(Risk.FIRST_TOKEN, 60.0)
    state = evidence.state(100.0)
    assert (state.closed, state.arrivals, state.elapsed_s) == (False, 0, 40.0)
    assert state.last_risk is Risk.FIRST_TOKEN
    assert not evidence.state(179.9).closed
    assert evidence.state(180.0).closed


def test_76_a_window_goes_on_where_an_earlier_router_left_it() -> None:
    evidence = controller_of(reactive=SPANS).evidence
    evidence.restore(110.0, 1000.0, Risk.TOWARD_DECODE)
    assert not evidence.state(1009.0).closed
    assert evidence.state(1010.0).closed
    assert evidence.last_risk is Risk.TOWARD_DECODE


def test_76_decode_gives_nothing_away_before_the_window_has_closed() -> None:
    scene = Scene(2, 2, demand=PREFILL_HEAVY, **AT_ONCE)
    decisions = scene.run(61)
    assert gates(decisions) == ["few_arrivals", "evidence", "none"]
    assert decisions[-1].at == 60.0


def test_76_a_late_first_token_begins_the_wait_anew() -> None:
    scene = Scene(2, 2, demand=PREFILL_HEAVY, **AT_ONCE)
    scene.run(58)
    scene.controller.first_token_late(57.5)
    assert [at for at, _, _ in scene.moves(80)] == [120.0]


def test_76_a_move_toward_decode_begins_the_wait_anew() -> None:
    scene = Scene(3, 2, demand=DECODE_HEAVY, min_prefill=2, **AT_ONCE)
    assert [rule for _, _, rule in scene.moves(11)] == ["toward_decode"]
    state = scene.controller.evidence.state(scene.now)
    assert (state.last_risk, state.elapsed_s) == (Risk.TOWARD_DECODE, scene.now - 5.0)


def test_76_so_does_a_restored_decode_floor_but_no_move_toward_prefill() -> None:
    scene = Scene(2, 1)
    scene.set("d0", live=False)
    assert scene.one_pass().rule is Rule.DECODE_FLOOR
    assert scene.controller.evidence.last_risk is Risk.TOWARD_DECODE
    scene = Scene(1, 2)
    scene.set("p0", live=False)
    assert scene.one_pass().rule is Rule.PREFILL_FLOOR
    assert scene.controller.evidence.last_risk is None


def test_76_moves_toward_decode_need_no_evidence() -> None:
    scene = Scene(2, 2, demand=DECODE_HEAVY, **AT_ONCE)
    (move,) = (each for each in scene.run(6) if each.verdict is Verdict.MOVED)
    assert move.evidence is not None
    assert not move.evidence.closed


def test_76_refused_offers_are_evidence_too() -> None:
    """Those of unknown size as well: they came."""
    controller = controller_of(reactive=SPANS)
    for _ in range(5):
        controller.offered(100, 10, 0.0)
        controller.unsized(0.0)
    assert controller.evidence.state(60.0).closed


@pytest.mark.parametrize(
    ("arrivals", "short", "long", "tolerance", "rises"),
    [
        pytest.param(10, 126.0, 100.0, 0.25, True, id="7.6 above the tolerance"),
        pytest.param(10, 125.0, 100.0, 0.25, False, id="7.6 at the tolerance"),
        pytest.param(9, 500.0, 100.0, 0.25, False, id="7.6 too few to tell"),
        pytest.param(10, 100.0, 100.0, 0.0, False, id="7.6 no tolerance, no rise"),
        pytest.param(10, 100.1, 100.0, 0.0, True, id="7.6 no tolerance"),
        pytest.param(10, 50.0, 100.0, 0.25, False, id="7.6 a fall is no rise"),
    ],
)
def test_76_rising(arrivals: int, short: float, long: float, tolerance: float, rises: bool) -> None:
    settings = controller_of(reactive={"demand_rise_tolerance": tolerance})._settings
    now = Estimate(arrivals=arrivals, tokens=short)
    before = Estimate(arrivals=100, tokens=long)
    assert rising(now, before, settings) is rises


def test_76_decode_keeps_its_engines_while_its_demand_rises() -> None:
    """Answers grow from 10 tokens to 40: for some time the last minute lies above the last two."""
    scene = Scene(2, 2, demand=PREFILL_HEAVY, thresholds={"sustained_intervals": 40})
    scene.run(121)
    scene.demand = Demand(3, 600, 40)
    found = gates(scene.run(150))
    assert found == ["confirming", "rising", "confirming"]


def test_76_the_larger_estimate_is_what_decode_must_bear() -> None:
    """The last minute asked for more than the last two, within the tolerance."""
    scene = Scene(
        2,
        2,
        demand=PREFILL_HEAVY,
        thresholds={"sustained_intervals": 1000},
        reactive={"demand_rise_tolerance": 10.0},
    )
    scene.run(121)
    scene.demand = Demand(3, 600, 40)
    decision = scene.run(60)[-1]
    short, long = scene.controller.estimates(decision.at)
    assert short.tokens > 1.2 * long.tokens
    assert decision.then is not None
    # Little's law with the short horizon's tokens on the one engine that is left.
    slope = 0.002 + 1e-6 * long.context
    assert decision.then.requests > long.tokens * 0.02 / (1.0 - long.tokens * slope)
    slope = 0.002 + 1e-6 * short.context
    expected = short.tokens * 0.02 / (1.0 - short.tokens * slope)
    assert decision.then.requests == pytest.approx(expected)


def test_76_resident_and_pending_decodes_count() -> None:
    scene = Scene(2, 2, demand=PREFILL_HEAVY)
    scene.run(31)
    before = scene.controller.last_evaluated
    scene.set("d0", decodes=3, kv_tokens=300.0)
    scene.waiting = {"pending": 4, "pending_tokens": 400.0}
    scene.run(5)
    after = scene.controller.last_evaluated
    assert before is not None
    assert after is not None
    assert before.then is not None
    assert after.then is not None
    assert after.then.requests == pytest.approx(before.then.requests + 7, rel=0.02)
    assert after.then.kv_tokens >= 700.0


def test_76_the_gate_that_holds_a_move_is_told() -> None:
    scene = Scene(2, 2, demand=PREFILL_HEAVY)
    scene.run(11)
    last = scene.controller.last
    assert last is not None
    assert last.gate is Gate.EVIDENCE
    assert "held by evidence" in last.reason
    assert "2P2D: consolidation" in last.reason
