"""Keeping the state: what changed, once a pass, never waiting; and what a disk that fails does."""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio
from state_worlds import MemoryStore, running

from narwhal.fleet import EngineState
from narwhal.testing import MemoryFleet, fleet_config, open_fleet, run_seeded

LIMIT = 3
ASK = {"model": "emulated", "prompt": "Say it", "max_tokens": 3}


def play(scene: Callable[[MemoryFleet, MemoryStore], Awaitable[None]]) -> None:
    async def main() -> None:
        config = fleet_config(
            prefill=2,
            decode=2,
            controller={
                "monitor_interval_s": 1.0,
                "monitor_failure_limit": LIMIT,
                "min_prefill": 1,
                "min_decode": 1,
            },
            recovery={"liveness_every": 1000},
        )
        async with open_fleet(config) as fleet:
            await scene(fleet, MemoryStore())

    run_seeded(main, seed=1)


def errors_counted(world: running) -> float:
    return world.router.telemetry.metrics.state_write_errors.value


def test_what_changed_is_kept_at_most_once_a_pass() -> None:
    async def scene(fleet: MemoryFleet, store: MemoryStore) -> None:
        async with running(fleet, store) as world:
            await trio.sleep(2.6)
            assert store.begun == 2, "the second says which processes the engines are"
            await trio.sleep(5)
            assert store.begun == 2, "nothing is new"
            for _ in range(4):
                await world.router.complete(ASK)
            await trio.sleep(1)
            assert store.begun == 3
            assert store.state.counters.total("requests_received_total") == 4
            health, core = world.router.core.health, world.router.core
            core.apply(health.drain("d1", trio.current_time()))
            await trio.sleep(1)
            engines = {each.iid: each for each in store.state.engines}
            assert engines["d1"].state in (EngineState.DRAINING, EngineState.DRAINED)
            assert "operator" in engines["d1"].reason or engines["d1"].reason

    play(scene)


def test_the_last_state_is_kept_at_an_orderly_end() -> None:
    async def scene(fleet: MemoryFleet, store: MemoryStore) -> None:
        async with running(fleet, store) as world:
            await trio.sleep(2.6)
            await world.router.complete(ASK)
        assert (store.begun, store.last_words) == (2, 1)
        assert store.state.counters.total("requests_total") == 1
        async with running(fleet, store):
            await trio.sleep(2.6)
        assert (store.begun, store.last_words) == (4, 1), "there was nothing to add"

    play(scene)


def test_without_a_store_nothing_is_kept() -> None:
    async def scene(fleet: MemoryFleet, store: MemoryStore) -> None:
        async with running(fleet, None) as world:
            await trio.sleep(2)
            assert [name for name, _ in world.router.monitor._stages][-1] != "state"

    play(scene)


def test_a_full_disk_degrades_after_the_limit_and_one_good_write_ends_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scene(fleet: MemoryFleet, store: MemoryStore) -> None:
        core: Any
        async with running(fleet, store) as world:
            core = world.router.core
            store.full = True
            # The first pass begins to write; that it failed is known to the next.
            await trio.sleep(1 + LIMIT - 1 + 0.1)
            assert errors_counted(world) == LIMIT
            assert core.degraded is None
            await trio.sleep(1)
            assert core.degraded == (
                f"{LIMIT} monitor passes in a row failed: state: the state document cannot be "
                "written (recovery.state_path)"
            )
            await trio.sleep(20)
            assert errors_counted(world) == LIMIT + 21
            store.full = False
            await trio.sleep(2)
            assert core.degraded is None
            assert store.state.counters.total("state_write_errors_total") == LIMIT + 21
            assert await world.router.complete(ASK)

    with caplog.at_level(logging.INFO, logger="narwhal"):
        play(scene)
    said = [record.getMessage() for record in caplog.records if "state" in record.getMessage()]
    assert said == [
        (
            "state: state.json: cannot be written: No space left on device; it is tried again "
            "with every monitor pass"
        ),
        "state: writing works again",
    ]


def test_fewer_failures_than_the_limit_do_nothing() -> None:
    async def scene(fleet: MemoryFleet, store: MemoryStore) -> None:
        async with running(fleet, store) as world:
            for _ in range(4):
                await trio.sleep(0.5)
                await world.router.complete(ASK)
                store.full = True
                await trio.sleep(LIMIT - 1)
                store.full = False
                await trio.sleep(2)
                assert world.router.core.degraded is None
            assert errors_counted(world) == 4 * (LIMIT - 1)

    play(scene)


def test_a_disk_that_hangs_piles_nothing_up_and_delays_no_pass() -> None:
    async def scene(fleet: MemoryFleet, store: MemoryStore) -> None:
        store.takes = lambda: 10_000.0
        async with running(fleet, store) as world:
            await trio.sleep(1 + LIMIT + 0.1)
            assert store.begun == 1
            assert world.router.monitor._passes == LIMIT + 2, "the next is being waited for"
            degraded = world.router.core.degraded
            assert degraded is not None
            assert "still being written" in degraded
            assert world.router.not_ready() == [degraded]
            await trio.sleep(100)
            assert store.begun == 1
            store.takes = lambda: 0.5
            await trio.sleep(10_000)
            assert world.router.core.degraded is None
            assert json.loads(store.content or b"")["model"] == fleet.config.model

    play(scene)


def test_what_keeps_it_may_have_a_bug(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(MemoryStore):
        async def write(self, content: bytes) -> None:
            raise ZeroDivisionError

        def write_last(self, content: bytes) -> None:
            raise ZeroDivisionError

    async def scene(fleet: MemoryFleet, store: MemoryStore) -> None:
        async with running(fleet, Broken()) as world:
            await trio.sleep(LIMIT + 1.1)
            assert world.router.core.degraded is not None

    play(scene)
    assert "ZeroDivisionError" in caplog.text
