"""What requests share: how news of an engine reaches the legs that wait."""

from __future__ import annotations

from random import Random
from types import SimpleNamespace
from typing import Any, cast

import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from narwhal.model import FailureClass, Phase
from narwhal.router.core import Core

from worlds import fleet_config


def test_a_failure_elsewhere_lets_a_waiting_leg_take_its_last_resort() -> None:
    async def main() -> None:
        config = fleet_config(decode=2, decode_concurrency=1)
        telemetry: Any = SimpleNamespace(
            engine_failed=lambda iid, failure: None, waited_for_seat=lambda phase, seconds: None
        )
        core = Core(
            config,
            cast("Any", {engine.iid: engine for engine in config.engines}),
            telemetry,
            rng=Random(1),
            wall_clock=trio.current_time,
        )
        life: Any = SimpleNamespace(prompt_tokens=7, output_tokens=3)
        first = await core.take(Phase.DECODE, life, ())
        second = await core.take(Phase.DECODE, life, ())
        places = []

        async def wait() -> None:
            places.append(await core.take(Phase.DECODE, life, ()))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await wait_all_tasks_blocked()
            core.blame(first.iid, Phase.DECODE, FailureClass.STREAM)
            first.release()
            await wait_all_tasks_blocked()
            assert not places, "the other one is worth a wait"
            core.blame(second.iid, Phase.TOKENIZE, FailureClass.CONNECTION)
            await wait_all_tasks_blocked()
            assert [place.iid for place in places] == [first.iid]

    trio.run(main, clock=MockClock(autojump_threshold=0))
