"""Starting, filling up, draining and stopping a server."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Any

import pytest
import trio
from net_world import (
    GET,
    HOST,
    PORT,
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
from trio.testing import MockClock, wait_all_tasks_blocked

from narwhal.net import ByteStream, Listener, MemoryNetwork, Server, ServerOptions

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


async def slow(scope: Any, receive: Any, send: Any) -> None:
    """Stream one event a second, as many as the path says."""
    await start(send)
    for _ in range(int(scope["path"][1:] or 0)):
        await part(send, b"event")
        await trio.sleep(1)
    await send({"type": "http.response.body", "body": b""})


async def ask_slow(world: World, events: int) -> ByteStream:
    client = await world.connect()
    await client.send_all(GET.replace(b"/", b"/%d" % events, 1))
    await read_until(client, b"event\r\n")
    return client


def test_draining_lets_running_requests_finish() -> None:
    async def body(world: World) -> None:
        streams = [await ask_slow(world, 10) for _ in range(20)]
        idle = await world.connect()
        await idle.send_all(GET)
        await read_until(idle, b"0\r\n\r\n")
        silent = await world.connect()
        await trio.sleep(2)
        assert await world.server.drain(30)
        assert trio.current_time() == 10
        assert world.server.connections == 0
        await world.served.wait()
        for stream in streams:
            assert (await read_to_end(stream)).endswith(b"0\r\n\r\n")
        for quiet in (idle, silent):
            assert await read_to_end(quiet) == b""
        with pytest.raises(ConnectionRefusedError):
            await world.connect()

    in_world(slow, body)


def test_draining_closes_listeners_and_idle_connections_at_once() -> None:
    async def body(world: World) -> None:
        running = await ask_slow(world, 5)
        idle = await world.connect()
        await idle.send_all(GET)
        await read_until(idle, b"0\r\n\r\n")
        world.server.stop_accepting()
        with pytest.raises(ConnectionRefusedError):
            await world.connect()
        assert await read_to_end(idle) == b""
        assert trio.current_time() == 0
        assert (await read_to_end(running)).endswith(b"0\r\n\r\n")
        await world.served.wait()

    in_world(slow, body)


def test_a_request_that_arrived_before_the_drain_is_answered_and_told_to_close() -> None:
    async def body(world: World) -> None:
        client = await world.connect()
        await client.send_all(GET)
        await read_until(client, b"\r\n\r\n")
        half = await world.connect()
        await half.send_all(GET[:10])
        await wait_all_tasks_blocked()
        async with trio.open_nursery() as nursery:
            client.send_nowait(GET)  # arrived, and not read yet
            world.server.stop_accepting()
            nursery.start_soon(world.server.drain, 10)
            answer = await read_to_end(client)
            assert answer.startswith(b"HTTP/1.1 200 OK")
            assert b"connection: close" in answer
            await trio.sleep(1)
            await half.send_all(GET[10:])
            assert b"connection: close" in await read_to_end(half)
        await world.served.wait()

    in_world(echo, body)


def test_an_answer_begun_before_the_drain_ends_its_connection_too() -> None:
    async def body(world: World) -> None:
        client = await ask_slow(world, 3)
        await client.send_all(GET)  # pipelined; will not be served
        assert await world.server.drain(10)
        assert (await read_to_end(client)).count(b"0\r\n\r\n") == 1

    in_world(slow, body)


def test_requests_over_the_grace_are_cancelled_and_may_say_so() -> None:
    reasons = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        write = scope["extensions"]["narwhal.write"]
        await start(send)
        await write(b"begun")
        try:
            await trio.sleep_forever()
        except trio.Cancelled as cancelled:
            reasons.append(cancelled.reason)
            await write(b"last words")
            with trio.move_on_after(1, shield=True):
                await trio.sleep(0.5)
                await write(b"very last words")
            raise

    async def body(world: World) -> None:
        client = await world.connect()
        await client.send_all(GET)
        await read_until(client, b"begun\r\n")
        assert not await world.server.drain(5)
        assert trio.current_time() == 5.5
        answer = await read_to_end(client)
        assert answer == b"a\r\nlast words\r\nf\r\nvery last words\r\n"
        assert reasons == ["the server's grace for running requests is over"]

    in_world(app, body)


def test_a_client_that_does_not_read_cannot_hold_up_the_drain() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await start(send)
        while True:
            await part(send, b"x" * 10_000)

    async def body(world: World) -> None:
        client = await world.connect()
        await client.send_all(GET)
        await trio.sleep(1)
        assert not await world.server.drain(3)
        assert trio.current_time() == 4

    in_world(app, body)


def test_draining_waits_for_answers_that_are_still_being_read() -> None:
    """A refused upload lingers so that the client gets its answer; closing would reset it."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await respond(send, b"too long", status=413)

    async def body(world: World) -> None:
        client = await world.connect()
        await client.send_all(post(length=1_000_000))
        await wait_all_tasks_blocked()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(world.server.drain, 10)
            for _ in range(4):
                await trio.sleep(1)
                await client.send_all(b"y" * 50_000)
            assert b" 413 " in await read_to_end(client)

    in_world(app, body)


def test_draining_an_idle_server_or_none_at_all() -> None:
    async def body(world: World) -> None:
        assert await world.server.drain(0)
        assert await world.server.drain(0)
        await world.served.wait()

    in_world(echo, body)

    async def main() -> None:
        server = Server(echo)
        assert await server.drain(1)
        network = MemoryNetwork()
        await server.serve([network.listen(HOST, PORT)])
        assert (HOST, PORT) not in network

    trio.run(main, clock=MockClock(autojump_threshold=0))


def test_cancelling_the_server_ends_everything_at_once() -> None:
    ended = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        try:
            await slow(scope, receive, send)
        finally:
            ended.append(trio.current_time())

    async def main() -> None:
        network = MemoryNetwork()
        server = Server(app)
        async with trio.open_nursery() as nursery:
            await nursery.start(server.serve, [network.listen(HOST, PORT)])
            client = await network.connect(HOST, PORT)
            await client.send_all(GET.replace(b"/", b"/100", 1))
            await trio.sleep(2.5)
            nursery.cancel_scope.cancel(reason="the test says so")
        assert ended == [2.5]
        assert (server.connections, server.requests) == (0, 0)
        assert (HOST, PORT) not in network
        assert (await read_to_end(client)).endswith(b"event\r\n")
        client.close()
        assert network.open_streams == 0

    trio.run(main, clock=MockClock(autojump_threshold=0))


# Accepting


def test_connections_over_the_limit_wait_in_the_backlog() -> None:
    async def body(world: World) -> None:
        first = await ask_slow(world, 5)
        second = await world.connect()
        await second.send_all(GET)
        await trio.sleep(3)
        assert world.server.connections == 1
        first.close()
        assert (await read_until(second, b"0\r\n\r\n")).startswith(b"HTTP/1.1 200")
        assert trio.current_time() >= 3
        third = await world.connect()
        await third.send_all(GET)
        await trio.sleep(1)
        second.close()
        await read_until(third, b"0\r\n\r\n")

    in_world(slow, body, options=ServerOptions(max_connections=1))


def test_the_limit_on_connections_holds_across_listeners() -> None:
    async def main() -> None:
        network = MemoryNetwork()
        server = Server(slow, options=ServerOptions(max_connections=1))
        async with trio.open_nursery() as nursery:
            ports = [PORT, PORT + 1]
            await nursery.start(server.serve, [network.listen(HOST, port) for port in ports])
            clients = [await network.connect(HOST, port) for port in ports * 2]
            for client in clients:
                await client.send_all(GET.replace(b"/", b"/1", 1))
            for _ in clients:
                await wait_all_tasks_blocked()
                assert server.connections == 1
                served = next(c for c in clients if c.stale())
                assert b"event" in await read_until(served, b"0\r\n\r\n")
                served.close()
                clients.remove(served)
                if not clients:
                    break
            for client in clients:
                client.close()
            assert await server.drain(10)
        assert network.open_streams == 0

    trio.run(main, clock=MockClock(autojump_threshold=0))


def test_what_was_accepted_over_the_limit_is_let_go_by_a_drain() -> None:
    async def main() -> None:
        network = MemoryNetwork()
        server = Server(slow, options=ServerOptions(max_connections=1))
        async with trio.open_nursery() as nursery:
            ports = [PORT, PORT + 1]
            await nursery.start(server.serve, [network.listen(HOST, port) for port in ports])
            clients = [await network.connect(HOST, port) for port in ports]
            for client in clients:
                await client.send_all(GET.replace(b"/", b"/5", 1))
            await trio.sleep(1)
            (waiting,) = [client for client in clients if not client.stale()]
            nursery.start_soon(server.drain, 10)
            with pytest.raises(trio.BrokenResourceError):
                await waiting.receive_some()
            assert trio.current_time() == 1
        assert trio.current_time() == 5
        for client in clients:
            client.close()
        assert network.open_streams == 0

    trio.run(main, clock=MockClock(autojump_threshold=0))


def test_draining_does_not_wait_for_room() -> None:
    async def body(world: World) -> None:
        await ask_slow(world, 5)
        waiting = await world.connect()
        await trio.sleep(1)
        assert await world.server.drain(10)
        await world.served.wait()
        with pytest.raises(trio.BrokenResourceError):
            await waiting.receive_some()

    in_world(slow, body, options=ServerOptions(max_connections=1))


class Counting(Listener):
    """A listener that counts the times it was waited for."""

    def __init__(self, inner: Listener) -> None:
        self.inner = inner
        self.address = inner.address
        self.waits = 0

    async def accept(self) -> ByteStream:
        stream = await self.inner.accept()
        self.waits += 1
        return stream

    def accept_nowait(self) -> ByteStream | None:
        return self.inner.accept_nowait()

    def close(self) -> None:
        self.inner.close()


@pytest.mark.parametrize(("room", "waits"), [(1000, 2), (5, 1)])
def test_a_burst_is_let_in_together_and_no_more_than_fit(room: int, waits: int) -> None:
    async def main() -> None:
        network = MemoryNetwork()
        inner = network.listen(HOST, PORT)
        listener = Counting(inner)
        clients = [await network.connect(HOST, PORT) for _ in range(100)]
        server = Server(slow, options=ServerOptions(max_connections=room))
        async with trio.open_nursery() as nursery:
            await nursery.start(server.serve, [listener])
            await wait_all_tasks_blocked()
            assert server.connections == min(room, len(clients))
            assert listener.waits == waits
            for client in clients:
                client.close()
            assert await server.drain(10)

    trio.run(main, clock=MockClock(autojump_threshold=0))


class Flaky(Listener):
    """A listener whose first accepts fail."""

    def __init__(self, inner: Listener, errors: list[int]) -> None:
        self.inner = inner
        self.errors = errors
        self.address = inner.address

    async def accept(self) -> ByteStream:
        await trio.lowlevel.checkpoint()
        if self.errors:
            raise OSError(self.errors.pop(0), "scripted")
        return await self.inner.accept()

    def close(self) -> None:
        self.inner.close()


def with_flaky(errors: list[int], body: Callable[[MemoryNetwork], Awaitable[None]]) -> None:
    async def main() -> None:
        network = MemoryNetwork()
        server = Server(echo)
        async with trio.open_nursery() as nursery:
            await nursery.start(server.serve, [Flaky(network.listen(HOST, PORT), errors)])
            await body(network)
            assert await server.drain(1)

    trio.run(main, clock=MockClock(autojump_threshold=0))


def test_accepting_survives_a_lack_of_descriptors(caplog: pytest.LogCaptureFixture) -> None:
    async def body(network: MemoryNetwork) -> None:
        client = await network.connect(HOST, PORT)
        await client.send_all(GET)
        assert (await client.receive_some()).startswith(b"HTTP/1.1 200")
        assert trio.current_time() == pytest.approx(0.3)
        client.close()

    with_flaky([errno.EMFILE, errno.ENFILE, errno.ENOMEM], body)
    assert len(caplog.records) == 3


def test_a_listener_that_fails_for_good_is_not_hidden() -> None:
    async def body(network: MemoryNetwork) -> None:
        await trio.sleep_forever()

    with pytest.RaisesGroup(OSError, flatten_subgroups=True):
        with_flaky([errno.EINVAL], body)
