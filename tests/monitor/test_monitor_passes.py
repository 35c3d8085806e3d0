"""The monitor's own passes: on schedule, whatever a stage or an engine does."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio

from narwhal.router import Router
from narwhal.testing import MemoryFleet, fleet_config, open_fleet, run_seeded

ASK = {"model": "emulated", "prompt": "hello there", "max_tokens": 4}


def play(script: Callable[[Router, MemoryFleet], Awaitable[None]], **controller: Any) -> None:
    config = fleet_config(controller=controller)

    async def main() -> None:
        async with open_fleet(config) as fleet, fleet.open_router() as router:
            await script(router, fleet)

    run_seeded(main)


def passes(router: Router) -> list[float]:
    """Times of passes from now on."""
    times: list[float] = []
    monitor, run = router.monitor, router.monitor.one_pass

    def noted() -> bool:
        times.append(trio.current_time())
        return run()

    monitor.one_pass = noted  # type: ignore[method-assign]  # to see when it is called
    return times


def test_passes_are_on_an_absolute_schedule_and_late_ones_are_not_made_up_for() -> None:
    async def script(router: Router, fleet: MemoryFleet) -> None:
        times = passes(router)
        await trio.sleep(5.2)
        assert times == pytest.approx([1.0, 2.0, 3.0, 4.0, 5.0], abs=1e-6)
        times.clear()
        clock = trio.lowlevel.current_clock()
        clock.jump(3.1)  # type: ignore[attr-defined]  # the run stood still for that long
        await trio.sleep(2.0)
        assert times == pytest.approx([8.3, 9.0, 10.0], abs=1e-6)

    play(script)


def test_how_late_a_pass_was_and_what_became_of_it_is_counted() -> None:
    async def script(router: Router, fleet: MemoryFleet) -> None:
        metrics = router.telemetry.metrics
        await trio.sleep(5.2)
        assert metrics.loop_lag.count == 5
        assert metrics.loop_lag.total == pytest.approx(0, abs=1e-6)
        trio.lowlevel.current_clock().jump(3.1)  # type: ignore[attr-defined]  # it stood still
        await trio.sleep(0.1)
        assert metrics.loop_lag.count == 6
        assert metrics.loop_lag.total == pytest.approx(2.3)

        def fail() -> None:
            raise ValueError("no")

        monitor = router.monitor
        monitor._stages = (("broken", fail), *monitor._stages[1:])
        await trio.sleep(1.0)
        counted = {str(result): cell.value for result, cell in metrics.monitor_passes.items()}
        assert counted == {"passed": 6, "failed": 1}
        assert metrics.monitor_pass.count == 7

    play(script)


def test_an_engine_that_hangs_delays_no_pass() -> None:
    async def script(router: Router, fleet: MemoryFleet) -> None:
        fleet.fail_with("health:hang")
        times = passes(router)
        await trio.sleep(30.5)
        assert len(times) == 30

    play(script)


def broken() -> None:
    raise ZeroDivisionError


def test_a_stage_that_fails_stops_no_other_and_too_many_stop_admission() -> None:
    async def script(router: Router, fleet: MemoryFleet) -> None:
        monitor, after = router.monitor, []
        stages = monitor._stages
        monitor._stages = (("first", broken), *stages, ("last", lambda: after.append(1)))
        await trio.sleep(4.5)
        assert len(after) == 4
        assert router.not_ready() == []
        await router.complete(ASK)
        await trio.sleep(1.0)
        assert router.not_ready() == ["5 monitor passes in a row failed: first: ZeroDivisionError"]
        with pytest.raises(Exception, match="takes no new requests") as caught:
            await router.complete(ASK)
        assert caught.value.outcome.code == "degraded"  # type: ignore[attr-defined]  # RequestFailed
        monitor._stages = stages
        await trio.sleep(1.0)
        assert router.not_ready() == []
        await router.complete(ASK)

    play(script)


def test_one_bad_pass_in_between_is_not_counted_on() -> None:
    async def script(router: Router, fleet: MemoryFleet) -> None:
        monitor = router.monitor
        stages = monitor._stages
        await trio.sleep(0.5)
        for _ in range(8):
            monitor._stages = (("bad", broken),)
            await trio.sleep(1.0)
            monitor._stages = stages
            await trio.sleep(1.0)
            assert router.not_ready() == []

    play(script, monitor_failure_limit=2)
