"""Draining: no new work at once, what runs goes on, and when the engine may be stopped."""

from __future__ import annotations

import pytest
import trio
from lifecycle_stage import Stage, play

from narwhal.fleet import EngineState
from narwhal.model import Terminal
from narwhal.testing import fleet_config

S = EngineState


def test_an_idle_engine_may_be_stopped_at_once() -> None:
    async def body(stage: Stage) -> None:
        begun = trio.current_time()
        await stage.router.lifecycle.drain(["d0"])
        assert trio.current_time() == begun
        assert stage.router.lifecycle.ready_to_stop("d0")
        assert stage.changes("d0") == ["draining", "drained"]
        status = stage.router.lifecycle.status("d0")
        assert status is not None
        assert status.process_start_s == stage.fleet["d0"].started_at
        assert stage.router.lifecycle.status("d1") is None

    play(body)


def test_residents_finish_and_nothing_new_comes() -> None:
    """The stream on d0 lasts 2 s or so; everything that comes after the drain goes to d1."""

    async def body(stage: Stage) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stage.ask, "long", 150)
            await trio.sleep(0.3)
            (busy,) = (iid for iid in ("d0", "d1") if stage.router.core.residents(iid))
            await stage.router.lifecycle.drain([busy])
            assert stage.state(busy) is S.DRAINING
            assert stage.router.core.residents(busy) == 1
            before = stage.fleet[busy].stats.routes["/v1/completions"]
            for n in range(5):
                await stage.ask(f"later {n}")
            assert not stage.router.lifecycle.ready_to_stop(busy)
            assert stage.fleet[busy].stats.routes["/v1/completions"] == before
            await stage.until_stoppable(busy)
        assert len(stage.rows) == 6
        assert stage.rows[-1].completion_tokens == 150

    assert not play(body).failed


def test_a_producer_waits_for_its_handoff_to_be_fetched() -> None:
    """Seats for one decode at a time: the second prompt is prefilled long before it can decode."""

    async def body(stage: Stage) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stage.ask, "first", 100)
            await trio.sleep(0.1)
            nursery.start_soon(stage.ask, "second", 10)
            await trio.sleep(0.5)
            core = stage.router.core
            assert core.ledger.residents("p0", "prefill") == 0  # type: ignore[arg-type]  # its value
            await stage.router.lifecycle.drain(["p0"])
            assert stage.state("p0") is S.DRAINING
            assert core.residents("p0") == 1
            await stage.until_stoppable("p0")
            stage.fleet["p0"].take_down(new_process=True)
        assert [row.terminal for row in stage.rows] == [Terminal.COMPLETED] * 2

    config = fleet_config(prefill=1, decode=1, serving={"decode_concurrency": 1})
    assert not play(body, config).failed


def test_the_last_decoder_takes_what_was_prefilled_for_it() -> None:
    """A prompt that is being prefilled when the only decoder is drained still decodes there."""

    async def body(stage: Stage) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stage.ask, "word " * 2000, 5)
            await trio.sleep(0.15)
            assert stage.router.core.ledger.residents("p0", "prefill")  # type: ignore[arg-type]
            await stage.router.lifecycle.drain(["d0"])
            assert stage.state("d0") is S.DRAINING
            await stage.until_stoppable("d0")
        (row,) = stage.rows
        assert (row.attempts[0].prefill, row.attempts[0].decode) == ("p0", "d0")
        await stage.ask("whole")
        assert stage.rows[-1].attempts[0].decode == "p0"

    assert not play(body, fleet_config()).failed


def test_the_fleet_as_a_wave() -> None:
    """What was admitted ends well; what comes later is refused; then all may be stopped."""

    async def body(stage: Stage) -> None:
        engines = ["p0", "p1", "d0", "d1"]
        async with trio.open_nursery() as nursery:
            for n in range(12):
                nursery.start_soon(stage.ask, f"{n} " + "word " * (n * 60), 20)
            await trio.sleep(0.1)
            await stage.router.lifecycle.drain(engines)
            assert {stage.state(iid) for iid in engines} == {S.DRAINING}
            assert stage.router.not_ready() == ["no engine is in service"]
            await stage.ask("late")
            assert len(stage.failed) == 1
            assert "engine" in stage.failed[0]
            for iid in engines:
                await stage.until_stoppable(iid)
        done = [row for row in stage.rows if row.terminal is Terminal.COMPLETED]
        assert (len(done), len(stage.failed)) == (12, 1)

    play(body)


def test_a_deadline_that_passes_cuts_nothing_short() -> None:
    async def body(stage: Stage) -> None:
        lifecycle = stage.router.lifecycle
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stage.ask, "long", 300)
            await trio.sleep(0.3)
            await lifecycle.drain(["d0", "d1"], deadline_s=2.0)
            (busy,) = (iid for iid in ("d0", "d1") if not lifecycle.ready_to_stop(iid))
            status = lifecycle.status(busy)
            assert status is not None
            assert status.deadline_s == pytest.approx(2.0)
            assert not status.overdue
            await trio.sleep(2.5)
            status = lifecycle.status(busy)
            assert status is not None
            assert status.deadline_s == pytest.approx(-0.5)
            assert status.overdue
            await lifecycle.drain([busy], deadline_s=10.0)
            status = lifecycle.status(busy)
            assert status is not None
            assert status.since_s == pytest.approx(2.5)
            assert not status.overdue
            await stage.until_stoppable(busy)
            assert stage.changes(busy) == ["draining", "drained"], "drained again changes nothing"
        await trio.sleep(20)
        status = lifecycle.status(busy)
        assert status is not None
        assert not status.overdue, "it is not late any more once it is empty"

    assert not play(body).failed


@pytest.mark.parametrize("state", [S.HELD, S.EJECTED, S.BLOCKED])
def test_an_engine_that_is_out_of_service_stays_out_by_the_operator_s_word(
    state: EngineState,
) -> None:
    async def body(stage: Stage) -> None:
        stage.router.core.health.standings.restore("d0", state, 0.0, "a test")
        await stage.router.lifecycle.drain(["d0"])
        await trio.sleep(60)
        assert stage.state("d0") is S.DRAINED

    play(body)


def test_an_engine_that_hangs_is_drained_all_the_same() -> None:
    async def body(stage: Stage) -> None:
        stage.fleet.fail_with("version:hang", iid="d0")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stage.router.lifecycle.drain, ["d0"])
            await trio.sleep(0.01)
            assert stage.router.lifecycle.ready_to_stop("d0")
        status = stage.router.lifecycle.status("d0")
        assert status is not None
        assert status.process_start_s is None

    play(body)
