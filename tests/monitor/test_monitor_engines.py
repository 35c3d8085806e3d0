"""Engines that die, hang, restart, slow down and come back, watched by the whole router."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import attrs
import pytest
import trio

from narwhal.emulator import Leg
from narwhal.fleet import EngineState
from narwhal.model import FailureClass, Phase, RequestFailed, Role
from narwhal.router import Router
from narwhal.telemetry import Probe, ProbeResult, RequestRow
from narwhal.testing import MemoryFleet, fleet_config, open_fleet, run_seeded

ASK = {"model": "emulated", "prompt": "hello there", "max_tokens": 4}
S = EngineState


class Scene:
    def __init__(self, fleet: MemoryFleet, router: Router) -> None:
        self.fleet = fleet
        self.router = router

    def state(self, iid: str) -> EngineState:
        return self.router.core.health.standings.state(iid)

    def reason(self, iid: str) -> str:
        return self.router.core.health.standings.reason(iid)

    @property
    def states(self) -> set[EngineState]:
        return {self.state(iid) for iid in self.router.core.engines}

    async def ask(self, count: int = 1) -> int:
        """Ask one after the other; how many were served."""
        served = 0
        for _ in range(count):
            with suppress(RequestFailed):
                await self.router.complete(ASK)
                served += 1
        return served

    async def until(self, happened: Callable[[], bool], *, within: float = 120.0) -> float:
        """Wait for it; the seconds that took."""
        begun = trio.current_time()
        with trio.fail_after(within):
            while not happened():  # noqa: ASYNC110 - in virtual time, looking costs nothing
                await trio.sleep(0.05)
        return trio.current_time() - begun

    async def ask_until(self, happened: Callable[[], bool], *, most: int = 200) -> int:
        """Ask a second apart until it happens; how many requests that took."""
        for count in range(most):
            if happened():
                return count
            await self.ask()
            await trio.sleep(1.0)
        raise AssertionError("it does not happen")


def play(
    script: Callable[[Scene], Awaitable[None]],
    *,
    prefill: int = 2,
    decode: int = 2,
    seed: int = 0,
    recovery: dict[str, Any] | None = None,
    controller: dict[str, Any] | None = None,
    pin: bool = False,
    **serving: Any,
) -> None:
    serving = {"max_attempts": 2, "handoff_timeout_s": 20.0} | serving
    config = fleet_config(
        prefill=prefill,
        decode=decode,
        serving=serving,
        recovery=recovery or {},
        controller=controller or {},
    )
    if pin:
        engines = tuple(attrs.evolve(each, pin=True) for each in config.engines)
        config = attrs.evolve(config, engines=engines)

    async def main() -> None:
        async with open_fleet(config, seed=seed) as fleet, fleet.open_router() as router:
            await script(Scene(fleet, router))

    run_seeded(main, seed=seed)


@pytest.mark.parametrize("iid", ["p0", "d0"])
def test_an_engine_that_hangs_while_it_says_it_is_well_is_out_until_it_generates(
    iid: str,
) -> None:
    async def script(scene: Scene) -> None:
        leg = Leg.PREFILL if iid == "p0" else Leg.DECODE
        scene.fleet.fail_with(f"{leg}:hang", iid=iid)
        await scene.ask_until(lambda: scene.state(iid) is S.HELD or scene.state(iid) is S.EJECTED)
        seen = scene.fleet[iid].stats.count("received", leg)
        assert await scene.ask(10) == 10
        # Only the monitor asks it to generate any more.
        await trio.sleep(60.0)
        assert scene.state(iid) is S.EJECTED
        assert "no answer within" in scene.reason(iid) or "first token" in scene.reason(iid)
        assert scene.fleet[iid].stats.count("received", leg) - seen <= 8
        scene.fleet.fail_with(iid=iid)
        await scene.until(lambda: scene.state(iid) is S.SERVING, within=15.0)
        assert await scene.ask(4) == 4

    play(script, prefill_timeout_s=2.5)


def test_an_engine_that_died_is_found_by_its_silence_and_is_back_when_it_generates() -> None:
    async def script(scene: Scene) -> None:
        await trio.sleep(3.0)  # every engine was seen well once
        scene.fleet["d0"].die()
        took = await scene.until(lambda: scene.state("d0") is S.EJECTED)
        assert 10 - 2 <= took <= 2 * 10 + 2  # two liveness probes, ten passes apart
        assert "liveness" in scene.reason("d0")
        assert await scene.ask(6) == 6
        scene.fleet["d0"].restart()
        assert await scene.until(lambda: scene.state("d0") is S.SERVING) <= 10 + 2
        process = scene.router.core.health.incarnations["d0"].process_start_s
        assert process == scene.fleet["d0"].started_at

    play(script)


def test_a_router_that_starts_before_its_engines_says_so_at_once() -> None:
    async def script(scene: Scene) -> None:
        for engine in scene.fleet.engines.engines:
            engine.take_down()
        assert await scene.until(lambda: bool(scene.router.not_ready())) <= 3.0
        assert scene.router.not_ready() == ["no engine is in service"]
        for engine in scene.fleet.engines.engines:
            engine.restart()
        assert await scene.until(lambda: not scene.router.not_ready()) <= 2.0
        await scene.until(lambda: scene.states == {S.SERVING})
        seen = {iid: scene.fleet[iid].stats.routes["/health"] for iid in scene.router.core.engines}
        await trio.sleep(10.0)
        asked = [scene.fleet[iid].stats.routes["/health"] - before for iid, before in seen.items()]
        assert asked == [1] * 4  # as seldom as any other, once they were seen

    play(script, pin=True)


def test_a_slow_health_page_now_and_then_is_no_reason() -> None:
    async def script(scene: Scene) -> None:
        for iid in scene.router.core.engines:
            scene.fleet.fail_with("health:wait(3)", iid=iid)
        for _ in range(60):
            await trio.sleep(2.0)
            assert scene.states == {S.SERVING}
        probes = scene.router.telemetry.metrics.probes
        assert probes[Probe.HEALTH, ProbeResult.PASSED].value > 10

    play(script)


def test_a_stream_of_bad_requests_neither_opens_nor_closes_anything() -> None:
    async def script(scene: Scene) -> None:
        bad = {**ASK, "max_tokens": 10_000_000}
        for _ in range(40):
            with pytest.raises(RequestFailed) as caught:
                await scene.router.complete(bad)
            assert caught.value.outcome.status == 400
        assert scene.states == {S.SERVING}
        assert await scene.ask() == 1

    play(script)


def test_a_busy_engine_is_backpressure_and_serves_at_once_when_it_is_not() -> None:
    """Twenty times 503, and then well again."""

    async def script(scene: Scene) -> None:
        scene.fleet.fail_with("decode:status(503)*20", iid="d0")
        while scene.fleet["d0"].faults.pending:
            await scene.ask()
            await trio.sleep(0.3)
            assert scene.states == {S.SERVING}
        await trio.sleep(1.0)
        assert await scene.ask(4) == 4

    play(script, decode=1)


@pytest.mark.parametrize("fault", ["hang", "status(500)", "tokens(0);rst"])
def test_the_last_engine_of_a_role_is_not_blacked_out_by_soft_evidence(fault: str) -> None:
    async def script(scene: Scene) -> None:
        scene.fleet.fail_with(f"decode:{fault}", iid="d0")
        for _ in range(12):
            await scene.ask()
            await trio.sleep(1.0)
            assert scene.state("d0") is S.SERVING
        scene.fleet.fail_with()
        await trio.sleep(31.0)
        assert await scene.ask(3) == 3

    play(script, decode=1, max_attempts=1)


def test_all_engines_down_and_back_serve_again_within_two_passes() -> None:
    async def script(scene: Scene) -> None:
        engines = scene.fleet.engines.engines
        for engine in engines:
            engine.take_down(new_process=True)
        await scene.until(lambda: scene.states == {S.EJECTED})
        assert "no engine is in service" in scene.router.not_ready()
        with pytest.raises(RequestFailed) as caught:
            await scene.router.complete(ASK)
        outcome = caught.value.outcome
        assert (outcome.status, outcome.code, outcome.retry_after) == (503, "no_engine", 1)
        await trio.sleep(300.0)
        for engine in engines:
            engine.restart()
        assert await scene.until(lambda: not scene.router.not_ready()) <= 2.0
        assert await scene.ask(4) == 4
        await scene.until(lambda: scene.states == {S.SERVING})

    play(script)


def test_one_role_gone_gets_an_engine_of_the_other_and_keeps_it() -> None:
    """The floor is restored; who comes back has the role that it had, and nothing is undone."""

    async def script(scene: Scene) -> None:
        roster = scene.router.core.roster
        for iid in ("p0", "p1"):
            scene.fleet[iid].take_down()
        await scene.until(lambda: {scene.state("p0"), scene.state("p1")} == {S.EJECTED})
        await scene.until(lambda: roster.roles["d0"] is Role.PREFILL, within=2.0)
        assert await scene.ask(4) == 4
        assert roster.takers(Phase.PREFILL) == ["d0"]
        assert roster.takers(Phase.DECODE) == ["d1"]
        for iid in ("p0", "p1"):
            scene.fleet[iid].restart()
        await scene.until(lambda: scene.states == {S.SERVING})
        assert roster.takers(Phase.PREFILL) == ["p0", "p1", "d0"]
        assert await scene.ask(4) == 4

    play(script)


def test_one_role_gone_leaves_the_other_to_do_both_if_its_engines_are_pinned() -> None:
    async def script(scene: Scene) -> None:
        for iid in ("p0", "p1"):
            scene.fleet[iid].take_down()
        await scene.until(lambda: {scene.state("p0"), scene.state("p1")} == {S.EJECTED})
        assert await scene.ask(4) == 4
        assert scene.router.core.roster.takers(Phase.PREFILL) == ["d0", "d1"]
        for iid in ("p0", "p1"):
            scene.fleet[iid].restart()
        await scene.until(lambda: scene.states == {S.SERVING})
        assert scene.router.core.roster.takers(Phase.PREFILL) == ["p0", "p1"]

    play(script, pin=True)


def test_a_restart_is_noticed_and_what_was_known_of_the_old_process_is_over() -> None:
    async def script(scene: Scene) -> None:
        core = scene.router.core
        await scene.until(lambda: "p0" in core.health.incarnations)
        core.orphans.add("p0", 1000, until=trio.current_time() + 1e6, now=trio.current_time())
        core.blame("p0", Phase.PREFILL, FailureClass.STREAM)
        scene.fleet["p0"].take_down(0.5, new_process=True)
        await scene.until(lambda: core.telemetry.metrics.engine_restarts["p0"].value == 1)
        assert core.orphans.tokens("p0", trio.current_time()) == 0
        assert core.health.streaks.counts("p0") == {}
        await scene.until(lambda: scene.state("p0") is S.SERVING)
        assert await scene.ask(4) == 4

    play(script)


def test_what_proves_nothing_keeps_an_engine_held() -> None:
    async def script(scene: Scene) -> None:
        scene.fleet.fail_with("decode:status(500)", iid="d0")
        await scene.ask_until(lambda: scene.state("d0") is not S.SERVING)
        scene.fleet.fail_with("decode:status(429)", iid="d0")
        before = scene.state("d0")
        await trio.sleep(60.0)
        unsure = scene.router.telemetry.metrics.probes[Probe.VERIFICATION, ProbeResult.UNSURE]
        assert unsure.value >= 4
        assert scene.state("d0") is before
        scene.fleet.fail_with(iid="d0")
        await scene.until(lambda: scene.state("d0") is S.SERVING, within=15.0)

    play(script)


def test_probes_go_through_while_serving_holds_every_connection() -> None:
    async def script(scene: Scene) -> None:
        async with trio.open_nursery() as nursery:
            for _ in range(8):
                nursery.start_soon(scene.router.complete, {**ASK, "max_tokens": 4000})
            await trio.sleep(30.0)
            assert set(scene.router.core.health.incarnations) == {"p0", "p1", "d0", "d1"}
            assert scene.states == {S.SERVING}
            nursery.cancel_scope.cancel(reason="seen")

    play(script, max_connections=8)


@pytest.mark.parametrize("iid", ["p0", "d0"])
def test_a_restart_at_any_moment_of_a_request_costs_one_retry_and_no_wrong_answer(
    iid: str,
) -> None:
    """On its port, between the legs or in the middle of one: 60 moments over its whole length."""
    ask = {**ASK, "prompt": "word " * 400, "max_tokens": 12}
    config = fleet_config(
        serving={"max_attempts": 2, "handoff_timeout_s": 20.0, "retry_base_s": 0.5}
    )

    async def once(moment: float | None) -> tuple[str, int, float]:
        async with open_fleet(config) as fleet, fleet.open_router() as router:
            rows: list[RequestRow] = []
            router.telemetry.listen(rows.append)
            async with trio.open_nursery() as nursery:
                if moment is not None:

                    async def restart(at: float) -> None:
                        await trio.sleep(at)
                        fleet[iid].take_down(0.05, new_process=True)

                    nursery.start_soon(restart, moment)
                begun = trio.current_time()
                answer = await router.complete(ask)
                took = trio.current_time() - begun
                nursery.cancel_scope.cancel(reason="answered")
            return answer["choices"][0]["text"], len(rows[0].attempts), took

    text, attempts, took = run_seeded(once, None)
    assert attempts == 1
    retried = 0
    for n in range(60):
        again, attempts, _ = run_seeded(once, took * n / 60)
        assert again == text
        assert attempts <= 2
        retried += attempts - 1
    assert retried > 0


@pytest.mark.parametrize("roles", [{"prefill": 2, "decode": 2}, {"prefill": 0, "decode": 2}])
def test_whoever_waits_for_a_place_when_the_last_engine_goes_is_told_so(
    roles: dict[str, Any],
) -> None:
    async def script(scene: Scene) -> None:
        ended: list[tuple[int, str | None]] = []

        async def ask() -> None:
            try:
                await scene.router.complete({**ASK, "prompt": "word " * 3000})
            except RequestFailed as error:
                ended.append((error.outcome.status, error.outcome.code))

        async with trio.open_nursery() as nursery:
            for _ in range(12):
                nursery.start_soon(ask)
            await trio.sleep(0.1)
            core = scene.router.core
            for iid in core.engines:
                core.apply(core.health.lost(iid, trio.current_time(), "it is gone"))
                scene.fleet[iid].take_down()
        assert len(ended) == 12
        assert (503, "no_engine") in ended
        assert all(status in (502, 503) for status, _ in ended), ended

    play(script, **roles, prefill_concurrency=1, decode_concurrency=1, max_attempts=1)
