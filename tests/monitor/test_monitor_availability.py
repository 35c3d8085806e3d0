"""With one engine of four in trouble at a time, and two attempts, next to nobody notices."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Awaitable, Callable

import pytest
import trio

from narwhal.emulator import EmulatedEngine
from narwhal.model import RequestFailed
from narwhal.testing import MemoryFleet, fleet_config, open_fleet, run_seeded

Trouble = Callable[[MemoryFleet, EmulatedEngine], Awaitable[None]]
LASTS_S = 12.0


async def killed(fleet: MemoryFleet, engine: EmulatedEngine) -> None:
    engine.die()
    await trio.sleep(LASTS_S)
    engine.restart()


async def restarted(fleet: MemoryFleet, engine: EmulatedEngine) -> None:
    engine.take_down(3.0, new_process=True)
    await trio.sleep(LASTS_S)


async def flapping(fleet: MemoryFleet, engine: EmulatedEngine) -> None:
    for _ in range(4):
        engine.take_down(1.5)
        await trio.sleep(LASTS_S / 4)


async def slowed(fleet: MemoryFleet, engine: EmulatedEngine) -> None:
    engine.core.time = engine.settings.time.faster(0.1)
    await trio.sleep(LASTS_S)
    engine.core.time = engine.settings.time


def faulty(fault: str) -> Trouble:
    async def trouble(fleet: MemoryFleet, engine: EmulatedEngine) -> None:
        fleet.fail_with(fault, iid=engine.iid)
        await trio.sleep(LASTS_S)
        fleet.fail_with(iid=engine.iid)

    return trouble


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize(
    "trouble",
    [
        killed,
        restarted,
        flapping,
        slowed,
        faulty("any:hang"),
        faulty("any:status(500)"),
        faulty("any:tokens(1);rst"),
    ],
    ids=["killed", "restarted", "flapping", "slowed", "hanging", "failing", "cutting"],
)
def test_nearly_all_are_served(trouble: Trouble, seed: int) -> None:
    """Whole answers: of those that any router could serve, none is lost with an engine."""
    rng, ended = random.Random(seed), Counter[str]()
    config = fleet_config(
        prefill=2,
        decode=2,
        serving={"max_attempts": 2, "handoff_timeout_s": 20.0, "prefill_timeout_s": 5.0},
        engine={"decode_read_timeout_s": 5.0},
    )

    async def main() -> None:
        async with open_fleet(config, seed=seed) as fleet, fleet.open_router() as router:

            async def ask(n: int) -> None:
                body = {
                    "model": "emulated",
                    "prompt": f"{n} " + "word " * rng.randint(5, 300),
                    "max_tokens": rng.randint(2, 60),
                }
                try:
                    await router.complete(body)
                    ended["completed"] += 1
                except RequestFailed as error:
                    ended[f"{error.outcome.code}: {error.outcome.message}"] += 1

            async def trouble_them() -> None:
                for engine in fleet.engines.engines:
                    await trio.sleep(10.0)
                    await trouble(fleet, engine)
                    await trio.sleep(12.0)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(trouble_them)
                for n in range(500):
                    nursery.start_soon(ask, n)
                    await trio.sleep(rng.expovariate(4.0))

    run_seeded(main, seed=seed)
    assert ended.total() == 500
    assert ended["completed"] >= 0.99 * 500, ended
