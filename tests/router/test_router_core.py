"""What requests share: how news of an engine reaches the legs that wait."""

from __future__ import annotations

from random import Random
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from narwhal.model import FailureClass, Phase
from narwhal.router.core import Core

from worlds import fleet_config

if TYPE_CHECKING:
    from narwhal.config import FleetConfig


def core_of(config: FleetConfig) -> Core:
    telemetry: Any = SimpleNamespace(
        engine_failed=lambda iid, failure: None, waited_for_seat=lambda phase, seconds: None
    )
    return Core(
        config,
        cast("Any", {engine.iid: engine for engine in config.engines}),
        telemetry,
        rng=Random(1),
        wall_clock=trio.current_time,
    )


def test_a_newcomer_does_not_overtake_who_waits_for_a_doubt_to_end() -> None:
    clock = MockClock()

    async def main() -> None:
        core = core_of(fleet_config(decode=2, decode_concurrency=1))
        life: Any = SimpleNamespace(prompt_tokens=7, output_tokens=3)
        first = await core.take(Phase.DECODE, life, ())
        other = next(iid for iid in core.engines if iid[0] == "d" and iid != first.iid)
        core.roster.failed(other, Phase.DECODE, FailureClass.STREAM, None)
        places = []

        async def wait() -> None:
            places.append(await core.take(Phase.DECODE, life, ()))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await wait_all_tasks_blocked()
            assert not places, "the trusted one is worth a wait"
            clock.jump(10.0)  # the doubt is over, and nobody had a turn since
            assert core.take_nowait(Phase.DECODE, life, ()) is None
        assert [place.iid for place in places] == [other]

    trio.run(main, clock=clock)


def test_a_failure_elsewhere_lets_a_waiting_leg_take_its_last_resort() -> None:
    async def main() -> None:
        core = core_of(fleet_config(decode=2, decode_concurrency=1))
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
