"""Whose fault it is that a leg's limit fired before its request was written."""

from __future__ import annotations

import errno
import os

import pytest
import trio

from narwhal.fleet import EngineState
from narwhal.model import FailureClass, Limit, Phase
from narwhal.net import ByteStream

from worlds import World, fleet_config, play

ASK = {"model": "m", "prompt": "hello"}


@pytest.mark.parametrize(
    ("prefill", "starved", "limit"),
    [(1, "p0", Limit.PREFILL), (0, "d0", Limit.PREFILL), (1, "d0", Limit.FIRST_TOKEN)],
)
def test_a_leg_that_waited_for_the_routers_own_connections_blames_no_engine(
    prefill: int, starved: str, limit: Limit
) -> None:
    async def body(world: World) -> None:
        core = world.router.core
        core.engines[starved].pools.data.limit = 0
        answer = await world.post(ASK)
        assert answer.error["code"] == limit
        assert world.row.attempts[0].failure is FailureClass.LOCAL
        for phase in (Phase.PREFILL, Phase.DECODE):
            assert not core.roster.trust.doubtful(starved, phase, trio.current_time())

    engine = {"pool_timeout_s": 5.0, "first_token_timeout_s": 3.0, "tokenize": False}
    play(body, fleet_config(prefill=prefill, prefill_timeout_s=2.0, engine=engine))


@pytest.mark.parametrize(("engine", "phase"), [("p0", Phase.PREFILL), ("d0", Phase.DECODE)])
def test_an_engine_that_does_not_let_the_last_connection_in_is_to_blame(
    engine: str, phase: Phase
) -> None:
    async def body(world: World) -> None:
        core = world.router.core
        pool = core.engines[engine].pools.data
        pool.limit = 1

        async def never(host: str, port: int) -> ByteStream:
            await trio.sleep_forever()
            raise AssertionError

        pool._connect = never
        async with trio.open_nursery() as nursery:
            nursery.start_soon(world.post, ASK)
            await trio.sleep(0.1)
            nursery.start_soon(world.post, ASK)
        first, second = sorted(world.rows, key=lambda row: row.arrival)
        assert first.attempts[0].failure is FailureClass.TIMEOUT
        assert second.attempts[0].failure is FailureClass.LOCAL
        assert core.roster.trust.doubtful(engine, phase, trio.current_time())

    limits = {"pool_timeout_s": 1.0, "first_token_timeout_s": 2.0, "tokenize": False}
    play(body, fleet_config(prefill_timeout_s=2.0, engine=limits))


@pytest.mark.parametrize("starved", ["p0", "d0"])
@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM])
def test_a_router_that_can_open_no_more_connections_blames_no_engine(
    starved: str, number: int
) -> None:
    async def body(world: World) -> None:
        core = world.router.core

        async def full(host: str, port: int) -> ByteStream:
            await trio.lowlevel.checkpoint()
            raise OSError(number, os.strerror(number))

        pools = core.engines[starved].pools
        for pool in (pools.data, pools.counting, pools.control):
            pool._connect = full
        for _ in range(5):
            answer = await world.post(ASK)
            assert (answer.status, answer.error["code"]) == (503, "local")
            assert "file descriptors" in answer.error["message"]
        await trio.sleep(10)
        assert {row.attempts[0].failure for row in world.rows} == {FailureClass.LOCAL}
        for phase in (Phase.PREFILL, Phase.DECODE):
            assert not core.roster.trust.doubtful(starved, phase, trio.current_time())
        assert core.roster.health.standings.state(starved) is EngineState.SERVING

    play(body, fleet_config(prefill=1))
