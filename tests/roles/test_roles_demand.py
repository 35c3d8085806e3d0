"""Section 7.7: how demand is estimated, when it is looked at, and how profiles are corrected."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
from role_scenes import (
    DECODE_HEAVY,
    EVEN,
    PREFILL_HEAVY,
    PROFILE,
    Demand,
    Scene,
    controller_of,
)

from narwhal.model import Role
from narwhal.profiles import Range
from narwhal.roles import Gate, Verdict
from narwhal.roles.demand import BUCKETS, DemandHistory, prefill_price

SOON: dict[str, Any] = {
    "thresholds": {"sustained_intervals": 1},
    "reactive": {"confirmations": 1, "evidence_span_s": 10.0, "evidence_max_span_s": 10.0},
}


def history(window_s: float = 120.0) -> DemandHistory:
    return DemandHistory(window_s, PROFILE)


def test_an_estimate_is_of_rates_and_of_a_mean_request() -> None:
    demand = history()
    for second in range(60):
        demand.offered(600, 100, float(second))
        demand.offered(200, 20, float(second))
    found = demand.over(120.0, 60.0)
    assert (found.span_s, found.arrivals, found.complete) == (60.0, 120, True)
    assert found.prefill == pytest.approx(0.8)
    assert found.service_s == pytest.approx(0.4)
    assert found.tokens == pytest.approx(120.0)
    # Over the tokens, of which the long answers have more.
    assert found.context == pytest.approx((100 * 650 + 20 * 210) / 120)


def test_unsized_offers_count_as_the_mean_of_the_others_and_make_it_incomplete() -> None:
    demand = history()
    demand.begin(0.0)
    demand.offered(600, 100, 1.0)
    demand.unsized(1.0)
    demand.unsized(1.0)
    found = demand.over(120.0, 10.0)
    assert (found.arrivals, found.unsized, found.complete) == (3, 2, False)
    assert found.prefill == pytest.approx(3 * 0.6 / 10)
    assert found.tokens == pytest.approx(30.0)
    assert found.service_s == pytest.approx(0.6)


def test_only_unsized_offers_price_nothing() -> None:
    demand = history()
    demand.begin(0.0)
    demand.unsized(1.0)
    found = demand.over(120.0, 10.0)
    assert (found.arrivals, found.prefill, found.tokens) == (1, 0.0, 0.0)


def test_a_prompt_beyond_what_was_measured_makes_it_incomplete() -> None:
    short = attrs.evolve(PROFILE, prefill=attrs.evolve(PROFILE.prefill, tokens=Range(1, 1000)))
    demand = DemandHistory(120.0, short)
    demand.begin(0.0)
    demand.offered(1000, 10, 1.0)
    assert demand.over(120.0, 10.0).complete
    demand.offered(1001, 10, 1.0)
    found = demand.over(120.0, 10.0)
    assert (found.overflow, found.complete) == (1, False)


@pytest.mark.parametrize("known", ["memory", "measurements"])
def test_what_no_engine_can_hold_is_no_work(known: str) -> None:
    if known == "memory":
        profile = attrs.evolve(PROFILE, kv_capacity_tokens=5120)
    else:
        decode = attrs.evolve(PROFILE.decode, kv_tokens=Range(1, 320))
        profile = attrs.evolve(PROFILE, decode=decode, kv_capacity_tokens=None)
    demand = DemandHistory(120.0, profile)
    demand.begin(0.0)
    demand.offered(600, 100, 1.0)
    demand.offered(600, 4520, 1.0)
    before = demand.over(120.0, 10.0)
    assert before.complete
    demand.offered(600, 4521, 1.0)
    demand.offered(600, 2**31 - 1, 1.0)
    found = demand.over(120.0, 10.0)
    assert (found.arrivals, found.unsized, found.complete) == (4, 2, False)
    assert found.tokens == pytest.approx(2 * before.tokens), "they count as the mean of the others"
    assert found.context == before.context


def test_beyond_it_a_prompt_costs_at_least_its_share_of_the_longest() -> None:
    curve = attrs.evolve(PROFILE.prefill, b=0.0, c=1.0, tokens=Range(1, 1000))
    flat = attrs.evolve(PROFILE, prefill=curve)
    assert prefill_price(flat, 1000) == 1.0
    assert prefill_price(flat, 2500) == 2.5


def test_nothing_offered_is_no_demand() -> None:
    found = history().over(120.0, 10.0)
    assert (found.arrivals, found.tokens, found.complete) == (0, 0.0, False)


def test_what_lies_behind_the_window_is_forgotten_and_buckets_are_bounded() -> None:
    demand = history()
    for eighth in range(8 * 1000):
        demand.offered(100, 10, eighth / 8)
        assert len(demand._buckets) <= BUCKETS + 1
    assert demand.over(120.0, 1000.0).tokens == pytest.approx(80.0, rel=0.02)
    assert demand.over(120.0, 2000.0).arrivals == 0
    assert not demand._buckets


@pytest.mark.parametrize(
    ("least", "gate"),
    [
        pytest.param(33, Gate.EVIDENCE, id="7.7 enough arrivals"),
        pytest.param(34, Gate.FEW_ARRIVALS, id="7.7 one too few"),
    ],
)
def test_77_min_arrivals(least: int, gate: Gate) -> None:
    """Three a second, eleven times."""
    scene = Scene(2, 2, demand=PREFILL_HEAVY, reactive={"min_arrivals": least})
    assert scene.run(11)[-1].gate is gate


@pytest.mark.parametrize(
    ("floor", "gate"),
    [
        # 0.44 prefill seconds a second, and some 2.5 decodes where 72 have room.
        pytest.param(0.4, Gate.MARGIN, id="7.7 enough work"),
        pytest.param(0.6, Gate.WEAK_DEMAND, id="7.7 too little work"),
    ],
)
def test_77_demand_floor(floor: float, gate: Gate) -> None:
    scene = Scene(2, 2, demand=EVEN, reactive={"demand_floor": floor})
    assert scene.run(11)[-1].gate is gate


@pytest.mark.parametrize(("step_s", "at"), [(5.0, [0, 5, 10, 15]), (2.0, list(range(0, 20, 2)))])
def test_77_step(step_s: float, at: list[int]) -> None:
    scene = Scene(2, 2, demand=EVEN, reactive={"step_s": step_s})
    assert [each.at for each in scene.run(20)] == at


def test_77_passes_that_come_a_little_early_wait_for_no_other() -> None:
    scene = Scene(2, 2, demand=EVEN)
    scene.one_pass()
    scene.now = 4.99995
    assert scene.one_pass().gate is not Gate.NOT_DUE


# The extra evaluation


def breach_by_refusal(scene: Scene) -> None:
    scene.controller.breached()


def breach_by_backlog(scene: Scene) -> None:
    scene.waiting = {"waiting_s": 4.1}


@pytest.mark.parametrize("breach", [breach_by_refusal, breach_by_backlog])
def test_77_a_projected_breach_is_looked_at_once_between_two_steps(breach: Any) -> None:
    scene = Scene(2, 2, demand=EVEN)
    scene.run(1)
    seen = []
    for _ in range(12):
        breach(scene)
        seen += [each.at for each in scene.run(1)]
    assert seen == [1.0, 5.0, 6.0, 10.0, 11.0]


def test_77_no_breach_at_the_target_itself() -> None:
    scene = Scene(2, 2, demand=EVEN)
    scene.waiting = {"waiting_s": 4.0}
    assert [each.at for each in scene.run(10)] == [0.0, 5.0]


def test_77_the_extra_evaluation_moves_nothing_toward_decode() -> None:
    scene = Scene(2, 2, demand=DECODE_HEAVY, **SOON)
    scene.set("p0", "p1", pinned=True)
    scene.run(6)
    scene.controller.breached()
    (extra,) = scene.run(1)
    assert extra.then is not None
    assert (str(extra.then.split), extra.gate) == ("3P1D", Gate.MARGIN)


def test_77_the_extra_evaluation_is_guarded_like_any_other() -> None:
    scene = Scene(2, 2, demand=PREFILL_HEAVY, **SOON)
    scene.run(6)
    scene.controller.breached()
    (extra,) = scene.run(1)
    assert (extra.to, extra.gate) == (Role.PREFILL, Gate.EVIDENCE)
    scene = Scene(2, 2, demand=PREFILL_HEAVY, **{**SOON, "min_decode": 2})
    scene.run(11)
    scene.controller.breached()
    assert scene.run(1)[0].gate is Gate.FLOOR


def test_77_it_may_move_an_engine_before_the_next_step() -> None:
    scene = Scene(2, 2, demand=PREFILL_HEAVY, **SOON)
    scene.run(6)
    scene.demand = attrs.evolve(PREFILL_HEAVY, rate=4)
    scene.run(3)
    scene.now = 10.5
    scene.controller._evaluated_at = 10.0
    scene.controller.breached()
    (extra,) = scene.run(1)
    assert (extra.verdict, extra.at) == (Verdict.MOVED, 10.5)


# The correction


@pytest.mark.parametrize(
    ("windows", "factor"),
    [
        pytest.param([], 1.0, id="7.7 nothing seen"),
        pytest.param([(12.0, 8.0)], 1.1, id="7.7 a fifth of the way"),
        pytest.param([(12.0, 8.0), (12.0, 8.0)], 1.18, id="7.7 a fifth of what is left"),
        pytest.param([(10.5, 7.0)], 1.0, id="7.7 too few gaps"),
        pytest.param([(6.0, 4.0), (6.0, 4.0)], 1.1, id="7.7 they add up"),
        pytest.param([(800.0, 8.0)], 1.2, id="7.7 what is seen is bounded above"),
        pytest.param([(0.0, 8.0)], 0.9, id="7.7 and below"),
        pytest.param([(800.0, 8.0)] * 99, 2.0, id="7.7 the most"),
        pytest.param([(0.0, 8.0)] * 99, 0.5, id="7.7 the least"),
        pytest.param([(0.0, 0.0)] * 9, 1.0, id="7.7 an idle engine"),
    ],
)
def test_77_correction(windows: list[tuple[float, float]], factor: float) -> None:
    corrections = controller_of().corrections
    for taken, gaps in windows:
        corrections.observe("d0", taken, gaps)
    assert corrections.of("d0") == pytest.approx(factor)
    assert corrections.of("d1") == 1.0


@pytest.mark.parametrize(
    ("settings", "factor"),
    [
        ({"decode_correction_alpha": 1.0}, 1.5),
        ({"decode_correction_min_samples": 9}, 1.0),
        ({"decode_correction_max": 1.25, "decode_correction_alpha": 1.0}, 1.25),
        ({"decode_correction_min": 1.2, "decode_correction_alpha": 0.001}, 1.2003),
    ],
)
def test_77_correction_settings(settings: dict[str, float], factor: float) -> None:
    corrections = controller_of(reactive=settings).corrections
    corrections.observe("d0", 12.0, 8.0)
    assert corrections.of("d0") == pytest.approx(factor)


def test_another_process_is_not_what_the_old_one_was() -> None:
    controller = controller_of()
    for _ in range(9):
        controller.corrections.observe("d0", 12.0, 8.0)
    controller.corrections.observe("d0", 12.0, 7.0)
    controller.restarted("d0")
    controller.corrections.observe("d0", 0.0, 7.0)
    assert controller.corrections.of("d0") == 1.0


def test_slow_engines_make_decode_dearer() -> None:
    """What two decode engines bear as profiled, they do not at twice the interval."""
    scene = Scene(2, 2, demand=Demand(2, 50, 200), thresholds={"shrink": 0.9})
    scene.run(11)
    before = scene.controller.last_evaluated
    for iid in scene.engines:
        scene.controller.corrections._factors[iid] = 2.0
    scene.run(5)
    after = scene.controller.last_evaluated
    assert before is not None
    assert after is not None
    assert before.now is not None
    assert after.now is not None
    assert after.now.decode > 1.9 * before.now.decode
