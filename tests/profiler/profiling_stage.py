"""An emulated fleet and a profiler of it, in virtual time."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from typing import Any

import attrs
import trio
from trio.testing import MockClock

from narwhal.config import FleetConfig
from narwhal.engine import EngineClient, engine_clients
from narwhal.profiler import EngineProfile, Progress, Wanted, profile_engine
from narwhal.testing import MemoryFleet, fleet_config, open_fleet

QUICK = Wanted(
    prefill_lens=(64, 256, 1024, 4096),
    prefill_repeats=3,
    decode_input_lens=(64, 512),
    decode_concurrency=(1, 4),
    decode_tokens=16,
)
"""Enough for a fit of an engine without noise, and over in a moment."""


@attrs.define
class Stage:
    fleet: MemoryFleet
    clients: dict[str, EngineClient]
    steps: list[Progress] = attrs.field(factory=list)
    on_step: Callable[[Progress], None] = lambda _step: None

    @property
    def config(self) -> FleetConfig:
        return self.fleet.config

    async def profile(
        self, wanted: Wanted = QUICK, *, producer: str | None = "p0"
    ) -> EngineProfile:
        def report(step: Progress) -> None:
            self.steps.append(step)
            self.on_step(step)

        return await profile_engine(
            self.config,
            self.clients["d0"],
            producer=None if producer is None else self.clients[producer],
            wanted=wanted,
            rng=random.Random(7),
            report=report,
        )


def on_stage(
    act: Callable[[Stage], Awaitable[None]],
    *,
    sections: dict[str, Any] | None = None,
    seed: int = 0,
    **changes: Any,
) -> None:
    """Run `act`; afterwards no engine holds anything, and no connection is in use."""

    async def main() -> None:
        config = fleet_config(**(sections or {}))
        async with open_fleet(config, seed=seed, **changes) as fleet:
            clients = engine_clients(
                fleet.config, environ=fleet.environ, connect=fleet.connect, data_connections=300
            )
            await act(Stage(fleet, clients))
            await trio.sleep(0.2)  # aborts are on their way
            assert fleet.idle
            for client in clients.values():
                for pool in (client.pools.data, client.pools.counting, client.pools.control):
                    assert (pool.busy, pool.waiting) == (0, 0)
                client.close()

    trio.run(main, clock=MockClock(autojump_threshold=0))
