"""What holds of every decision, whatever fleet and demand there are."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from role_scenes import PROFILE, Demand, Scene, controller_of

from narwhal.config import Reactive
from narwhal.model import Role
from narwhal.profiles import Range
from narwhal.roles import Decision, Gate, Rule, Snapshot, Verdict
from narwhal.roles.confirmations import Confirmations
from narwhal.roles.correction import Corrections
from narwhal.roles.demand import BUCKETS, DemandHistory, prefill_price
from narwhal.roles.evidence import Evidence, Risk

FLOORS = {Rule.DECODE_FLOOR, Rule.PREFILL_FLOOR}

demands = st.builds(
    Demand,
    rate=st.integers(0, 8),
    prompt=st.sampled_from([1, 50, 600, 2000]),
    output=st.sampled_from([1, 20, 200, 500]),
)
engine_changes = st.fixed_dictionaries(
    {},
    optional={
        "live": st.sampled_from([True, True, True, False]),
        "pinned": st.booleans(),
        "prefill_s": st.sampled_from([0.0, 0.5, 5.0]),
        "decodes": st.sampled_from([0, 1, 40]),
        "kv_tokens": st.sampled_from([0.0, 500.0, 50_000.0]),
    },
)
phases = st.tuples(demands, st.integers(1, 40), st.dictionaries(st.integers(0, 5), engine_changes))
controllers = st.fixed_dictionaries(
    {
        "preset": st.sampled_from(["reference", "responsive"]),
        "min_prefill": st.integers(1, 2),
        "min_decode": st.integers(1, 2),
        "flip_history": st.integers(1, 3),
        "thresholds": st.fixed_dictionaries(
            {
                "sustained_intervals": st.integers(1, 3),
                "dwell_s": st.sampled_from([0.0, 10.0]),
                "panic_ratio": st.sampled_from([0.0, 1.0]),
            }
        ),
        "reactive": st.fixed_dictionaries(
            {
                "movement_margin": st.sampled_from([0.0, 0.05, 0.3]),
                "min_arrivals": st.integers(1, 10),
                "evidence_span_s": st.just(5.0),
                "evidence_max_span_s": st.just(10.0),
                "demand_floor": st.sampled_from([0.01, 0.5]),
            }
        ),
    }
)
stories = st.lists(phases, min_size=1, max_size=4)


def played(
    controller: dict[str, Any], story: list[Any], check: Any = lambda scene, before, decision: None
) -> tuple[list[Decision], Scene]:
    scene = Scene(3, 3, **controller)
    iids, decisions = list(scene.engines), []
    for demand, seconds, changes in story:
        scene.demand = demand
        for index, change in changes.items():
            scene.set(iids[index], **change)
        for _ in range(seconds):
            before = scene.snapshot()
            decisions.append(scene.one_pass())
            check(scene, before, decisions[-1])
    return decisions, scene


def keeps_the_rules(scene: Scene, before: Snapshot, decision: Decision) -> None:
    settings_of = scene.controller._controller
    if decision.verdict is not Verdict.MOVED:
        assert scene.snapshot() == before
        return
    after = scene.snapshot().split
    assert after == decision.proposed
    assert (before.split, decision.gate) == (decision.split, Gate.NONE)
    moved = next(each for each in before.engines if each.iid == decision.iid)
    assert moved.live
    assert not moved.pinned
    # Whoever gives keeps its floor, by whatever rule.
    giving = Role.PREFILL if decision.to is Role.DECODE else Role.DECODE
    least = {Role.PREFILL: settings_of.min_prefill, Role.DECODE: settings_of.min_decode}
    assert after.of(giving) >= least[giving]
    if decision.rule in FLOORS:
        return
    assert after.prefill >= settings_of.min_prefill
    assert after.decode >= settings_of.min_decode
    assert decision.now is not None
    assert decision.then is not None
    assert decision.then.worst < decision.now.worst
    margin = settings_of.reactive.movement_margin
    assert decision.then.worst <= decision.now.worst * (1 - margin)
    if decision.to is Role.PREFILL:
        assert decision.evidence is not None
        assert decision.evidence.closed


@given(controllers, stories)
@settings(max_examples=60, deadline=None)
def test_no_decision_breaks_a_floor_a_pin_a_margin_or_its_evidence(
    controller: dict[str, Any], story: list[Any]
) -> None:
    decisions, scene = played(controller, story, keeps_the_rules)
    flips = scene.controller.flips
    assert len(flips) <= controller["flip_history"]
    moves = [(each.at, each.iid) for each in decisions if each.verdict is Verdict.MOVED]
    assert [(each.at, each.iid) for each in flips] == moves[-controller["flip_history"] :]


@given(controllers, stories)
@settings(max_examples=25, deadline=None)
def test_advisory_never_moves_and_the_same_calls_give_the_same(
    controller: dict[str, Any], story: list[Any]
) -> None:
    decisions, scene = played({**controller, "advisory": True}, story)
    assert not any(each.verdict is Verdict.MOVED for each in decisions)
    assert scene.roles == "p0 p1 p2 | d0 d1 d2"
    assert not scene.controller.flips
    assert played({**controller, "advisory": True}, story)[0] == decisions


@given(controllers, stories, st.randoms(use_true_random=False))
@settings(max_examples=25, deadline=None)
def test_the_order_of_engines_makes_no_difference(
    controller: dict[str, Any], story: list[Any], random: Any
) -> None:
    class Shuffled(Scene):
        def snapshot(self) -> Snapshot:
            engines = list(self.engines.values())
            random.shuffle(engines)
            return Snapshot(engines=tuple(engines), **self.waiting)

    one, other = Scene(3, 3, **controller), Shuffled(3, 3, **controller)
    for demand, seconds, changes in story:
        for scene in (one, other):
            scene.demand = demand
            for index, change in changes.items():
                scene.set(list(scene.engines)[index], **change)
        assert one.run(seconds) == other.run(seconds)


# Demand

offers = st.lists(
    st.tuples(
        st.sampled_from([0.0, 0.01, 0.5, 1.0, 7.0, 130.0]),
        st.none() | st.tuples(st.integers(1, 4000), st.integers(1, 500)),
    ),
    max_size=150,
)


@given(offers)
@settings(max_examples=60)
def test_the_window_holds_what_was_offered_in_it_once_each_and_no_more_buckets(
    made: list[tuple[float, tuple[int, int] | None]],
) -> None:
    demand, now, log = DemandHistory(120.0, PROFILE), 0.0, []
    demand.begin(now)
    for gap, size in made:
        now += gap
        log.append((now, size))
        if size is None:
            demand.unsized(now)
        else:
            demand.offered(*size, now)
        assert len(demand._buckets) <= BUCKETS + 1
    found = demand.over(120.0, now)
    # The oldest bucket may reach a second beyond the window.
    surely = [size for at, size in log if at > now - 120.0]
    perhaps = [size for at, size in log if at > now - 121.0]
    assert len(surely) <= found.arrivals <= len(perhaps)
    if len(surely) == len(perhaps):
        sized = [size for size in surely if size is not None]
        assert found.unsized == len(surely) - len(sized)
        if sized and found.span_s > 0:
            scale = len(surely) / len(sized)
            tokens = scale * sum(output for _, output in sized)
            seconds = scale * sum(prompt for prompt, _ in sized) / 1000
            assert found.tokens * found.span_s == pytest.approx(tokens)
            assert found.prefill * found.span_s == pytest.approx(seconds)


@given(st.floats(0, 1e-6), st.floats(0, 1e-3), st.floats(0, 1), st.integers(1, 10**5), st.data())
def test_beyond_the_measured_end_no_prompt_is_cheaper_in_proportion(
    a: float, b: float, c: float, high: int, data: st.DataObject
) -> None:
    curve = attrs.evolve(PROFILE.prefill, a=a, b=b, c=c, tokens=Range(1, high))
    profile = attrs.evolve(PROFILE, prefill=curve)
    tokens = data.draw(st.integers(high, 100 * high))
    most = profile.prefill_seconds(high)
    assert prefill_price(profile, tokens) >= most * tokens / high * (1 - 1e-12)
    assert prefill_price(profile, tokens) >= profile.prefill_seconds(tokens)


@given(
    st.lists(st.tuples(st.floats(0, 1e6), st.floats(0, 100)), max_size=40),
    st.floats(0.01, 1.5),
    st.floats(1.0, 10.0),
    st.floats(0.001, 1.0),
)
def test_corrections_stay_in_bounds(
    windows: list[tuple[float, float]], low: float, factor: float, alpha: float
) -> None:
    bounds = Reactive(
        decode_correction_min=low,
        decode_correction_max=low * factor,
        decode_correction_alpha=alpha,
    )
    corrections = Corrections(["d0"], bounds)
    for taken, gaps in windows:
        corrections.observe("d0", taken, gaps)
        assert low <= corrections.of("d0") <= low * factor


# Against small models


@given(st.lists(st.none() | st.sampled_from("abc"), max_size=30))
def test_confirmations_are_the_length_of_the_last_run(story: list[str | None]) -> None:
    confirmations, past = Confirmations(), [None]
    for key in story:
        past.append(key)  # type: ignore[arg-type]  # None or a key
        if key is None:
            confirmations.clear()
            continue
        run = 0
        while past[-1 - run] == key:
            run += 1
        assert confirmations.again(key) == run  # type: ignore[arg-type]  # any key will do


events = st.lists(
    st.tuples(st.sampled_from([0.0, 1.0, 10.0, 50.0]), st.sampled_from(["arrival", *Risk])),
    max_size=40,
)


@given(events)
def test_the_evidence_window_is_what_came_since_the_last_risk(
    story: list[tuple[float, str]],
) -> None:
    bounds = controller_of()._settings
    evidence, now, begun, arrivals = Evidence(bounds), 0.0, 0.0, 0
    evidence.state(now)
    for gap, event in story:
        now += gap
        if event == "arrival":
            evidence.arrived(now)
            arrivals += 1
        else:
            evidence.reset(Risk(event), now)
            begun, arrivals = now, 0
        state = evidence.state(now)
        assert (state.elapsed_s, state.arrivals) == (now - begun, arrivals)
        full = arrivals >= bounds.evidence_min_arrivals and now - begun >= bounds.evidence_span_s
        assert state.closed == (full or now - begun >= bounds.evidence_max_span_s)
