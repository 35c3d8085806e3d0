"""A router with emulated engines in memory, for what an operator does with them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import attrs
import trio

from narwhal import RequestFailed, Router
from narwhal.config import FleetConfig
from narwhal.emulator import EmulatedEngine
from narwhal.fleet import EngineState
from narwhal.monitor import Verdict
from narwhal.telemetry import EngineRow, RequestRow
from narwhal.testing import MemoryFleet, fleet_config, open_fleet, run_seeded

from state_schema import check_state_of

ALL_CHECKS = ("health", "model", "identity", "contract", "generation", "transfer", "health")


@attrs.define
class Stage:
    """What a test has in its hands."""

    fleet: MemoryFleet
    router: Router
    rows: list[RequestRow] = attrs.field(factory=list)
    failed: list[str] = attrs.field(factory=list)
    """What requests failed with."""

    def state(self, iid: str) -> EngineState:
        return self.router.core.health.standings.state(iid)

    def reason(self, iid: str) -> str:
        return self.router.core.health.standings.reason(iid)

    def changes(self, iid: str) -> list[str]:
        """The engine's journal: where each change led."""
        rows = self.router.telemetry.journal.drain(10_000)
        return [row.target for row in rows if isinstance(row, EngineRow) and row.engine == iid]

    async def ask(self, tag: str = "x", tokens: int = 20) -> None:
        request = {"model": "emulated", "prompt": f"hello {tag}", "max_tokens": tokens}
        try:
            await self.router.complete(request)
        except RequestFailed as error:
            self.failed.append(str(error))

    async def load(self, every: float = 0.1, tokens: int = 60) -> None:
        """Two requests at a time, so that both engines of a role have work, until cancelled."""
        n = 0
        async with trio.open_nursery() as nursery:
            while True:
                nursery.start_soon(self.ask, f"{n} a", tokens)
                nursery.start_soon(self.ask, f"{n} b", tokens)
                n += 1
                await trio.sleep(every)

    async def until_stoppable(self, iid: str) -> None:
        while not self.router.lifecycle.ready_to_stop(iid):  # noqa: ASYNC110 - time is virtual
            await trio.sleep(0.1)

    async def restart(self, iid: str, **settings: Any) -> None:
        """Another process at its address, with these settings changed."""
        engine = self.fleet[iid]
        engine.take_down(2.0, new_process=True)
        await trio.sleep(1.0)
        change(engine, **settings)
        await trio.sleep(4.0)
        assert engine.outage is None

    async def drain_and_restart(self, iid: str, **settings: Any) -> None:
        await self.router.lifecycle.drain([iid])
        await self.until_stoppable(iid)
        await self.restart(iid, **settings)


def change(engine: EmulatedEngine, **settings: Any) -> None:
    engine.settings = attrs.evolve(engine.settings, **settings)


Body = Callable[[Stage], Awaitable[None]]


def play(body: Body, config: FleetConfig | None = None, **engines: Any) -> Stage:
    """Run `body` in virtual time; afterwards nothing may be left anywhere."""
    stages: list[Stage] = []

    async def main() -> None:
        async with open_fleet(config or fleet_config(prefill=2, decode=2), **engines) as fleet:
            async with fleet.open_router() as router:
                router.telemetry._journaled = True
                stage = Stage(fleet, router)
                router.telemetry.listen(stage.rows.append)
                stages.append(stage)
                with trio.fail_after(300):
                    await body(stage)
                check_state_of(router, trio.current_time())
                core = router.core
                with trio.fail_after(120):
                    while core.ledger.total:  # noqa: ASYNC110 - time is virtual
                        await trio.sleep(1)
                assert not core.decodes_to_come
                assert not any(core.handing_over.values())
            with trio.fail_after(120):
                while not fleet.idle:  # noqa: ASYNC110 - time is virtual
                    await trio.sleep(1)

    run_seeded(main)
    return stages[0]


def passed(verdict: Verdict) -> bool:
    assert verdict.failed is None, verdict
    return verdict.passed == ALL_CHECKS
