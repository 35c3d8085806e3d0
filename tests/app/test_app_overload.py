"""Honest about overload: seats, the queue, refusals, and an orderly end."""

from __future__ import annotations

import statistics
from typing import Any

import pytest
import trio

from narwhal.model import Limit, Terminal

from stub_fleet import Play, Script, good
from worlds import Answer, World, fleet_config, play

ASK = {"model": "m", "prompt": "hello", "max_tokens": 20, "stream": True}


def timed(prefill_s: float, token_s: float) -> Script:
    async def script(play_: Play) -> None:
        if play_.leg == "prefill":
            await play_.wait(prefill_s)
            await play_.prefill_answer()
        elif play_.leg == "decode":
            await play_.hdr()
            await play_.tokens(20, every=token_s)
            await play_.finish(20)
        else:
            await good(play_)

    return script


async def burst(world: World, count: int, ask: dict[str, Any] = ASK) -> list[Answer]:
    answers: list[Answer] = []

    async def one() -> None:
        answers.append(await world.post(ask))

    async with trio.open_nursery() as nursery:
        for _ in range(count):
            nursery.start_soon(one)
    return answers


def test_a_burst_fills_seats_and_queue_and_the_rest_is_told_at_once() -> None:
    async def body(world: World) -> None:
        world.script(timed(0.05, 0.01))
        answers = await burst(world, 400)
        served = [a for a in answers if a.status == 200]
        refused = [a for a in answers if a.status == 429]
        assert (len(served), len(refused)) == (128, 272)
        assert all(a.done for a in served)
        assert statistics.median(a.seconds for a in refused) < 0.1
        for answer in refused:
            assert int(answer.headers["retry-after"]) >= 1
            assert answer.error["code"] == "queue_full"
        assert len(world.stubs.legs("prefill")) == 128
        unsized = (await world.get("/metrics")).body.decode()
        assert "narwhal_unsized_offers_total 272.0" in unsized

    config = fleet_config(
        prefill=2,
        decode=2,
        max_connections=64,
        queue_capacity=64,
        queue_timeout_s=3.0,
        prefill_concurrency=64,
        decode_concurrency=64,
    )
    play(body, config)


@pytest.mark.parametrize("leg", ["decode", "prefill"])
def test_a_seat_is_held_to_the_last_byte_and_freed_once(leg: str) -> None:
    async def body(world: World) -> None:
        world.script(timed(0.5, 0.1))
        answers = await burst(world, 8)
        assert all(a.done for a in answers)
        engine = {"decode": "d0", "prefill": "p0"}[leg]
        assert world.engine(engine).most_inflight == 2

    config = fleet_config(
        max_connections=20,
        queue_capacity=10,
        queue_timeout_s=60.0,
        prefill_concurrency=2,
        decode_concurrency=2,
    )
    play(body, config)


def test_without_a_queue_saturation_is_an_immediate_429() -> None:
    async def body(world: World) -> None:
        world.script(timed(0.5, 0.1))
        answers = await burst(world, 5)
        assert sorted(a.status for a in answers) == [200, 200, 429, 429, 429]

    play(body, fleet_config(max_connections=2))


def test_who_came_first_is_served_first() -> None:
    async def body(world: World) -> None:
        world.script(timed(0.1, 0.01))
        order: list[int] = []

        async def one(n: int) -> None:
            await world.post(ASK | {"max_tokens": 20, "user": str(n)})
            order.append(n)

        async with trio.open_nursery() as nursery:
            for n in range(12):
                nursery.start_soon(one, n)
                await trio.sleep(0.001)
        assert order == sorted(order)
        users = [seen.body["user"] for seen in world.stubs.legs("prefill")]
        assert users == [str(n) for n in range(12)]

    config = fleet_config(
        max_connections=1,
        queue_capacity=20,
        queue_timeout_s=60.0,
        prefill_concurrency=1,
        decode_concurrency=1,
    )
    play(body, config)


def test_a_slow_body_takes_a_place_and_no_seat() -> None:
    async def body(world: World) -> None:
        slow = await world.connect()
        await slow.stream.send_all(
            b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 1000\r\n\r\n{"
        )
        await trio.sleep(1)
        assert (await world.post(ASK)).status == 200
        await trio.sleep(598.5)
        assert world.server.connections == 1
        await trio.sleep(1)
        answer = await slow.answer()
        assert (answer.status, answer.error["code"]) == (504, "request_expired")
        slow.close()

    play(body, fleet_config(max_connections=2, http={"min_body_bytes_per_s": 0}))


def test_a_request_is_retained_until_its_error_has_been_written() -> None:
    async def body(world: World) -> None:
        client = await world.connect()
        unread = client.stream._in  # type: ignore[attr-defined]  # a stream in memory

        async def script(play_: Play) -> None:
            if play_.leg != "decode":
                await good(play_)
                return
            await play_.hdr()
            while unread.capacity - unread.size > 300:  # an error takes more than that
                await play_.tokens(1)
                await play_.wait(0.001)
            play_.rst()

        world.script(script)
        await client.ask(ASK)
        await trio.sleep(1.0)
        assert world.engine("d0").inflight == 0, "it has failed"
        assert world.router.core.retained == 1, "and nobody reads the error"
        await trio.sleep(1.0)
        assert world.router.core.retained == 0
        client.close()

    play(body)


# Shutdown


def test_shutdown_turns_away_new_work_and_lets_streams_finish() -> None:
    async def body(world: World) -> None:
        world.script(timed(0.1, 0.5))
        answers: list[Answer] = []
        keep_alive = await world.connect()
        await keep_alive.ask(None, "/ready", "GET")
        assert (await keep_alive.answer()).status == 200
        keep_alive.next_cycle()

        async def one() -> None:
            answers.append(await world.post(ASK))

        async with trio.open_nursery() as nursery:
            for _ in range(20):
                nursery.start_soon(one)
            await trio.sleep(2)
            nursery.start_soon(world.router.drain, 30.0)
            await trio.sleep(1)
            ready = await world.get("/ready")
            assert ready.status == 503
            assert "shutting down" in ready.json["reasons"][0]
            assert (await world.get("/health")).status == 200
            for late in (await world.post(ASK), await (await keep_alive.ask(ASK)).answer()):
                assert (late.status, late.error["code"]) == (503, "draining")
                assert late.headers["connection"] == "close"
                assert int(late.headers["retry-after"]) >= 1
        assert len(answers) == 20
        assert all(a.done for a in answers)
        keep_alive.close()

    play(body, fleet_config(prefill=2, decode=2))


@pytest.mark.parametrize("stream", [True, False])
def test_at_the_end_of_the_grace_a_stream_gets_a_terminal_event(stream: bool) -> None:
    async def body(world: World) -> None:
        world.script(timed(0.1, 10.0))
        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            answers: list[Answer] = []

            async def one() -> None:
                answers.append(await world.post(ASK | {"stream": stream}))

            nursery.start_soon(one)
            await trio.sleep(15)
            finished = await world.router.drain(2.0)
            assert not finished
            assert trio.current_time() - began <= 15 + 2 + 1
        (answer,) = answers
        assert answer.error["code"] == "shutdown"
        assert answer.error["narwhal"]["limit"] == "grace"
        assert answer.complete is not stream
        assert world.row.limit is Limit.GRACE
        await world.settle(0.05)
        assert world.engine("d0").aborted["decode"] == 1

    engine = {"first_token_timeout_s": 60.0}
    play(body, fleet_config(engine=engine))


def test_shutdown_refuses_who_waits_in_the_queue() -> None:
    async def body(world: World) -> None:
        world.script(timed(0.1, 0.5))
        async with trio.open_nursery() as nursery:
            answers: list[Answer] = []

            async def one() -> None:
                answers.append(await world.post(ASK))

            for _ in range(3):
                nursery.start_soon(one)
                await trio.sleep(0.1)
            nursery.start_soon(world.router.drain, 60.0)
            await trio.sleep(0.1)
            assert [(a.status, a.error["code"]) for a in answers] == [(503, "draining")] * 2
        assert answers[-1].done
        assert [row.terminal for row in world.rows] == [
            Terminal.REJECTED,
            Terminal.REJECTED,
            Terminal.COMPLETED,
        ]

    config = fleet_config(
        max_connections=1,
        queue_capacity=5,
        queue_timeout_s=60.0,
        prefill_concurrency=1,
        decode_concurrency=1,
    )
    play(body, config)


def test_a_client_that_does_not_read_cannot_hold_up_the_shutdown() -> None:
    async def body(world: World) -> None:
        async def flood(play_: Play) -> None:
            if play_.leg == "decode":
                await play_.hdr()
                for n in range(100_000):
                    await play_.event(play_.token(n, text="x" * 1000))
            await good(play_)

        world.script(flood)
        client = await world.connect()
        await client.ask(ASK)
        await trio.sleep(5)
        began = trio.current_time()
        assert not await world.router.drain(2.0)
        assert trio.current_time() - began <= 3
        await world.settle(0.05)
        assert world.engine("d0").aborted["decode"] == 1
        client.close()

    play(body)
