"""Readmission: every check in its turn, and what becomes of the engine when one fails."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
import trio
from lifecycle_stage import ALL_CHECKS, Stage, change, passed, play

from narwhal.fleet import EngineState, Incarnation
from narwhal.model import Terminal
from narwhal.monitor import Check, NotNow
from narwhal.testing import AtStep, TimeModel, fleet_config, open_fleet, run_seeded

S = EngineState
CONTRACT = {"version": "0.32.0", "max_model_len": 32768, "team": "anything"}


def fleet(**sections: Any) -> Any:
    return fleet_config(prefill=2, decode=2, **sections)


@pytest.mark.parametrize(
    ("check", "changes", "faults", "why"),
    [
        (0, {}, ["health:status(503)"], "/health is not 200"),
        (0, {}, ["health:hang"], "/health: no answer within 5 s"),
        (1, {"model": "other"}, [], 'it serves "other", and the fleet serves "emulated"'),
        (1, {}, ["models:status(500)"], "/v1/models: it answered 500"),
        (2, {}, ["metrics:status(500)"], "/version and /metrics: it answered 500"),
        (3, {"version": "0.33.0"}, [], 'version is "0.33.0", and engine_contract wants "0.32.0"'),
        (3, {"max_model_len": 2048}, [], "max_model_len is 2048, and engine_contract wants 32768"),
        (4, {}, ["whole:status(500)"], "a first token: it answered 500"),
        (4, {}, ["whole:hang"], "a first token: no answer within 2.5 s"),
        (4, {}, ["whole:status(503)"], "a first token: it answered 503"),
        (5, {}, ["decode:status(500)"], "with p0: a first token: it answered 500"),
        (6, {}, ["health:wait(0)*1", "health:status(503)"], "/health is not 200"),
    ],
)
def test_the_check_that_fails_is_named_and_the_engine_stays_drained(
    check: int, changes: dict[str, Any], faults: list[str], why: str
) -> None:
    async def body(stage: Stage) -> None:
        await stage.drain_and_restart("d0", **changes)
        stage.fleet.fail_with(*faults, iid="d0")
        verdict = await stage.router.lifecycle.readmit("d0")
        assert verdict.passed == ALL_CHECKS[:check]
        assert verdict.failed == ALL_CHECKS[check]
        assert why in verdict.reason
        assert stage.state("d0") is S.DRAINED
        assert stage.reason("d0") == f"{verdict.failed}: {verdict.reason}"
        stage.changes("d0")
        await trio.sleep(60)
        assert stage.state("d0") is S.DRAINED, "nobody but the operator brings it back"
        # And that it can be put right.
        stage.fleet.fail_with(iid="d0")
        change(stage.fleet["d0"], model="emulated", version="0.32.0", max_model_len=32768)
        assert passed(await stage.router.lifecycle.readmit("d0"))
        assert stage.changes("d0") == ["validating", "serving"]
        assert stage.router.lifecycle.status("d0") is None

    play(body, fleet(engine_contract=CONTRACT))


def test_the_same_process_passes_only_if_it_may() -> None:
    async def body(stage: Stage) -> None:
        lifecycle = stage.router.lifecycle
        await lifecycle.drain(["p1"])
        verdict = await lifecycle.readmit("p1")
        assert (verdict.failed, verdict.passed) == (Check.IDENTITY, ("health", "model"))
        assert "still the process that was drained" in verdict.reason
        assert '(--same-process; over HTTP, "same_process": true)' in verdict.reason
        assert passed(await lifecycle.readmit("p1", same_process=True))

    play(body)


def test_an_older_process_is_no_newer_one() -> None:
    async def body(stage: Stage) -> None:
        await trio.sleep(100)
        await stage.drain_and_restart("d0")
        assert passed(await stage.router.lifecycle.readmit("d0"))
        await stage.router.lifecycle.drain(["d0"])
        stage.fleet["d0"].step_clock(-1000.0)
        await stage.restart("d0")
        verdict = await stage.router.lifecycle.readmit("d0")
        assert verdict.failed is Check.IDENTITY
        assert "before the one that was drained" in verdict.reason

    play(body)


def test_a_process_that_was_never_known_is_compared_with_nothing() -> None:
    async def body(stage: Stage) -> None:
        stage.fleet["d0"].die()
        await trio.sleep(1)
        await stage.router.lifecycle.drain(["d0"])
        stage.fleet["d0"].restart()
        await trio.sleep(1)
        assert passed(await stage.router.lifecycle.readmit("d0"))

    play(body)


def test_a_drain_of_an_earlier_router_is_taken_up() -> None:
    """Its state and its process were restored, and nothing else is known of the drain."""

    async def body(stage: Stage) -> None:
        health, lifecycle = stage.router.core.health, stage.router.lifecycle
        started = stage.fleet["d0"].started_at
        health.incarnations["d0"] = Incarnation(version="0.32.0", process_start_s=started)
        health.standings.restore("d0", S.DRAINED, 0.0, "nothing runs on it any more")
        assert lifecycle.ready_to_stop("d0")
        assert (await lifecycle.readmit("d0")).failed is Check.IDENTITY
        status = lifecycle.status("d0")
        assert status is not None
        assert status.process_start_s == started
        await stage.restart("d0")
        assert passed(await lifecycle.readmit("d0"))

    play(body)


def test_without_an_engine_in_service_there_is_no_transfer() -> None:
    async def body(stage: Stage) -> None:
        lifecycle = stage.router.lifecycle
        await lifecycle.drain(["p0", "d0"])
        first = await lifecycle.readmit("p0", same_process=True)
        assert (first.failed, first.skipped) == (None, ("transfer",))
        assert first.passed == tuple(each for each in ALL_CHECKS if each != "transfer")
        second = await lifecycle.readmit("d0", same_process=True)
        assert passed(second)
        assert stage.fleet["d0"].connector.transfers == 1

    play(body, fleet_config())


def test_a_partner_at_fault_is_no_fault_of_the_engine() -> None:
    async def body(stage: Stage) -> None:
        lifecycle = stage.router.lifecycle
        stage.fleet.fail_with("prefill:status(500)", iid="p0")
        await lifecycle.drain(["d0"])
        assert passed(await lifecycle.readmit("d0", same_process=True))
        stage.fleet.fail_with("prefill:status(500)")
        await lifecycle.drain(["d0"])
        verdict = await lifecycle.readmit("d0", same_process=True)
        assert verdict.failed is Check.TRANSFER
        assert all(f"with {iid}: " in verdict.reason for iid in ("p0", "p1"))

    play(body)


@pytest.mark.parametrize("state", [S.SERVING, S.QUARANTINED, S.HELD, S.EJECTED])
def test_there_is_nothing_to_readmit(state: EngineState) -> None:
    async def body(stage: Stage) -> None:
        stage.router.core.health.standings.restore("d0", state, 0.0, "a test")
        with pytest.raises(NotNow, match=f"d0 is {state}.*drain it"):
            await stage.router.lifecycle.readmit("d0")
        assert stage.state("d0") is state

    play(body)


def test_never_two_readmissions_of_one_engine() -> None:
    async def body(stage: Stage) -> None:
        lifecycle = stage.router.lifecycle
        stage.fleet.fail_with("health:wait(1)", iid="d0")
        await lifecycle.drain(["d0", "d1"])
        verdicts: list[Any] = []

        async def readmit(iid: str) -> None:
            verdicts.append(await lifecycle.readmit(iid, same_process=True))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(readmit, "d0")
            nursery.start_soon(readmit, "d1")
            await trio.sleep(0.5)
            assert lifecycle.checking("d0") is Check.HEALTH
            with pytest.raises(NotNow, match="being readmitted already"):
                await lifecycle.readmit("d0")
        assert lifecycle.checking("d0") is None
        assert [each.failed for each in verdicts] == [None, None]

    play(body)


def test_a_drain_goes_before_a_readmission() -> None:
    async def body(stage: Stage) -> None:
        lifecycle = stage.router.lifecycle
        stage.fleet.fail_with("whole:wait(1)", iid="d0")
        await lifecycle.drain(["d0"])
        async with trio.open_nursery() as nursery:

            @nursery.start_soon
            async def readmit() -> None:
                verdict = await lifecycle.readmit("d0", same_process=True)
                assert verdict.failed is Check.GENERATION
                assert "out of service again" in verdict.reason

            await trio.sleep(0.5)
            begun = trio.current_time()
            await lifecycle.drain(["d0"])
            assert stage.state("d0") is S.DRAINED
            await trio.sleep(0.01)
            assert lifecycle.checking("d0") is None
            assert trio.current_time() == pytest.approx(begun + 0.01)
        assert stage.state("d0") is S.DRAINED

    play(body)


def test_an_engine_that_fails_its_checks_with_work_on_it_is_draining() -> None:
    async def body(stage: Stage) -> None:
        lifecycle = stage.router.lifecycle
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stage.ask, "long", 200)
            await trio.sleep(0.3)
            await lifecycle.drain(["d0", "d1"])
            (busy,) = (iid for iid in ("d0", "d1") if not lifecycle.ready_to_stop(iid))
            assert (await lifecycle.readmit(busy)).failed is Check.IDENTITY
            assert stage.state(busy) is S.DRAINING
            await stage.until_stoppable(busy)
            assert stage.router.core.residents(busy) == 0

    assert not play(body).failed


def test_a_readmission_that_is_given_up_anywhere_leaves_it_drained_and_kv_free() -> None:
    """Cancelled before every single step in turn.

    While the answer to a prefill is on its way, nobody knows the name of what it holds: that
    moment, and no other, is left to the lease.
    """
    at_step = AtStep()
    leased: list[Check | None] = []

    async def main(n: int) -> bool:
        async with open_fleet(fleet_config()) as engines, engines.open_router() as router:
            lifecycle = router.lifecycle
            checks: list[Check | None] = []
            await lifecycle.drain(["d0"])
            with trio.CancelScope() as scope:

                def cancel() -> None:
                    checks.append(lifecycle.checking("d0"))
                    scope.cancel(reason=f"step {n}")

                at_step.arm(n, cancel)
                await lifecycle.readmit("d0", same_process=True)
            over = at_step.disarm()
            state = router.core.health.standings.state("d0")
            assert state is (S.DRAINED if scope.cancelled_caught else S.SERVING)
            assert lifecycle.checking("d0") is None
            await trio.sleep(5)  # less than any lease
            if not engines.idle:
                leased.extend(checks)
                assert not engines["p0"].stats.inflight.total()
                assert engines["d0"].idle
            return over

    n = 1
    while not run_seeded(main, n, instruments=[at_step]):
        n += 1
    assert n > 60
    assert leased == [Check.TRANSFER]


@pytest.mark.parametrize("policy", ["individual", "whole_wave"])
@pytest.mark.parametrize("how", ["stopped", "killed"])
def test_a_rolling_restart_under_load_fails_no_request(policy: str, how: str) -> None:
    engines = ["p0", "p1", "d0", "d1"]
    resident: dict[str, int] = {}

    async def body(stage: Stage) -> None:
        lifecycle = stage.router.lifecycle
        async with trio.open_nursery() as load:
            load.start_soon(stage.load)
            await trio.sleep(2)
            for iid in engines:
                while not stage.router.core.residents(iid):  # noqa: ASYNC110 - time is virtual
                    await trio.sleep(0.01)
                resident[iid] = stage.router.core.residents(iid)
                await lifecycle.drain([iid], deadline_s=30)
                await stage.until_stoppable(iid)
                if how == "killed":
                    stage.fleet[iid].die()
                    await trio.sleep(3)
                    stage.fleet[iid].restart()
                    await trio.sleep(1)
                else:
                    await stage.restart(iid)
                assert passed(await lifecycle.readmit(iid))
                await trio.sleep(5)
            load.cancel_scope.cancel(reason="all were restarted")

    config = fleet(recovery={"engine_restart_policy": policy})
    stage = play(body, config, time=TimeModel(prefill=(0.0, 0.0, 0.04)))
    assert all(resident[iid] for iid in engines)
    assert all(stage.fleet[iid].stats.restarts == 1 for iid in engines)
    assert stage.failed == []
    completed = [row for row in stage.rows if row.terminal is Terminal.COMPLETED]
    cut = [row for row in stage.rows if row.terminal is Terminal.CANCELLED]
    assert len(completed) + len(cut) == len(stage.rows) > 500
    assert {len(row.attempts) for row in completed} == {1}
    late = completed[len(completed) * 9 // 10 :]
    assert {row.attempts[0].prefill for row in late} == {"p0", "p1"}
    assert {row.attempts[0].decode for row in late} == {"d0", "d1"}


def test_in_a_whole_wave_the_others_prove_themselves_beside_the_new_one() -> None:
    """All but the last of each role are held when another process passes the identity check."""
    seen: list[Any] = []

    async def body(stage: Stage) -> None:
        await stage.drain_and_restart("d0")
        stage.router.telemetry.journal.drain(1000)
        assert passed(await stage.router.lifecycle.readmit("d0"))
        await trio.sleep(15)
        rows = stage.router.telemetry.journal.drain(1000)
        seen.extend(attrs.astuple(row)[1:4] for row in rows)
        assert {stage.state(iid) for iid in ("p0", "p1", "d0", "d1")} == {S.SERVING}

    config = fleet(recovery={"engine_restart_policy": "whole_wave"})
    play(body, config)
    assert [each[0] for each in seen if each[2] == S.HELD] == ["p0"]
