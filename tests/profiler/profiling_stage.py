"""An emulated fleet and a profiler of it, in virtual time."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import attrs
import trio

from narwhal.config import FleetConfig
from narwhal.engine import EngineClient, engine_clients
from narwhal.net import ByteStream
from narwhal.profiler import EngineProfile, Progress, Wanted, profile_engine
from narwhal.testing import MemoryFleet, fleet_config, open_fleet, run_seeded

T = TypeVar("T")

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
    delay_s: float = 0.0
    """What opening a connection takes."""

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
    act: Callable[[Stage], Awaitable[T]],
    *,
    sections: dict[str, Any] | None = None,
    seed: int = 0,
    instruments: Sequence[trio.abc.Instrument] = (),
    **changes: Any,
) -> T:
    """Run `act`; afterwards no engine holds anything, and no connection is in use."""

    async def main() -> T:
        config = fleet_config(**(sections or {}))
        async with open_fleet(config, seed=seed, **changes) as fleet:
            stage = Stage(fleet, {})

            async def connect(host: str, port: int) -> ByteStream:
                await trio.sleep(stage.delay_s)
                return await fleet.connect(host, port)

            stage.clients = clients = engine_clients(
                fleet.config, environ=fleet.environ, connect=connect, data_connections=300
            )
            found = await act(stage)
            await trio.sleep(0.2)  # aborts are on their way
            assert fleet.idle
            for client in clients.values():
                for pool in (client.pools.data, client.pools.counting, client.pools.control):
                    assert (pool.busy, pool.waiting) == (0, 0)
                client.close()
            return found

    return run_seeded(main, seed=seed, instruments=instruments)
