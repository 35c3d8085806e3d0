"""Engines that answer, but too slowly, lose work to the others; with profiles, for those know."""

from __future__ import annotations

import logging
import random
import re
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest
import trio

from narwhal.emulator import TimeModel
from narwhal.fleet import EngineState
from narwhal.model import RequestFailed
from narwhal.router import Router
from narwhal.telemetry import RequestRow
from narwhal.testing import MemoryFleet, fleet_config, open_fleet, run_seeded

S = EngineState
# A pass a second, so that a window of five has samples to spare.
# A stream more makes a difference, so that work is spread.
SPEED = TimeModel(prefill=(0.0, 1e-5, 1e-3), decode=(4e-3, 4e-3, 1e-7))
HEALTH = {"window_s": 5.0, "min_samples": 3}


def play(
    script: Callable[[Router, MemoryFleet, list[RequestRow]], Awaitable[None]],
    *,
    rate: float = 18.0,
) -> None:
    """Half of what three decode engines can do, or another rate, while the script runs."""
    config = fleet_config(
        prefill=1,
        decode=3,
        slo={"ttft_s": 5.0, "tpot_s": 1.0},
        serving={"admission": "predictive", "max_attempts": 2, "handoff_timeout_s": 20.0},
        recovery={"health": HEALTH},
    )
    rng = random.Random(5)

    async def main() -> None:
        rows: list[RequestRow] = []
        async with open_fleet(config, time=SPEED) as fleet, fleet.open_router() as router:
            router.telemetry.listen(rows.append)

            async def ask(n: int) -> None:
                body = {"model": "emulated", "prompt": f"{n} word " * 9, "max_tokens": 20}
                with suppress(RequestFailed):
                    await router.complete(body)

            async def ask_all() -> None:
                async with trio.open_nursery() as asks:
                    for n in range(100_000):
                        asks.start_soon(ask, n)
                        await trio.sleep(rng.expovariate(rate))

            async with trio.open_nursery() as nursery:
                nursery.start_soon(ask_all)
                await script(router, fleet, rows)
                nursery.cancel_scope.cancel(reason="the script is over")

    run_seeded(main)


def slow_down(fleet: MemoryFleet, *iids: str, times: float) -> None:
    for iid in iids:
        engine = fleet[iid]
        engine.core.time = engine.settings.time.faster(1 / times)


def served_by(rows: list[RequestRow]) -> Counter[str | None]:
    return Counter(row.attempts[-1].decode for row in rows if row.attempts)


async def until(happened: Callable[[], bool]) -> float:
    begun = trio.current_time()
    with trio.fail_after(200.0):
        while not happened():  # noqa: ASYNC110 - in virtual time, looking costs nothing
            await trio.sleep(0.5)
    return trio.current_time() - begun


def test_a_slow_engine_is_chosen_last_then_taken_out_and_back_when_it_is_fast(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "narwhal.monitor")

    async def script(router: Router, fleet: MemoryFleet, rows: list[RequestRow]) -> None:
        health = router.core.health
        await trio.sleep(30.0)
        assert min(served_by(rows).values()) > 100  # all three have work
        slow_down(fleet, "d0", times=4.0)
        assert 15.0 <= await until(lambda: health.drift.on_probation("d0")) <= 25.0
        assert health.drift.penalty_s("d0") == 1.5
        await trio.sleep(2.0)
        rows.clear()
        await trio.sleep(10.0)
        assert served_by(rows)["d0"] == 0
        await until(lambda: health.standings.state("d0") is S.EJECTED)
        assert "windows in a row at" in health.standings.reason("d0")
        slow_down(fleet, "d0", times=1.0)
        # Out for as long as five windows, although it generates.
        assert 25.0 <= await until(lambda: health.standings.state("d0") is S.SERVING) <= 28.0
        assert health.drift.penalty_s("d0") == 0.0
        rows.clear()
        await trio.sleep(40.0)
        assert served_by(rows)["d0"] > 50
        assert health.standings.state("d0") is S.SERVING

    play(script)
    said = [message for message in caplog.messages if message.startswith("d0: probation: ")]
    assert re.fullmatch(
        r"d0: probation: 3 windows in a row at [\d.]+ times its profile; [\d.]+ is usual for it",
        said[0],
    )


def test_engines_that_are_slow_together_are_left_alone() -> None:
    async def script(router: Router, fleet: MemoryFleet, rows: list[RequestRow]) -> None:
        slow_down(fleet, "d0", "d1", "d2", "p0", times=3.0)
        for _ in range(60):
            await trio.sleep(1.0)
            for iid in ("d0", "d1", "d2", "p0"):
                assert router.core.health.standings.state(iid) is S.SERVING
                assert router.core.health.drift.penalty_s(iid) == 0.0

    play(script, rate=6.0)
