from __future__ import annotations

from typing import Any

import pytest
from preflight_stage import ENGINE, LEASE_S, check, found, pinned

from narwhal.emulator import TimeModel
from narwhal.emulator.core import Leg
from narwhal.preflight import Gate, Grade, Options
from narwhal.testing import MemoryFleet, fleet_config


def test_every_gate_of_a_healthy_fleet_is_passed_in_ten_seconds() -> None:
    config = fleet_config(prefill=2, decode=2, engine=ENGINE, engine_contract={"version": "0.32.0"})
    report = check(config)
    assert report.ok
    assert {each.grade for each in report.findings} == {Grade.PASS}
    assert {each.gate for each in report.findings} == set(Gate)
    assert report.seconds < 10
    assert len(found(report, Gate.CONSUME)) == 12  # any engine may be given either role


def test_findings_are_in_the_order_of_gates_and_limits_are_told() -> None:
    report = check()
    order = list(Gate)
    places = [order.index(each.gate) for each in report.findings]
    assert places == sorted(places)
    assert {each.field for each in report.limits} >= {"engine.first_token_timeout_s"}


def test_what_was_measured_is_told() -> None:
    report = check()
    (consumed,) = found(report, Gate.CONSUME)
    assert consumed.subject == "p0 -> d0"
    assert consumed.figures["moved_tokens"] > 256  # two blocks of any engine
    assert consumed.figures["first_token_s"] < 0.1
    released, leased = found(report, Gate.RELEASE, "p0")
    assert released.figures["released_s"] < 1
    assert leased.figures["lease_s"] == pytest.approx(LEASE_S, abs=0.1)


def test_pins_and_advice_bound_what_is_handed_over() -> None:
    assert [each.subject for each in found(check(), Gate.CONSUME)] == ["p0 -> d0"]
    advised = fleet_config(prefill=1, decode=2, engine=ENGINE, controller={"advisory": True})
    subjects = {each.subject for each in found(check(advised), Gate.CONSUME)}
    assert subjects == {"p0 -> d0", "p0 -> d1"}


def test_a_ring_takes_few_pairs() -> None:
    config = fleet_config(prefill=3, decode=3, engine=ENGINE)
    report = check(config, options=Options(ring=True, lease_wait_s=0.5))
    pairs = [tuple(each.subject.split(" -> ")) for each in found(report, Gate.CONSUME)]
    engines = {"p0", "p1", "p2", "d0", "d1", "d2"}
    assert {producer for producer, _ in pairs} == {decoder for _, decoder in pairs} == engines
    assert len(pairs) < 12


@pytest.mark.parametrize(
    ("sections", "options", "why"),
    [
        ({}, Options(kv=False), "--no-kv"),
        ({"decode": 0}, Options(), "no engine ever hands over"),
        ({"decode": 0, "prefill": 2, "controller": {"advisory": True}}, Options(), "no engine"),
    ],
)
def test_a_fleet_that_hands_nothing_over_is_ready_all_the_same(
    sections: dict[str, Any], options: Options, why: str
) -> None:
    report = check(fleet_config(engine=ENGINE, **sections), options=options)
    assert report.ok
    for gate in (Gate.PRODUCE, Gate.CONSUME, Gate.RELEASE):
        (finding,) = found(report, gate)
        assert finding.grade is Grade.SKIPPED
        assert why in finding.seen


def test_a_lease_that_is_not_watched_to_its_end_is_not_called_well() -> None:
    report = check(options=Options(lease_wait_s=1.0))
    released, leased = found(report, Gate.RELEASE, "p0")
    assert (released.grade, leased.grade) == (Grade.PASS, Grade.SKIPPED)
    assert "--lease-wait 7" in leased.advice
    assert report.ok


def test_repeats_are_done_and_the_slowest_is_told() -> None:
    prefills: dict[Gate, int] = {}

    def count(fleet: MemoryFleet, gate: Gate) -> None:
        prefills[gate] = fleet["p0"].stats.legs["done", Leg.PREFILL]

    check(options=Options(repeats=5, lease_wait_s=0.1), on_gate=count)
    assert prefills[Gate.CONSUME] == 5
    assert prefills[Gate.RELEASE] == 10


def test_open_admission_needs_no_profiles() -> None:
    report = check(pinned(), store=lambda _fleet: None)
    assert report.ok
    assert found(report, Gate.PROFILE)[0].grade is Grade.SKIPPED
    assert "narwhal-trio profile" in found(report, Gate.PROFILE)[0].advice


def test_handoffs_are_measured_over_the_context_and_a_limit_is_proposed() -> None:
    report = check(options=Options(lease_wait_s=0.1, calibrate=True), max_model_len=4096)
    calibration = report.calibration
    assert calibration is not None
    assert calibration.troubles == ()
    lengths = list(calibration.lengths)
    assert (len(lengths), lengths[0], lengths[-1]) == (5, 64, 4094)
    assert {len(times) for times in calibration.lengths.values()} == {3}
    assert calibration.configured_s == 2.5
    assert calibration.proposed_s is not None
    assert calibration.p99_s is not None
    assert calibration.p99_s < calibration.proposed_s


def test_a_calibration_is_not_cut_by_the_limit_that_it_is_to_find() -> None:
    slow = TimeModel(handoff=(0.0, 0.002))
    engine = {"kv_lease_s": 30.0, "first_token_timeout_s": 2.0}
    report = check(
        pinned(engine=engine),
        time=slow,
        options=Options(lease_wait_s=0.1, calibrate=True),
        max_model_len=4096,
    )
    calibration = report.calibration
    assert calibration is not None
    assert max(calibration.lengths[4094]) > 8.0
    assert calibration.proposed_s == pytest.approx(1.5 * 8.2, abs=0.3)


def test_a_calibration_leaves_out_pairs_that_do_not_work() -> None:
    report = check(
        fleet_config(engine=ENGINE),
        faults={"d0": 'prefill:kv(remote_host,"10.9.9.9")'},
        options=Options(lease_wait_s=0.1, calibrate=True),
        max_model_len=2048,
        left=True,
    )
    assert report.calibration is not None
    assert {(each.producer, each.decoder) for each in report.calibration.timings} == {("p0", "d0")}
    assert report.calibration.troubles == ()


def test_a_calibration_of_nothing_says_why() -> None:
    report = check(options=Options(kv=False, calibrate=True))
    assert report.calibration is not None
    assert report.calibration.proposed_s is None
    assert report.calibration.troubles == ("no pair of engines got through `consume`",)


@pytest.mark.parametrize(
    ("fault", "grade", "slow"), [("wait(1)", Grade.PASS, 1.0), ("status(500)", Grade.FAIL, 0.0)]
)
def test_of_several_handoffs_the_worst_is_told(fault: str, grade: Grade, slow: float) -> None:
    """A second try that goes well does not make a first one well."""

    def once(fleet: MemoryFleet, gate: Gate) -> None:
        if gate is Gate.CONSUME:
            fleet.fail_with(f"decode:{fault}*1", iid="d0")

    report = check(options=Options(repeats=3, lease_wait_s=0.1), on_gate=once, left=True)
    (finding,) = found(report, Gate.CONSUME)
    assert finding.grade is grade
    assert finding.figures.get("first_token_s", 0.0) >= slow
