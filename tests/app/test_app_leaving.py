"""Clients that leave, in every phase: what the engines, the ledgers and the counters see."""

from __future__ import annotations

import pytest
import trio

from narwhal.model import Phase, Terminal
from narwhal.telemetry.kinds import Endpoint, StatusClass

from stub_fleet import Play, good
from worlds import Client, World, fleet_config, play

ASK = {"model": "m", "prompt": "hello", "max_tokens": 50}


async def slow_decode(play_: Play) -> None:
    if play_.leg == "decode":
        await play_.hdr()
        await play_.tokens(50, every=0.1)
        await play_.finish(50)
    else:
        await good(play_)


async def silent_decode(play_: Play) -> None:
    if play_.leg == "decode":
        await play_.hang()
    else:
        await good(play_)


async def slow_prefill(play_: Play) -> None:
    if play_.leg == "prefill":
        await play_.wait(1.0)
        await play_.prefill_answer()
    else:
        await good(play_)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("how", ["close", "reset", "half-close", "pipelined"])
def test_the_engine_is_let_go_of_at_once(stream: bool, how: str) -> None:
    async def body(world: World) -> None:
        world.script(slow_decode)
        client = await world.connect()
        await client.ask(ASK | {"stream": stream})
        await trio.sleep(1.05)
        if how == "half-close":
            client.stream.send_eof()
        elif how == "pipelined":
            await client.stream.send_all(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
            await trio.sleep(0.5)
            client.close()
        else:
            client.close(reset=how == "reset")
        left = trio.current_time()
        await trio.sleep(0.1)
        (seen,) = world.stubs.legs("decode")
        assert seen.aborted_at is not None
        assert seen.aborted_at - left < 0.05
        assert world.row.terminal is Terminal.CANCELLED
        assert world.row.code == "client_closed"
        assert not world.stubs.legs("release"), "the decoder had taken the handoff"
        client.close()

    play(body)


def test_while_nothing_has_been_answered_yet() -> None:
    async def body(world: World) -> None:
        world.script(silent_decode)
        client = await world.connect()
        await client.ask(ASK)
        await trio.sleep(0.5)
        client.close()
        await trio.sleep(0.1)
        assert world.engine("d0").aborted["decode"] == 1
        assert world.row.terminal is Terminal.CANCELLED
        assert not world.router.core.roster.trust.doubtful("d0", Phase.DECODE, trio.current_time())

    play(body)


@pytest.mark.parametrize("seconds", [0.5, 0.9, 0.999])
def test_during_prefill_nothing_more_is_started(seconds: float) -> None:
    async def body(world: World) -> None:
        world.script(slow_prefill)
        client = await world.connect()
        await client.ask(ASK)
        await trio.sleep(seconds)
        client.close()
        await trio.sleep(3)
        assert world.engine("p0").aborted["prefill"] == 1
        assert not world.stubs.legs("decode")
        assert world.stubs.left_staged == 0

    play(body)


def test_in_the_moment_in_which_the_prefill_answers_the_handoff_is_released() -> None:
    async def body(world: World) -> None:
        leaving: list[Client] = []

        async def script(play_: Play) -> None:
            if play_.leg == "prefill":
                await play_.wait(1.0)
                leaving.pop().close()
                await trio.lowlevel.checkpoint()  # the news is on its way, and so is the answer
                await play_.prefill_answer()
            else:
                await good(play_)

        world.script(script)
        # Which news the router hears first is the scheduler's choice: try both.
        for _ in range(20):
            client = await world.connect()
            leaving.append(client)
            await client.ask(ASK)
            await trio.sleep(2)
        assert world.stubs.left_staged == 0
        totals = world.router.telemetry.totals()
        assert totals.kv_released == len(world.stubs.legs("release"))

    play(body)


def test_between_the_legs_the_handoff_is_released() -> None:
    async def body(world: World) -> None:
        world.script(slow_decode)
        first, second = await world.connect(), await world.connect()
        await first.ask(ASK)
        await trio.sleep(0.1)
        await second.ask(ASK)
        await trio.sleep(0.5)
        assert len(world.stubs.staged) == 1, "the second waits for a decode seat"
        second.close()
        await trio.sleep(0.2)
        assert len(world.stubs.legs("release")) == 1
        assert world.stubs.left_staged == 0
        assert world.router.telemetry.totals().kv_released == 1
        first.close()

    play(body, fleet_config(decode_concurrency=1))


@pytest.mark.parametrize("willing", ["d1", "d2", "d0"])
def test_another_decoder_releases_it_if_the_first_will_not(willing: str) -> None:
    async def body(world: World) -> None:
        async def busy(play_: Play) -> None:
            if play_.leg == "decode":
                await play_.status(503, b"{}")
            elif play_.leg == "release" and play_.engine.name != willing:
                world.stubs.staged["p0/1"] = trio.current_time() + 30  # this one did not pull it
                await play_.status(503, b"{}")
            else:
                await good(play_)

        world.script(busy)
        assert (await world.post(ASK)).status == 503
        await world.settle()
        order = ["d1", "d2", "d0"]  # the one that refused the decode leg comes last
        asked = [seen.engine for seen in world.stubs.legs("release")]
        assert asked == order[: order.index(willing) + 1]
        assert world.router.telemetry.totals().kv_released == 1
        assert world.stubs.left_staged == 0

    play(body, fleet_config(decode=3))


def test_what_cannot_be_released_is_an_orphan_until_the_lease_ends() -> None:
    async def body(world: World) -> None:
        async def no_release(play_: Play) -> None:
            if play_.leg == "release":
                await play_.hang()
            await slow_decode(play_)

        world.script(no_release)
        first, second = await world.connect(), await world.connect()
        await first.ask(ASK)
        await trio.sleep(0.1)
        await second.ask(ASK)
        await trio.sleep(0.5)
        second.close()
        await trio.sleep(2)
        assert world.router.telemetry.totals().kv_orphaned == 1
        assert world.router.core.orphans.tokens("p0", trio.current_time()) == 5
        await trio.sleep(30)
        assert world.router.core.orphans.tokens("p0", trio.current_time()) == 0
        first.close()

    play(body, fleet_config(decode_concurrency=1))


def test_in_the_queue_it_never_reaches_an_engine() -> None:
    async def body(world: World) -> None:
        world.script(slow_decode)
        first, second = await world.connect(), await world.connect()
        await first.ask(ASK)
        await trio.sleep(0.1)
        await second.ask(ASK)
        await trio.sleep(0.1)
        assert world.router.core.queue.waiting == 1
        second.close()
        await trio.sleep(0.05)
        assert world.router.core.queue.waiting == 0
        await trio.sleep(10)
        assert len(world.stubs.legs("prefill")) == 1
        first.close()

    config = fleet_config(
        max_connections=1,
        queue_capacity=2,
        queue_timeout_s=60.0,
        prefill_concurrency=4,
        decode_concurrency=4,
    )
    play(body, config)


@pytest.mark.parametrize("sent", [b"", b"POST /v1/comp", b"HEAD"])
def test_in_the_middle_of_its_own_request(sent: bytes) -> None:
    async def body(world: World) -> None:
        client = await world.connect()
        if sent == b"HEAD":
            await client.stream.send_all(
                b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{"
            )
        else:
            await client.stream.send_all(sent)
        await trio.sleep(1)
        client.close()
        await trio.sleep(1)
        assert world.server.connections == 0
        assert [row.terminal for row in world.rows] == (
            [Terminal.CANCELLED] if sent == b"HEAD" else []
        )

    play(body)


def test_a_thousand_clients_that_leave_at_random_leave_nothing() -> None:
    async def body(world: World) -> None:
        rng = world.router.core.rng

        async def script(play_: Play) -> None:
            await play_.wait(rng.uniform(0, 0.3))
            if play_.leg == "decode" and rng.random() < 0.1:
                play_.rst()
            await slow_decode(play_)

        world.script(script)

        async def client() -> None:
            await trio.sleep(rng.uniform(0, 60))
            connection = await world.connect()
            with trio.move_on_after(rng.uniform(0, 4)):
                await (
                    await connection.ask(ASK | {"max_tokens": 5, "stream": rng.random() < 0.5})
                ).answer()
            connection.close(reset=rng.random() < 0.3)

        async with trio.open_nursery() as clients:
            for _ in range(1000):
                clients.start_soon(client)
        await trio.sleep(5)
        assert world.stubs.left_staged == 0 or world.router.telemetry.totals().kv_orphaned

    play(body, fleet_config(prefill=2, decode=2, max_attempts=2, max_connections=1000))


UNREADABLE = {
    "no chunk": (b"transfer-encoding: chunked\r\n\r\nxyz\r\n", 400),
    "a chunk without its end": (b"transfer-encoding: chunked\r\n\r\n2\r\n{}..", 400),
    "an endless chunk size": (b"transfer-encoding: chunked\r\n\r\n1;" + b"x" * 70_000, 431),
    "a body that stops": (b"content-length: 100\r\n\r\n{", 408),
}


@pytest.mark.parametrize("what", UNREADABLE)
def test_a_client_that_the_server_answers_itself_has_not_left(what: str) -> None:
    rest, status = UNREADABLE[what]

    async def body(world: World) -> None:
        client = await world.connect()
        await client.stream.send_all(b"POST /v1/completions HTTP/1.1\r\nhost: r\r\n" + rest)
        assert (await client.answer()).status == status
        await trio.sleep(0.1)
        row = world.row
        assert (row.terminal, row.status, row.code) == (
            Terminal.INVALID,
            status,
            "invalid_request",
        )
        metrics = world.router.telemetry.metrics
        assert metrics.http_responses[Endpoint.COMPLETIONS, StatusClass.CLIENT].value == 1
        assert metrics.http_responses[Endpoint.COMPLETIONS, StatusClass.NONE].value == 0
        client.close()

    play(body)
