"""Who gets new work, by all that is known of the engines."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from narwhal.config import Recovery, RestartPolicy
from narwhal.fleet import EngineState, Finding, FindingKind, Health, Incarnation, Transition
from narwhal.model import FailureClass, Phase, Role

S = EngineState
F = FailureClass
ROLES = {"p0": Role.PREFILL, "p1": Role.PREFILL, "d0": Role.DECODE, "d1": Role.DECODE}
OLD = Incarnation(version="1", process_start_s=100.0)
NEW = Incarnation(version="1", process_start_s=200.0)


def health(roles: dict[str, Role] | None = None, **recovery: Any) -> Health:
    return Health(roles or ROLES, Recovery(**recovery))


def evict(iid: str) -> Finding:
    return Finding(
        iid=iid, kind=FindingKind.EVICT, median=3.0, baseline=1.0, peers=1.0, windows=5, compared=5
    )


def fail(own: Health, iid: str, failure: F, times: int = 3) -> list[Transition]:
    changes = []
    for n in range(times):
        changes += own.failed(iid, Phase.DECODE, failure, float(n))
    return changes


@pytest.mark.parametrize(
    ("failure", "state"),
    [
        (F.CONNECTION, S.EJECTED),
        (F.INFERENCE_STATUS, S.HELD),
        (F.KV_HANDOFF, S.HELD),
        (F.STREAM, S.HELD),
        (F.TIMEOUT, S.HELD),
        (F.OVERLOAD, S.SERVING),
        (F.NEUTRAL, S.SERVING),
        (F.LOCAL, S.SERVING),
    ],
)
def test_what_failures_in_a_row_come_to(failure: F, state: S) -> None:
    own = health()
    changes = fail(own, "d0", failure)
    assert own.standings.state("d0") is state
    assert [each.target for each in changes] == ([] if state is S.SERVING else [state])
    if changes:
        assert changes[0].reason == f"3 failures in a row: {failure}"
    assert own.to_probe == ({"d0"} if failure is F.OVERLOAD else set())


def test_a_success_in_between_is_enough() -> None:
    own = health()
    for _ in range(5):
        fail(own, "d0", F.STREAM, 2)
        own.succeeded("d0", Phase.DECODE)
    assert own.takes_work("d0")


@pytest.mark.parametrize("failure", [F.TIMEOUT, F.STREAM, F.KV_HANDOFF, F.INFERENCE_STATUS])
def test_soft_evidence_never_takes_the_last_engine_of_a_role(failure: F) -> None:
    own = health()
    fail(own, "d0", failure)
    assert fail(own, "d1", failure, 30) == []
    assert own.in_service(Role.DECODE) == ["d1"]
    assert own.to_probe == {"d1"}
    assert own.found(evict("d1"), 1.0) == []
    own.seen("d1", OLD, 1.0)
    assert own.seen("d1", NEW, 2.0) == (True, [])
    own.verified("d0", 3.0, "it generated")
    assert fail(own, "d1", failure) != []


def test_hard_evidence_takes_the_last_one_too() -> None:
    own = health()
    fail(own, "d0", F.CONNECTION)
    fail(own, "d1", F.CONNECTION)
    assert own.in_service(Role.DECODE) == []
    assert own.in_service(Role.PREFILL) == ["p0", "p1"]
    assert own.to_be_proved() == ["d0", "d1"]


def test_legs_from_before_change_nothing() -> None:
    own = health()
    fail(own, "d0", F.STREAM)
    assert fail(own, "d0", F.CONNECTION, 9) == []
    own.verified("d0", 5.0, "it generated")
    assert own.streaks.counts("d0") == {}


def test_missed_probes_eject_and_an_answer_or_a_leg_in_between_does_not() -> None:
    own = health(liveness_misses=2)
    assert own.missed("d0", 1.0, "no answer") == []
    own.answered("d0")
    assert own.missed("d0", 2.0, "no answer") == []
    own.succeeded("d0", Phase.DECODE)
    assert own.missed("d0", 3.0, "no answer") == []
    (change,) = own.missed("d0", 4.0, "no answer")
    assert change.target is S.EJECTED
    assert change.reason == "2 liveness probes in a row were missed: no answer"


def test_a_restart_holds_the_engine_and_forgets_what_the_old_process_did() -> None:
    own = health()
    assert own.seen("d0", OLD, 0.0) == (False, [])
    assert own.seen("d0", OLD, 1.0) == (False, [])
    fail(own, "d0", F.STREAM, 2)
    restarted, (change,) = own.seen("d0", NEW, 2.0)
    assert restarted
    assert change.target is S.HELD
    assert own.streaks.counts("d0") == {}
    assert own.incarnations["d0"] == NEW


def test_a_whole_wave_holds_all_but_the_last_of_each_role() -> None:
    own = health(engine_restart_policy=RestartPolicy.WHOLE_WAVE)
    own.seen("d0", OLD, 0.0)
    _, changes = own.seen("d0", NEW, 1.0)
    assert {each.iid for each in changes} == {"d0", "p0"}
    assert own.in_service(Role.DECODE) == ["d1"]
    assert own.in_service(Role.PREFILL) == ["p1"]


def test_an_engine_that_is_too_slow_is_ejected_and_probation_is_only_a_price() -> None:
    own = health()
    for kind in (FindingKind.PROBATION, FindingKind.RECOVERED):
        assert own.found(attrs.evolve(evict("d0"), kind=kind), 0.0) == []
    (change,) = own.found(evict("d0"), 1.0)
    assert change.target is S.EJECTED
    assert change.reason == ("5 windows in a row at 3.00 times its profile; 1.00 is usual for it")


def test_an_operators_drain_is_not_undone_by_evidence() -> None:
    own = health()
    own.drain("d0", 0.0)
    assert fail(own, "d0", F.CONNECTION, 9) == []
    assert own.verified("d0", 1.0, "it generated") == []
    own.emptied("d0", 2.0)
    assert own.standings.state("d0") is S.DRAINED
    own.readmit("d0", 3.0)
    assert not own.takes_work("d0")
    own.rejected("d0", 4.0, "no answer")
    assert own.standings.state("d0") is S.DRAINED
    own.readmit("d0", 5.0)
    own.passed("d0", 6.0)
    assert own.takes_work("d0")


def test_a_contract_that_is_not_met_blocks_until_it_is_and_the_engine_generates() -> None:
    own = health()
    own.contract("d0", "version is 2, not 1", 0.0)
    assert own.standings.state("d0") is S.BLOCKED
    assert own.standings.reason("d0") == "version is 2, not 1"
    own.verified("d0", 1.0, "it generated")
    assert own.standings.state("d0") is S.BLOCKED
    own.contract("d0", None, 2.0)
    assert own.standings.state("d0") is S.HELD
    own.verified("d0", 3.0, "it generated")
    assert own.takes_work("d0")
    assert own.contract("d0", None, 4.0) == []


def test_a_quarantine_is_a_preference() -> None:
    own = health(failure_quarantine_s=5.0)
    own.failed("d0", Phase.DECODE, F.STREAM, 10.0)
    assert own.takes_work("d0")
    assert own.quarantined("d0", 14.9)
    assert not own.quarantined("d0", 15.0)
    assert set(own.standings.quarantines(14.9)) == {"d0"}
    assert not own.standings.quarantines(15.0)
    assert [each.iid for each in own.expire(15.0)] == ["d0"]
    for nothing in (F.NEUTRAL, F.LOCAL, F.OVERLOAD):
        own.failed("d0", Phase.DECODE, nothing, 20.0)
        assert not own.quarantined("d0", 20.0)


LEG = st.tuples(
    st.sampled_from(list(ROLES)),
    st.sampled_from([Phase.PREFILL, Phase.DECODE]),
    st.sampled_from([each for each in F if each not in (F.CONNECTION, F.LIVENESS)]) | st.none(),
)


@given(st.lists(LEG, max_size=80), st.integers(1, 4))
def test_no_sequence_of_soft_failures_blacks_out_a_role(
    legs: list[tuple[str, Phase, F | None]], eject_after: int
) -> None:
    own = health(eject_after=eject_after)
    for iid, phase, failure in legs:
        if failure is None:
            own.succeeded(iid, phase)
        else:
            own.failed(iid, phase, failure, 0.0)
        assert own.in_service(Role.PREFILL)
        assert own.in_service(Role.DECODE)


@given(st.lists(LEG, max_size=80))
def test_engines_do_not_answer_for_each_other(legs: list[tuple[str, Phase, F | None]]) -> None:
    """Each engine alone comes to the same, as long as none is protected as the last one."""
    many = {f"{role}{n}": role for role in Role for n in range(9)}
    together = Health(many, Recovery())
    names = dict(zip(ROLES, many, strict=False))
    alone = {iid: Health(many, Recovery()) for iid in ROLES}
    for iid, phase, failure in legs:
        for own in (together, alone[iid]):
            if failure is None:
                own.succeeded(names[iid], phase)
            else:
                own.failed(names[iid], phase, failure, 0.0)
    for iid, own in alone.items():
        assert own.standings.state(names[iid]) is together.standings.state(names[iid])
