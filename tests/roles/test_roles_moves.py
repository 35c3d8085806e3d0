"""Sections 7.3 and 7.5: what an adjacent split must gain, and what keeps an engine where it is."""

from __future__ import annotations

from math import inf
from typing import Any

import pytest
from role_scenes import (
    DECODE_HEAVY,
    EVEN,
    MIXED,
    PREFILL_HEAVY,
    Demand,
    Scene,
    controller_of,
    gates,
    measured,
)

from narwhal.model import Role
from narwhal.roles import Gate, Projection, Rule, Split, Verdict

AT_ONCE = {"sustained_intervals": 1}
SOON = {"evidence_span_s": 10.0, "evidence_max_span_s": 10.0, "confirmations": 1}


def prompt_scene(demand: Demand = PREFILL_HEAVY, **controller: Any) -> Scene:
    """Evidence within 10 s, and the first proposal is carried out."""
    sections: dict[str, Any] = {"thresholds": {}, "reactive": {}, **controller}
    sections["thresholds"] = AT_ONCE | sections["thresholds"]
    sections["reactive"] = SOON | sections["reactive"]
    profile = sections.pop("profile", measured())
    return Scene(2, 2, profile=profile, demand=demand, **sections)


@pytest.mark.parametrize(
    ("demand", "moves"),
    [
        pytest.param(PREFILL_HEAVY, [(70.0, "d0", "consolidation")], id="7.5 consolidation"),
        pytest.param(DECODE_HEAVY, [(15.0, "p0", "toward_decode")], id="7.5 toward decode"),
        pytest.param(MIXED, [(70.0, "d0", "mixed_pressure")], id="7.5 mixed pressure"),
        pytest.param(EVEN, [], id="7.5 nothing to gain"),
    ],
)
def test_75_each_rule(demand: Demand, moves: list[tuple[float, str, str]]) -> None:
    scene = Scene(2, 2, demand=demand)
    assert scene.moves(90) == moves


@pytest.mark.parametrize(
    ("controller", "at"),
    [
        pytest.param({"reactive": {"confirmations": 2}}, 15.0, id="7.5 the default: 3 and 2"),
        pytest.param({"reactive": {"confirmations": 5}}, 25.0, id="7.5 confirmations are more"),
        pytest.param({"thresholds": {"sustained_intervals": 6}}, 30.0, id="7.5 sustained is more"),
        pytest.param(
            {"thresholds": {"sustained_intervals": 1}, "reactive": {"confirmations": 1}},
            5.0,
            id="7.5 one is enough",
        ),
    ],
)
def test_75_the_larger_number_of_confirmations(controller: dict[str, Any], at: float) -> None:
    scene = Scene(2, 2, demand=DECODE_HEAVY, **controller)
    assert [when for when, _, _ in scene.moves(35)] == [at]


@pytest.mark.parametrize(
    ("margin", "moves"),
    [
        # The worst ratio falls from 1.19 to 0.59: by 0.51 of it.
        pytest.param(0.0, True, id="7.5 no margin"),
        pytest.param(0.45, True, id="7.5 a margin that is met"),
        pytest.param(0.55, False, id="7.5 a margin that is not"),
    ],
)
def test_75_margin(margin: float, moves: bool) -> None:
    scene = prompt_scene(
        DECODE_HEAVY,
        thresholds={"shrink": 0.99},
        reactive={"movement_margin": margin},
    )
    assert bool(scene.moves(30)) is moves
    if not moves:
        assert scene.controller.last_evaluated is not None
        assert scene.controller.last_evaluated.gate is Gate.MARGIN


@pytest.mark.parametrize(
    ("margin", "here", "there", "pays"),
    [
        pytest.param(0.0, 1.0, 1.0, False, id="7.5 no margin, no improvement"),
        pytest.param(0.0, 1.0, 0.999999, True, id="7.5 no margin, the least improvement"),
        pytest.param(0.0, 0.0, 0.0, False, id="7.5 nothing to do"),
        pytest.param(0.5, 1.0, 0.5, True, id="7.5 exactly the margin"),
        pytest.param(0.5, 1.0, 0.500001, False, id="7.5 not quite the margin"),
        pytest.param(0.5, inf, 9.0, True, id="7.5 from without bound to anything"),
        pytest.param(0.0, inf, inf, False, id="7.5 without bound either way"),
        pytest.param(0.0, 1.0, inf, False, id="7.5 to without bound"),
    ],
)
def test_75_what_pays(margin: float, here: float, there: float, pays: bool) -> None:
    controller = controller_of(reactive={"movement_margin": margin})
    now, then = (Projection(split=Split(1, 1), prefill=each, decode=0.0) for each in (here, there))
    assert controller._pays(now, then) is pays


@pytest.mark.parametrize(
    ("shrink", "guard", "moves"),
    [
        # The decode pool that gives an engine away would be at 0.22.
        pytest.param(0.25, "absolute", True, id="7.5 below shrink"),
        pytest.param(0.2, "absolute", False, id="7.5 above shrink"),
        pytest.param(0.2, "relative", True, id="7.5 relative: below its target"),
    ],
)
def test_75_shrink_and_source_guard(shrink: float, guard: str, moves: bool) -> None:
    """A prefill pressure below `expand`, so that the mixed-pressure rule does not apply."""
    scene = prompt_scene(
        Demand(2, 650, 15),
        thresholds={"shrink": shrink, "expand": 1.5},
        reactive={"source_guard": guard},
    )
    assert bool(scene.moves(40)) is moves
    if not moves:
        assert scene.controller.last_proposed is not None
        assert scene.controller.last_proposed.gate is Gate.SOURCE


def test_75_relative_the_source_stays_below_its_own_target() -> None:
    """3P1D would put prefill at 1.17 instead of 1.75, and decode at 1.41."""
    scene = prompt_scene(
        Demand(4, 700, 110), thresholds={"expand": 5.0}, reactive={"source_guard": "relative"}
    )
    assert scene.moves(40) == []
    proposed = scene.controller.last_proposed
    assert proposed is not None
    assert (proposed.rule, proposed.gate) == (Rule.CONSOLIDATION, Gate.SOURCE)


@pytest.mark.parametrize(
    ("expand", "rule", "gate"),
    [
        pytest.param(1.0, Rule.MIXED_PRESSURE, Gate.NONE, id="7.5 prefill has reached expand"),
        pytest.param(1.3, Rule.CONSOLIDATION, Gate.SOURCE, id="7.5 prefill has not"),
    ],
)
def test_75_mixed_pressure_begins_at_expand(expand: float, rule: Rule, gate: Gate) -> None:
    scene = prompt_scene(MIXED, thresholds={"expand": expand})
    scene.run(11)
    proposed = scene.controller.last_proposed
    assert proposed is not None
    assert (proposed.rule, proposed.gate) == (rule, gate)


def test_75_toward_decode_needs_a_prefill_pool_that_can_spare_an_engine() -> None:
    """1P3D would put prefill at 0.56."""
    scene = prompt_scene(Demand(3, 150, 300))
    decisions = scene.run(11)
    assert gates(decisions)[-1] == "source"
    assert decisions[-1].rule is Rule.TOWARD_DECODE


# Confirmations


def confirming(demand: Demand = DECODE_HEAVY, **controller: Any) -> Scene:
    """Two of three confirmations have come; the third would at 15."""
    scene = Scene(2, 2, demand=demand, **controller)
    assert scene.run(11)[-1].confirmations == 2
    return scene


def test_75_an_unsized_offer_makes_demand_incomplete_and_confirmation_begins_anew() -> None:
    scene = confirming()
    scene.controller.unsized(scene.now)
    decisions = scene.run(15)
    assert [(each.at, each.confirmations) for each in decisions] == [
        (15.0, 1),
        (20.0, 2),
        (25.0, 3),
    ]
    assert decisions[-1].verdict is Verdict.MOVED


def test_75_another_split_begins_anew() -> None:
    scene = confirming()
    scene.add("p2", Role.PREFILL)
    (decision,) = scene.run(5)
    assert (str(decision.split), decision.confirmations) == ("3P2D", 1)


def test_75_another_rule_begins_anew() -> None:
    """Decode that could spare an engine cannot any more, and prefill is over its target."""
    scene = prompt_scene(
        PREFILL_HEAVY, thresholds={"sustained_intervals": 4}, reactive={"window_s": 10.0}
    )
    rules = [(each.rule, each.confirmations) for each in scene.run(16)][-2:]
    assert rules == [(Rule.CONSOLIDATION, 1), (Rule.CONSOLIDATION, 2)]
    scene.set("d0", "d1", decodes=8, kv_tokens=8000.0)
    (decision,) = scene.run(5)
    assert (decision.rule, decision.confirmations) == (Rule.MIXED_PRESSURE, 1)


@pytest.mark.parametrize(
    ("change", "gate"),
    [
        pytest.param({"pinned": True}, "unavailable", id="7.5 everybody pinned"),
        pytest.param({"prefill_s": 3.0}, "margin", id="7.5 it would not pay"),
    ],
)
def test_75_a_failed_check_clears_the_candidate(change: dict[str, Any], gate: str) -> None:
    scene = confirming()
    before = dict(scene.engines)
    scene.set("p0", "p1", **change)
    held = scene.run(5)[-1]
    assert held.verdict is Verdict.HELD
    assert held.gate == gate
    scene.engines = before
    assert scene.run(5)[-1].confirmations == 1


@pytest.mark.parametrize("urgent", [False, True])
def test_75_an_urgent_move_needs_no_confirmation(urgent: bool) -> None:
    scene = Scene(2, 2, demand=DECODE_HEAVY, reactive={"urgent": urgent})
    assert [at for at, _, _ in scene.moves(20)] == ([5.0] if urgent else [15.0])


def test_75_nothing_is_urgent_below_expand() -> None:
    scene = Scene(2, 2, demand=DECODE_HEAVY, thresholds={"expand": 2.0}, reactive={"urgent": True})
    assert [at for at, _, _ in scene.moves(20)] == [15.0]


def test_75_nothing_is_urgent_where_the_other_side_would_be_over_its_target() -> None:
    """Mixed pressure: prefill from 1.75 to 1.17, but decode at 1.41."""
    scene = prompt_scene(
        Demand(4, 700, 110), thresholds={"sustained_intervals": 3}, reactive={"urgent": True}
    )
    scene.run(11)
    proposed = scene.controller.last_proposed
    assert proposed is not None
    assert (proposed.rule, proposed.needed) == (Rule.MIXED_PRESSURE, 3)


@pytest.mark.parametrize(("content_below", "moves"), [(1.0, 1), (1.3, 0)])
def test_content_below(content_below: float, moves: int) -> None:
    """The worst ratio is 1.19, and a little more at first."""
    scene = Scene(2, 2, demand=DECODE_HEAVY, reactive={"content_below": content_below})
    assert len(scene.moves(20)) == moves
    if not moves:
        assert scene.controller.last_evaluated is not None
        assert scene.controller.last_evaluated.gate is Gate.CONTENT


# Cooldown, panic, dwell


def after_one(**thresholds: float) -> Scene:
    """One engine of three went to decode at 5, and decode needs the next as well."""
    scene = Scene(
        3,
        1,
        demand=Demand(4, 20, 500),
        thresholds={"sustained_intervals": 1, **thresholds},
        reactive={"confirmations": 1},
    )
    assert scene.moves(6) == [(5.0, "p0", "toward_decode")]
    return scene


@pytest.mark.parametrize(
    ("cooldown_s", "at"),
    [(0.0, 10.0), (5.0, 10.0), (5.1, 15.0), (10.0, 15.0), (12.0, 20.0)],
)
def test_75_cooldown(cooldown_s: float, at: float) -> None:
    scene = after_one(cooldown_s=cooldown_s)
    assert scene.moves(30)[0][0] == at


@pytest.mark.parametrize(
    ("panic", "decodes", "prompt", "at"),
    [
        pytest.param(0.0, 60, 20, 105.0, id="7.5 no panic"),
        pytest.param(1.5, 60, 20, 10.0, id="7.5 panic skips the cooldown"),
        pytest.param(1.5, 20, 20, 105.0, id="7.5 decode load is below the multiple"),
    ],
)
def test_75_panic(panic: float, decodes: int, prompt: int, at: float) -> None:
    scene = after_one(cooldown_s=100.0, panic_ratio=panic)
    scene.set("d0", decodes=decodes, kv_tokens=20_000.0)
    assert scene.moves(120)[0][0] == at


@pytest.mark.parametrize(
    ("prompt", "at"),
    [
        # 4P2D is at 0.4 of prefill, or at 0.6.
        pytest.param(300, 10.0, id="7.5 prefill is below shrink"),
        pytest.param(425, 105.0, id="7.5 prefill is not"),
    ],
)
def test_75_no_panic_while_prefill_is_not_below_shrink(prompt: int, at: float) -> None:
    scene = Scene(
        5,
        1,
        demand=Demand(4, prompt, 500),
        thresholds={"sustained_intervals": 1, "cooldown_s": 100.0, "panic_ratio": 1.5},
        reactive={"confirmations": 1, "source_guard": "relative"},
    )
    assert scene.moves(6) == [(5.0, "p0", "toward_decode")]
    scene.set("d0", decodes=60, kv_tokens=20_000.0)
    assert scene.moves(120)[0][0] == at


def test_75_a_move_toward_prefill_has_no_cooldown() -> None:
    scene = prompt_scene(Demand(6, 700, 2), thresholds={"cooldown_s": 1000.0})
    assert len(scene.moves(40)) == 1
    assert scene.controller._toward_decode_at == -inf


def test_72_dwell_holds_who_was_moved_and_nobody_else() -> None:
    scene = after_one(cooldown_s=0.0, dwell_s=1000.0)
    assert scene.moves(6) == [(10.0, "p1", "toward_decode")]
    scene.demand = Demand(12, 600, 1)
    scene.set("d0", pinned=True)
    decisions = scene.run(200)
    assert "dwell" in gates(decisions)
    assert not any(each.verdict is Verdict.MOVED for each in decisions)


# Section 7.3


@pytest.mark.parametrize(
    ("profile", "engine", "gate"),
    [
        pytest.param(measured(), {}, Gate.NONE, id="7.3 all is measured"),
        pytest.param(measured(requests=1), {}, Gate.NONE, id="7.3 just measured"),
        pytest.param(measured(kv_tokens=500), {}, Gate.DOMAIN, id="7.3 the split's tokens"),
        pytest.param(
            measured(requests=9), {"decodes": 10, "live": False}, Gate.DOMAIN, id="7.3 a batch"
        ),
        pytest.param(measured(memory=3999), {"kv_tokens": 4000.0}, Gate.KV_CAPACITY, id="7.3 KV"),
        pytest.param(measured(memory=4000), {"kv_tokens": 4000.0}, Gate.NONE, id="7.3 KV fits"),
    ],
)
def test_73_domain_and_memory(profile: Any, engine: dict[str, Any], gate: Gate) -> None:
    demand = PREFILL_HEAVY if gate is not Gate.DOMAIN or engine else Demand(4, 600, 10)
    scene = prompt_scene(demand, profile=profile)
    scene.set("d1", **engine)
    if not scene.engines["d1"].live:
        scene.add("d2", Role.DECODE)
    scene.run(11)
    proposed = scene.controller.last_proposed
    assert proposed is not None
    assert proposed.gate is gate


@pytest.mark.parametrize(
    ("guard", "who"),
    [
        pytest.param(0, "d1", id="7.3 no guard: the least tokens"),
        pytest.param(2, "d0", id="7.3 who has few enough streams"),
        pytest.param(1, None, id="7.3 nobody has"),
    ],
)
def test_73_resident_guard(guard: int, who: str | None) -> None:
    scene = prompt_scene(PREFILL_HEAVY, thresholds={"flip_resident_guard": guard})
    scene.set("d0", decodes=2, kv_tokens=800.0)
    scene.set("d1", decodes=3, kv_tokens=700.0)
    moves = scene.moves(11)
    assert [iid for _, iid, _ in moves] == ([who] if who else [])
    if not who:
        assert scene.controller.last_proposed is not None
        assert scene.controller.last_proposed.gate is Gate.RESIDENTS


def test_72_no_choice_goes_below_a_floor() -> None:
    scene = prompt_scene(PREFILL_HEAVY, min_decode=2)
    assert scene.moves(40) == []
    assert scene.controller.last_proposed is not None
    assert scene.controller.last_proposed.gate is Gate.FLOOR
