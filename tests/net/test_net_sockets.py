"""What only a kernel can show: resets, full socket buffers, descriptors."""

from __future__ import annotations

import gc
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import trio
from net_engine import OK, REQUEST, read_request
from net_world import GET, echo, part, post, read_to_end, read_until, respond, start

from narwhal.net import (
    ByteStream,
    ConnectionPool,
    RawListener,
    Server,
    ServerOptions,
    connect_tcp,
    open_listeners,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from narwhal.net import ASGIApp

pytestmark = pytest.mark.sockets


def descriptors() -> int:
    gc.collect()
    return len(list(Path("/proc/self/fd").iterdir()))


def on_loopback(
    app: ASGIApp,
    body: Callable[[Server, tuple[str, int]], Awaitable[None]],
    options: ServerOptions | None = None,
) -> None:
    async def main() -> None:
        before = descriptors()
        server = Server(app, options=options or ServerOptions())
        listeners = await open_listeners("127.0.0.1", 0)
        with trio.fail_after(20):
            async with trio.open_nursery() as nursery:
                await nursery.start(server.serve, listeners)
                await body(server, listeners[0].address)
                assert await server.drain(5)
        assert (server.connections, server.requests) == (0, 0)
        assert descriptors() == before

    trio.run(main)


def pool_to(address: tuple[str, int], **changes: Any) -> ConnectionPool:
    settings: dict[str, Any] = {
        "connect": connect_tcp,
        "limit": 4,
        "pool_timeout": 5,
        "connect_timeout": 5,
    }
    return ConnectionPool(*address, **(settings | changes))


def test_pool_and_server_understand_each_other() -> None:
    async def body(server: Server, address: tuple[str, int]) -> None:
        pool = pool_to(address)

        async def one(size: int) -> None:
            for _ in range(20):
                sent = b"x" * size
                with await pool.send(post(sent), replayable=True) as exchange:
                    assert await exchange.response() == 200
                    assert await exchange.read_all(size) == sent

        async with trio.open_nursery() as nursery:
            for size in (0, 10, 1000, 70_000, 500_000, 3, 4, 5):
                nursery.start_soon(one, size)
        assert pool.idle == 4
        assert server.connections == 4
        pool.close()

    on_loopback(echo, body)


def test_a_stream_is_relayed_and_its_client_missed() -> None:
    left = trio.Event()

    async def engine(scope: Any, receive: Any, send: Any) -> None:
        await start(send)
        with trio.CancelScope() as scope_:
            async with trio.open_nursery() as nursery:

                async def watch() -> None:
                    while (await receive())["type"] != "http.disconnect":
                        pass
                    left.set()
                    scope_.cancel(reason="client gone")

                nursery.start_soon(watch)
                while True:
                    await part(send, b"data: token\n\n")
                    await trio.sleep(0.001)

    async def body(server: Server, address: tuple[str, int]) -> None:
        pool = pool_to(address)
        with await pool.send(REQUEST, replayable=False) as exchange:
            assert await exchange.response() == 200
            got = b""
            while len(got) < 500:
                got += await exchange.read()
        assert (pool.busy, pool.idle) == (0, 0)
        await left.wait()
        assert got.count(b"data: token\n\n") * 13 == len(got)
        pool.close()

    on_loopback(engine, body)


def test_resets_at_every_stage_hurt_nobody_else() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await start(send)
        for _ in range(5):
            await part(send, b"x" * 100)
            await trio.sleep(0.002)
        await send({"type": "http.response.body", "body": b""})

    async def body(server: Server, address: tuple[str, int]) -> None:
        for turn, sent in enumerate((b"", GET[:10], GET, GET + GET, post(length=10)) * 20):
            client = await connect_tcp(*address)
            await client.send_all(sent)
            if turn % 3:
                await trio.sleep(0.003)
            client.close(reset=True)
        client = await connect_tcp(*address)
        await client.send_all(GET)
        assert (await read_until(client, b"0\r\n\r\n")).startswith(b"HTTP/1.1 200")
        client.close()

    on_loopback(app, body)


def test_a_client_that_uploads_gets_the_refusal_and_no_reset() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await respond(send, b"too long", status=413)

    async def body(server: Server, address: tuple[str, int]) -> None:
        size = 3_000_000
        for _ in range(5):
            client = await connect_tcp(*address)
            await client.send_all(post(b"y" * size))  # all of it, and only then look
            answer = await read_to_end(client)
            assert answer.startswith(b"HTTP/1.1 413 ")
            client.close()

    on_loopback(app, body)


def test_a_deadline_reaches_a_send_to_a_client_that_does_not_read() -> None:
    blocked = []
    done = trio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await start(send)
        with trio.move_on_after(0.2) as limit:
            while True:
                await part(send, b"x" * 100_000)
        blocked.append(limit.cancelled_caught)
        done.set()

    async def body(server: Server, address: tuple[str, int]) -> None:
        client = await connect_tcp(*address)
        await client.send_all(GET)
        await done.wait()
        assert blocked == [True]
        client.close()

    on_loopback(app, body)


async def with_script(
    script: Callable[[ByteStream, int], Awaitable[None]],
    body: Callable[[tuple[str, int]], Awaitable[None]],
) -> None:
    (listener,) = await open_listeners("127.0.0.1", 0)

    async def handle(stream: ByteStream, number: int) -> None:
        with suppress(trio.BrokenResourceError):
            await script(stream, number)
        stream.close()

    async def accept(listener: RawListener) -> None:
        number = 0
        while True:
            nursery.start_soon(handle, await listener.accept(), number)
            number += 1

    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(accept, listener)
            await body(listener.address)
            nursery.cancel_scope.cancel(reason="the test is over")
    listener.close()


def test_connections_that_wait_already_are_taken_without_waiting() -> None:
    async def main() -> None:
        (listener,) = await open_listeners("127.0.0.1", 0)
        assert listener.accept_nowait() is None
        clients = [await connect_tcp(*listener.address) for _ in range(3)]
        taken = [await listener.accept(), listener.accept_nowait(), listener.accept_nowait()]
        assert listener.accept_nowait() is None
        for client, stream in zip(clients, taken, strict=True):
            assert stream is not None
            await client.send_all(b"x")
            assert await stream.receive_some(10) == b"x"
            client.close()
            stream.close()
        listener.close()
        assert listener.accept_nowait() is None

    trio.run(main)


def test_an_early_answer_survives_the_broken_pipe() -> None:
    """The server closes with most of the request unread, which resets the connection."""

    async def script(stream: ByteStream, number: int) -> None:
        await stream.receive_some(1000)
        await stream.send_all(b"HTTP/1.1 503 Busy\r\ncontent-length: 4\r\n\r\nbusy")

    async def body(address: tuple[str, int]) -> None:
        pool = pool_to(address)
        for _ in range(10):
            with await pool.send(post(b"z" * 5_000_000), replayable=True) as exchange:
                assert await exchange.response() == 503
                assert await exchange.read_all(10) == b"busy"
        assert (pool.busy, pool.idle, pool.replays) == (0, 0, 0)

    trio.run(with_script, script, body)


@pytest.mark.parametrize("size", [100, 1_000_000])
def test_no_request_is_lost_to_a_server_that_closes_idle_connections(size: int) -> None:
    """Every second request of a connection meets a close, at one moment or another."""

    async def script(stream: ByteStream, number: int) -> None:
        await read_request(stream)
        await stream.send_all(OK)
        if number % 3 == 0:
            await stream.receive_some(100)  # unread bytes: a reset
        elif number % 3 == 1:
            await read_request(stream)  # all read: an end of file

    async def body(address: tuple[str, int]) -> None:
        pool = pool_to(address)
        for _ in range(30):
            with await pool.send(post(b"x" * size), replayable=True) as exchange:
                assert await exchange.response() == 200
                assert await exchange.read_all(10) == b"ok"
        assert pool.replays > 0
        pool.close()

    trio.run(with_script, script, body)


def test_cancelled_connections_leave_no_descriptor() -> None:
    async def main() -> None:
        (listener,) = await open_listeners("127.0.0.1", 0, backlog=1)
        before = descriptors()
        for step in range(30):
            with trio.move_on_after(0) as scope:
                scope.deadline = trio.current_time() + step * 20e-6
                stream = await connect_tcp(*listener.address)
                stream.close()
        assert descriptors() == before
        listener.close()

    trio.run(main)


TIGHT = ServerOptions(
    header_timeout=0.2,
    body_grace=0.2,
    max_header_bytes=2048,
    max_headers=10,
    max_uri_bytes=100,
    linger_timeout=0.2,
)


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"GET / HTTP/1.1\r\nhost:", 408),
        (post(b"x", length=1000), 408),
        (post().replace(b"\r\n\r\n", b"\r\n" + b"a: b\r\n" * 20 + b"\r\n"), 431),
        (post().replace(b"host: x", b"host: x\r\na: " + b"x" * 3000), 431),
        (post(path="/" + "x" * 200), 414),
        (post().replace(b"host: x", b"host: x\r\n folded"), 400),
    ],
)
def test_a_client_that_takes_too_much_gets_its_answer_and_then_the_end(
    data: bytes, status: int
) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        while (await receive())["type"] == "http.request":
            pass

    async def body(server: Server, address: tuple[str, int]) -> None:
        stream = await connect_tcp(*address)
        await stream.send_all(data)
        answer = await read_to_end(stream)
        assert answer.startswith(b"HTTP/1.1 %d " % status)
        stream.close()

    on_loopback(app, body, TIGHT)


def test_an_engine_that_refuses_leaves_no_cycles() -> None:
    """One that is down is asked all the time."""

    async def refused(address: tuple[str, int]) -> None:
        with suppress(OSError):
            await connect_tcp(*address)

    async def main() -> None:
        (listener,) = await open_listeners("127.0.0.1", 0)
        listener.close()
        await refused(listener.address)
        gc.collect()
        gc.set_debug(gc.DEBUG_SAVEALL)
        try:
            await refused(listener.address)
            gc.collect()
            assert not [each for each in gc.garbage if isinstance(each, OSError)]
        finally:
            gc.set_debug(0)
            gc.garbage.clear()

    trio.run(main)
