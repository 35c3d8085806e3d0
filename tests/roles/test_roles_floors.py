"""Section 7.2: the floors of both pools, and how they are restored. Section 7.4: advisory mode."""

from __future__ import annotations

from typing import Any

import pytest
from role_scenes import DECODE_HEAVY, PREFILL_HEAVY, Scene

from narwhal.roles import Gate, Rule, Split, Verdict

CALM = {"step_s": 1e6}
"""Nothing but floors is looked at, after the first pass."""


def lost(scene: Scene, *iids: str) -> None:
    scene.set(*iids, live=False)


def test_72_one_engine_a_pass_is_given_back_to_decode() -> None:
    scene = Scene(4, 2, min_decode=2, reactive=CALM)
    scene.one_pass()
    lost(scene, "d0", "d1")
    assert scene.moves(5) == [(1.0, "p0", "decode_floor"), (2.0, "p1", "decode_floor")]
    assert scene.roles == "p2 p3 | p0 p1 d0 d1"


def test_72_one_engine_a_pass_is_given_back_to_prefill() -> None:
    scene = Scene(2, 4, min_prefill=2, reactive=CALM)
    scene.one_pass()
    lost(scene, "p0", "p1")
    assert scene.moves(5) == [(1.0, "d0", "prefill_floor"), (2.0, "d1", "prefill_floor")]


@pytest.mark.parametrize(
    ("dead", "floors"),
    [
        pytest.param(["d0", "d1", "p0"], {}, id="7.2 the other pool is at its floor"),
        pytest.param(["p0", "p1", "d0"], {}, id="7.2 likewise the other way round"),
        pytest.param(["p0", "p1", "d0", "d1"], {}, id="7.2 nobody is left"),
        pytest.param(["d0"], {"min_prefill": 2, "min_decode": 2}, id="7.2 both floors hold"),
    ],
)
def test_72_what_cannot_be_restored_is_reported(dead: list[str], floors: dict[str, Any]) -> None:
    scene = Scene(2, 2, reactive=CALM, **floors)
    lost(scene, *dead)
    before = scene.roles
    assert scene.moves(3) == []
    assert scene.roles == before
    (breach, *_) = scene.controller.breaches(scene.snapshot().split)
    assert "controller.min_" in breach


def test_72_a_floor_that_is_kept_is_no_breach() -> None:
    scene = Scene(2, 2)
    assert scene.controller.breaches(scene.snapshot().split) == ()
    assert scene.controller.breaches(Split(0, 0)) == (
        "0 live prefill engines, and controller.min_prefill is 1",
        "0 live decode engines, and controller.min_decode is 1",
    )


@pytest.mark.parametrize("gone", ["p", "d"])
def test_72_pinned_engines_stay(gone: str) -> None:
    scene = Scene(2, 2, reactive=CALM)
    scene.set(pinned=True)
    lost(scene, f"{gone}0", f"{gone}1")
    decision = scene.one_pass()
    assert decision.gate is Gate.UNAVAILABLE
    assert decision.rule is (Rule.PREFILL_FLOOR if gone == "p" else Rule.DECODE_FLOOR)
    other = "d1" if gone == "p" else "p1"
    scene.set(other, pinned=False)
    assert scene.one_pass().iid == other


def test_72_an_engine_that_is_not_live_restores_nothing() -> None:
    scene = Scene(3, 1, reactive=CALM)
    lost(scene, "d0", "p0")
    assert scene.one_pass().iid == "p1"


@pytest.mark.parametrize(
    ("changes", "who"),
    [
        pytest.param({}, "d0", id="7.2 ties go by name"),
        pytest.param({"d0": {"kv_tokens": 10.0}}, "d1", id="7.2 the least work"),
        pytest.param(
            {"d0": {"kv_tokens": 10.0}, "d1": {"kv_tokens": 10.0, "decodes": 1}},
            "d0",
            id="7.2 then the fewest decodes",
        ),
    ],
)
def test_72_who_moves(changes: dict[str, dict[str, float]], who: str) -> None:
    scene = Scene(1, 2, reactive=CALM)
    for iid, each in changes.items():
        scene.set(iid, **each)
    lost(scene, "p0")
    assert scene.one_pass().iid == who


def test_72_who_leaves_prefill_has_the_least_of_it_to_do() -> None:
    scene = Scene(2, 1, reactive=CALM)
    scene.set("p0", prefill_s=1.0)
    lost(scene, "d0")
    assert scene.one_pass().iid == "p1"


def test_72_the_decode_floor_skips_the_cooldown() -> None:
    scene = Scene(4, 2, min_decode=2, thresholds={"cooldown_s": 1000.0}, reactive=CALM)
    scene.one_pass()
    lost(scene, "d0", "d1")
    assert len(scene.moves(3)) == 2


def test_72_the_decode_floor_waits_for_the_dwell_that_a_restored_floor_began() -> None:
    scene = Scene(1, 2, thresholds={"dwell_s": 30.0}, reactive=CALM)
    lost(scene, "p0")
    assert scene.one_pass().iid == "d0"
    scene.set("p0", live=True, pinned=True)
    lost(scene, "d1")
    decision = scene.one_pass()
    assert (decision.rule, decision.gate) == (Rule.DECODE_FLOOR, Gate.DWELL)
    assert scene.moves(60) == [(30.0, "d0", "decode_floor")]


def test_72_the_prefill_floor_ignores_the_dwell() -> None:
    scene = Scene(2, 1, thresholds={"dwell_s": 1000.0, "cooldown_s": 1000.0}, reactive=CALM)
    lost(scene, "d0")
    assert scene.one_pass().iid == "p0"
    scene.set("d0", live=True, pinned=True)
    lost(scene, "p1")
    assert scene.one_pass().iid == "p0"


@pytest.mark.parametrize("now", [0.1, 1000.1, 1000.7, 86_400.3])
def test_72_who_never_moved_has_dwelt_for_ever(now: float) -> None:
    """Whatever rounding makes of `now` minus the dwell."""
    for tenths in range(1, 200):
        scene = Scene(2, 1, thresholds={"dwell_s": tenths / 10})
        lost(scene, "d0")
        scene.now = now
        assert scene.one_pass().verdict is Verdict.MOVED


def test_72_restored_floors_are_remembered_like_other_moves_up_to_the_limit() -> None:
    scene = Scene(6, 4, min_decode=4, flip_history=2, reactive=CALM)
    lost(scene, "d0", "d1", "d2", "d3")
    assert len(scene.moves(5)) == 4
    flips = scene.controller.flips
    assert [(each.iid, str(each.split), each.rule) for each in flips] == [
        ("p2", "3P3D", Rule.DECODE_FLOOR),
        ("p3", "2P4D", Rule.DECODE_FLOOR),
    ]


def test_72_floors_need_no_profiles_and_nothing_else_is_decided_without() -> None:
    scene = Scene(2, 1, profile=None, demand=DECODE_HEAVY)
    assert scene.one_pass().gate is Gate.NO_PROFILES
    lost(scene, "d0")
    assert scene.one_pass().rule is Rule.DECODE_FLOOR


def test_72_when_capacity_returns_the_split_is_judged_like_any_other() -> None:
    scene = Scene(2, 1, demand=PREFILL_HEAVY)
    scene.run(10)
    lost(scene, "d0")
    assert scene.one_pass().rule is Rule.DECODE_FLOOR
    scene.set("d0", live=True)
    # The evidence began again with that move, at 10: 60 s, and three confirmations 5 s apart.
    assert scene.moves(90) == [(81.0, "d0", "consolidation")]


def test_72_a_floor_that_breaks_ends_what_was_being_confirmed() -> None:
    scene = Scene(2, 2, demand=DECODE_HEAVY)
    assert [each.confirmations for each in scene.run(11)][-2:] == [1, 2]
    scene.set("p0", "p1", pinned=True)
    lost(scene, "d0", "d1")
    assert scene.one_pass().gate is Gate.UNAVAILABLE
    scene.set(live=True, pinned=False)
    assert scene.run(5)[-1].confirmations == 1


@pytest.mark.parametrize("split", [(0, 0), (1, 0), (0, 1)])
def test_72_a_fleet_that_has_lost_a_role_is_still_looked_at(split: tuple[int, int]) -> None:
    """Due or not, whatever is asked for: no pass fails, and nobody moves."""
    scene = Scene(1, 1, demand=PREFILL_HEAVY)
    scene.run(20)
    scene.set("p0", live=bool(split[0]))
    scene.set("d0", live=bool(split[1]))
    scene.waiting = {"waiting_s": 100.0}
    for _ in range(20):
        scene.controller.breached()
        assert scene.one_pass().verdict is Verdict.HELD


def test_74_advisory_moves_nothing_and_says_what_it_would() -> None:
    scene = Scene(2, 1, advisory=True)
    lost(scene, "d0")
    for _ in range(3):
        decision = scene.one_pass()
        assert decision.verdict is Verdict.ADVISED
        assert (decision.iid, str(decision.proposed)) == ("p0", "1P1D")
    assert scene.roles == "p0 p1 | d0"
    assert not scene.controller.flips


def test_74_advisory_needs_the_same_confirmations_each_time() -> None:
    scene = Scene(2, 2, advisory=True, demand=DECODE_HEAVY)
    evaluations = scene.run(41)
    advised = [each.at for each in evaluations if each.verdict is Verdict.ADVISED]
    assert advised == [15.0, 30.0]
    assert scene.controller.last_proposed is not None
    assert "toward_decode" in scene.controller.last_proposed.reason
    assert scene.roles == "p0 p1 | d0 d1"
