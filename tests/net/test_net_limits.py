"""What a listener bears of one client: each limit fires when it should, and is told of."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import trio
from net_world import (
    GET,
    World,
    echo,
    in_world,
    part,
    post,
    read_to_end,
    read_until,
    respond,
    start,
)
from trio.testing import wait_all_tasks_blocked

from narwhal.model import ClientLimit
from narwhal.net import ByteStream, Server, ServerOptions

CHUNKED = b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"


class Told:
    """A server that keeps count of the limits that fired."""

    def __init__(self, **options: Any) -> None:
        self.options = ServerOptions(**options)
        self.counts: Counter[ClientLimit] = Counter()

    def __call__(self, app: Any) -> Server:
        return Server(app, options=self.options, told=self.tell)

    def tell(self, limit: ClientLimit) -> None:
        self.counts[limit] += 1


async def drip(client: ByteStream, data: bytes, *, every: float, size: int = 1) -> None:
    """Send `data` piece by piece until it is sent or nobody reads it."""
    for at in range(0, len(data), size):
        await trio.sleep(every)
        try:
            await client.send_all(data[at : at + size])
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return


async def lenient(scope: Any, receive: Any, send: Any) -> None:
    """Answer with the body, if it comes whole."""
    parts, more = [], True
    while more:
        message = await receive()
        if message["type"] != "http.request":
            return
        parts.append(message["body"])
        more = message["more_body"]
    await respond(send, b"".join(parts))


async def patient(scope: Any, receive: Any, send: Any) -> None:
    """Receive until there is no more to come, and answer nothing."""
    while (await receive())["type"] == "http.request":
        pass


# Bodies


@pytest.mark.parametrize("framed", ["length", "chunks"])
def test_a_body_in_drops_is_answered_with_408(framed: str) -> None:
    told = Told()
    gone = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        while (message := await receive())["type"] == "http.request":
            pass
        gone.append(message["type"])

    async def body(world: World) -> None:
        client = await world.connect()
        if framed == "length":
            await client.send_all(post(length=1000))
            drops, size = b"x" * 1000, 1
        else:
            await client.send_all(CHUNKED)
            drops, size = b"1\r\nx\r\n" * 1000, 6
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: drip(client, drops, every=1, size=size))
            answer = await read_to_end(client)
            # 20 seconds, and some hundredths for the bytes that came.
            assert 20 <= trio.current_time() < 20.1
            assert answer.startswith(b"HTTP/1.1 408 ")
            assert b"took over 20 s and came at less than 500 bytes/s" in answer
            client.close()
        await wait_all_tasks_blocked()
        assert gone == ["http.disconnect"]
        assert told.counts == {ClientLimit.BODY_RATE: 1}

    in_world(app, body, make=told)


def test_a_body_that_stops_is_answered_with_408() -> None:
    told = Told(body_grace=5.0, min_body_rate=1000.0)

    async def body(world: World) -> None:
        client = await world.connect()
        await client.send_all(post(b"x" * 3000, length=4000))
        assert (await read_to_end(client)).startswith(b"HTTP/1.1 408 ")
        assert trio.current_time() == pytest.approx(5 + 3)
        assert told.counts == {ClientLimit.BODY_RATE: 1}

    in_world(patient, body, make=told)


def test_a_body_at_the_rate_may_take_as_long_as_it_likes() -> None:
    told = Told()

    async def body(world: World) -> None:
        client = await world.connect()
        await client.send_all(post(length=50_000))
        await drip(client, b"x" * 50_000, every=1, size=500)
        await read_until(client, b"x" * 50_000)
        assert trio.current_time() == 100
        # The next one on this connection has all of its grace again.
        await client.send_all(post(length=2))
        await drip(client, b"ab", every=9)
        await read_until(client, b"\r\n\r\nab")
        assert not told.counts
        # And no more than that, whatever was sent before.
        await client.send_all(post(length=2))
        before = trio.current_time()
        assert (await read_to_end(client)).startswith(b"HTTP/1.1 408 ")
        assert trio.current_time() - before == 20

    in_world(lenient, body, make=told)


def test_the_time_of_an_application_that_does_not_receive_is_not_the_client_s() -> None:
    told = Told(receive_buffer_bytes=1000, body_grace=10.0, min_body_rate=1000.0)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await trio.sleep(500)
        await echo(scope, receive, send)

    async def body(world: World) -> None:
        client = await world.connect()
        await client.send_all(post(b"x" * 1500, length=2000))
        await trio.sleep(505)
        await client.send_all(b"x" * 500)
        await read_until(client, b"x" * 2000)
        assert not told.counts

    in_world(app, body, make=told)


def test_a_client_that_waits_for_the_word_is_not_slow() -> None:
    told = Told()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await trio.sleep(100)
        await patient(scope, receive, send)

    async def body(world: World) -> None:
        client = await world.connect()
        head = post(length=3).replace(b"\r\n\r\n", b"\r\nexpect: 100-continue\r\n\r\n")
        await client.send_all(head)
        await read_until(client, b"100 Continue\r\n\r\n")
        assert trio.current_time() == 100
        assert (await read_to_end(client)).startswith(b"HTTP/1.1 408 ")
        assert trio.current_time() == 120
        assert told.counts == {ClientLimit.BODY_RATE: 1}

    in_world(app, body, make=told)


def test_a_slow_body_cuts_an_answer_that_has_begun() -> None:
    told = Told()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await start(send)
        await part(send, b"begun")
        while (await receive())["type"] == "http.request":
            pass

    async def body(world: World) -> None:
        client = await world.connect()
        await client.send_all(post(length=3))
        assert (await read_to_end(client)).endswith(b"begun\r\n")
        assert trio.current_time() == 20
        assert told.counts == {ClientLimit.BODY_RATE: 1}

    in_world(app, body, make=told)


def test_without_a_rate_a_body_has_no_limit_here() -> None:
    async def body(world: World) -> None:
        client = await world.connect()
        await client.send_all(post(length=3))
        await drip(client, b"abc", every=10_000)
        await read_until(client, b"\r\n\r\nabc")

    in_world(echo, body, make=Told(min_body_rate=0.0))


# What else is told


HEADS = {
    ClientLimit.HEADER_TIME: b"GET / HTTP/1.1\r\nhost:",
    ClientLimit.HEADER_BYTES: GET[:-2] + b"a: " + b"x" * 3000 + b"\r\n\r\n",
    ClientLimit.HEADER_LINES: GET[:-2] + b"a: b\r\n" * 20 + b"\r\n",
    ClientLimit.URI_BYTES: b"GET /" + b"x" * 200 + b" HTTP/1.1\r\nhost: x\r\n\r\n",
}


@pytest.mark.parametrize("limit", HEADS)
def test_a_head_over_a_limit_is_told_of_once(limit: ClientLimit) -> None:
    told = Told(max_header_bytes=2048, max_headers=10, max_uri_bytes=100)

    async def body(world: World) -> None:
        status = {"header_time": 408, "uri_bytes": 414}.get(limit, 431)
        assert (await world.ask(HEADS[limit])).startswith(b"HTTP/1.1 %d " % status)
        assert told.counts == {limit: 1}

    in_world(echo, body, make=told)


def test_a_client_that_says_nothing_is_told_of_and_one_that_is_idle_is_not() -> None:
    told = Told()

    async def body(world: World) -> None:
        silent, idle = await world.connect(), await world.connect()
        await idle.send_all(GET)
        await idle.receive_some()
        assert await silent.receive_some() == b""
        assert trio.current_time() == 10
        assert await idle.receive_some() == b""
        assert trio.current_time() == 75
        assert told.counts == {ClientLimit.HEADER_TIME: 1}

    in_world(echo, body, make=told)


def test_a_client_that_sends_far_ahead_is_told_of() -> None:
    told = Told(max_pipelined_bytes=100)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await trio.sleep_forever()

    async def body(world: World) -> None:
        client = await world.connect()
        await client.send_all(GET)
        await wait_all_tasks_blocked()
        await client.send_all(GET * 10)
        assert await client.receive_some() == b""
        assert told.counts == {ClientLimit.PIPELINED: 1}

    in_world(app, body, make=told)


def test_a_full_listener_is_told_of_and_serves_when_there_is_room() -> None:
    told = Told(max_connections=1)

    async def body(world: World) -> None:
        first, second = await world.connect(), await world.connect()
        await first.send_all(GET)
        await first.receive_some()
        await second.send_all(GET)
        await wait_all_tasks_blocked()
        assert second.receive_nowait() is None
        assert told.counts == {ClientLimit.CONNECTIONS: 1}
        first.close()
        assert (await second.receive_some()).startswith(b"HTTP/1.1 200 ")

    in_world(echo, body, make=told)


def test_many_small_chunks_let_others_have_their_turn() -> None:
    sizes: list[int] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        more = True
        while more:
            message = await receive()
            sizes.append(len(message["body"]))
            more = message["more_body"]
        await respond(send, b"done")

    async def body(world: World) -> None:
        client = await world.connect()
        await client.send_all(CHUNKED)
        await wait_all_tasks_blocked()
        await client.send_all(b"1\r\nx\r\n" * 10_000 + b"0\r\n\r\n")
        assert (await read_until(client, b"done")).startswith(b"HTTP/1.1 200 ")
        assert sum(sizes) == 10_000
        assert max(sizes) < 2000, "some reads may come together, but not all"
        # A body of known length costs nothing by the piece, and is read as it comes.
        sizes.clear()
        await client.send_all(post(length=50_000))
        await wait_all_tasks_blocked()
        await client.send_all(b"x" * 50_000)
        await read_until(client, b"done")
        assert max(sizes) == 50_000
        client.close()

    in_world(app, body)
