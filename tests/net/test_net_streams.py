"""The stream contract, held against sockets and against memory."""

from __future__ import annotations

import errno
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from narwhal.net import (
    ByteStream,
    Link,
    Listener,
    MemoryNetwork,
    RawStream,
    connect_tcp,
    open_listeners,
)

Pair = tuple[ByteStream, ByteStream]
Body = Callable[[ByteStream, ByteStream], Awaitable[None]]


@asynccontextmanager
async def memory_pair() -> AsyncIterator[Pair]:
    network = MemoryNetwork()
    one, two = network.pair()
    try:
        yield one, two
    finally:
        one.close()
        two.close()
        assert network.open_streams == 0


@asynccontextmanager
async def socket_pair() -> AsyncIterator[Pair]:
    (listener,) = await open_listeners("127.0.0.1", 0)
    one = await connect_tcp(*listener.address)
    two = await listener.accept()
    listener.close()
    try:
        yield one, two
    finally:
        one.close()
        two.close()


KINDS = [
    pytest.param(memory_pair, id="memory"),
    pytest.param(socket_pair, id="sockets", marks=pytest.mark.sockets),
]


@pytest.fixture(params=KINDS)
def on_pair(request: pytest.FixtureRequest) -> Callable[[Body], None]:
    def run(body: Body) -> None:
        async def main() -> None:
            with trio.fail_after(5):
                async with request.param() as (one, two):
                    await body(one, two)

        trio.run(main)

    return run


async def settle(stream: ByteStream) -> None:
    """Let what is under way on loopback arrive."""
    if isinstance(stream, RawStream):
        await trio.sleep(0.02)
    else:
        await wait_all_tasks_blocked()


async def fill(stream: ByteStream) -> int:
    """Write without waiting until nothing more fits."""
    total = 0
    refused = 0
    while refused < 3:
        sent = stream.send_nowait(b"x" * 65536)
        total += sent
        refused = 0 if sent else refused + 1
        if not sent:
            await settle(stream)
    return total


def test_bytes_arrive_in_order(on_pair: Callable[[Body], None]) -> None:
    async def body(one: ByteStream, two: ByteStream) -> None:
        assert one.peer == two.local
        assert one.local == two.peer
        await one.send_all(b"a" * 10)
        assert one.send_nowait(b"b" * 5) == 5
        assert await two.receive_some(12) == b"a" * 10 + b"b" * 2
        assert await two.receive_some() == b"bbb"
        assert two.receive_nowait() is None
        await two.send_all(b"back")
        assert await one.receive_some() == b"back"

    on_pair(body)


def test_end_of_file_and_staleness(on_pair: Callable[[Body], None]) -> None:
    async def body(one: ByteStream, two: ByteStream) -> None:
        assert not two.stale()
        await one.send_all(b"last")
        one.send_eof()
        await settle(two)
        assert two.stale()
        assert await two.receive_some() == b"last"
        assert await two.receive_some() == b""
        assert two.receive_nowait() == b""
        assert two.stale()
        await two.send_all(b"still heard")
        assert await one.receive_some() == b"still heard"
        with pytest.raises(trio.BrokenResourceError):
            one.send_nowait(b"no")

    on_pair(body)


def test_stale_consumes_nothing(on_pair: Callable[[Body], None]) -> None:
    async def body(one: ByteStream, two: ByteStream) -> None:
        await one.send_all(b"unexpected")
        await settle(two)
        assert two.stale()
        assert await two.receive_some() == b"unexpected"

    on_pair(body)


def test_a_reader_that_does_not_read_stops_the_writer(on_pair: Callable[[Body], None]) -> None:
    async def body(one: ByteStream, two: ByteStream) -> None:
        total = await fill(one)
        with trio.move_on_after(0.05) as scope:
            await one.send_all(b"y" * 10)
        assert scope.cancelled_caught
        async with trio.open_nursery() as nursery:
            nursery.start_soon(one.send_all, b"z" * 100_000)
            got = 0
            while got < total + 100_000:
                got += len(await two.receive_some())
        assert got == total + 100_000
        assert await no_more(two)

    on_pair(body)


async def no_more(stream: ByteStream) -> bool:
    await settle(stream)
    return stream.receive_nowait() is None


@pytest.mark.parametrize("waiting_in", ["receive", "send"])
def test_closing_wakes_the_waiting_task(on_pair: Callable[[Body], None], waiting_in: str) -> None:
    async def body(one: ByteStream, two: ByteStream) -> None:
        async def wait() -> None:
            with pytest.raises(trio.ClosedResourceError):
                await (one.receive_some() if waiting_in == "receive" else one.send_all(b"more"))

        if waiting_in == "send":
            await fill(one)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await wait_all_tasks_blocked()
            one.close()
        one.close()
        with pytest.raises(trio.ClosedResourceError):
            await one.receive_some()
        with pytest.raises(trio.ClosedResourceError):
            await one.send_all(b"x")
        with pytest.raises(trio.ClosedResourceError):
            one.send_nowait(b"x")
        with pytest.raises(trio.ClosedResourceError):
            one.receive_nowait()

    on_pair(body)


def test_a_reset_breaks_both_directions(on_pair: Callable[[Body], None]) -> None:
    async def body(one: ByteStream, two: ByteStream) -> None:
        one.close(reset=True)
        with pytest.raises(trio.BrokenResourceError):
            await two.receive_some()
        with pytest.raises(trio.BrokenResourceError):
            await two.send_all(b"x")

    on_pair(body)


def test_closing_on_unread_bytes_resets_but_keeps_what_arrived(
    on_pair: Callable[[Body], None],
) -> None:
    async def body(one: ByteStream, two: ByteStream) -> None:
        await two.send_all(b"never read")
        await one.send_all(b"answer")
        await settle(two)
        one.close()
        await settle(two)
        assert await two.receive_some() == b"answer"
        with pytest.raises(trio.BrokenResourceError):
            await two.receive_some()

    on_pair(body)


def test_the_first_write_to_a_closed_peer_is_lost_silently(on_pair: Callable[[Body], None]) -> None:
    async def body(one: ByteStream, two: ByteStream) -> None:
        one.close()
        await settle(two)
        assert two.send_nowait(b"into the void") == 13
        await settle(two)
        with pytest.raises(trio.BrokenResourceError):
            two.send_nowait(b"again")

    on_pair(body)


def test_no_more_than_a_buffer_is_lost_silently(on_pair: Callable[[Body], None]) -> None:
    async def body(one: ByteStream, two: ByteStream) -> None:
        one.close()
        await settle(two)
        with pytest.raises(trio.BrokenResourceError):
            await two.send_all(b"x" * 10_000_000)

    on_pair(body)


def test_a_cancelled_receive_loses_nothing(on_pair: Callable[[Body], None]) -> None:
    async def body(one: ByteStream, two: ByteStream) -> None:
        with trio.move_on_after(0.01):
            await two.receive_some()
        await one.send_all(b"kept")
        with trio.CancelScope() as scope:
            scope.cancel(reason="test")
            await two.receive_some()
        assert scope.cancelled_caught
        assert await two.receive_some() == b"kept"

    on_pair(body)


def test_every_receive_yields(on_pair: Callable[[Body], None]) -> None:
    async def body(one: ByteStream, two: ByteStream) -> None:
        await one.send_all(b"abc")
        await settle(two)
        for _ in range(3):
            with trio.testing.assert_checkpoints():
                await two.receive_some(1)

    on_pair(body)


# Listeners


async def accept_one(listener: Listener) -> None:
    with pytest.raises(trio.ClosedResourceError):
        await listener.accept()


def test_memory_listeners_refuse_when_gone() -> None:
    async def main() -> None:
        network = MemoryNetwork()
        with pytest.raises(ConnectionRefusedError):
            await network.connect("n1", 8000)
        listener = network.listen("n1", 8000)
        with pytest.raises(OSError, match="in use") as caught:
            network.listen("n1", 8000)
        assert caught.value.errno == errno.EADDRINUSE
        assert network.listen("n1").address != network.listen("n1").address
        client = await network.connect("n1", 8000)
        async with trio.open_nursery() as nursery:
            (await listener.accept()).close()
            nursery.start_soon(accept_one, listener)
            await wait_all_tasks_blocked()
            listener.close()
        assert await client.receive_some() == b""
        client.close()
        with pytest.raises(ConnectionRefusedError):
            await network.connect("n1", 8000)
        assert network.open_streams == 0

    trio.run(main, clock=MockClock(autojump_threshold=0))


def test_memory_backlog_makes_connect_wait_and_closing_refuses_the_waiting() -> None:
    async def main() -> None:
        network = MemoryNetwork()
        listener = network.listen("n1", 1, backlog=1)
        first = await network.connect("n1", 1)
        with trio.move_on_after(1) as scope:
            await network.connect("n1", 1)
        assert scope.cancelled_caught

        async def refused() -> None:
            with pytest.raises(ConnectionRefusedError):
                await network.connect("n1", 1)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(refused)
            await wait_all_tasks_blocked()
            listener.close()
        with pytest.raises(trio.BrokenResourceError):
            await first.receive_some()
        first.close()
        assert network.open_streams == 0

    trio.run(main, clock=MockClock(autojump_threshold=0))


def test_memory_latency_delays_handshake_bytes_and_resets() -> None:
    async def main() -> None:
        network = MemoryNetwork(links=lambda host, port: Link(delay_s=0.25))
        listener = network.listen("n1", 1)
        client = await network.connect("n1", 1)
        assert trio.current_time() - start == pytest.approx(0.5)
        server = await listener.accept()
        await client.send_all(b"x")
        assert server.receive_nowait() is None
        assert await server.receive_some() == b"x"
        assert trio.current_time() - start == pytest.approx(0.75)
        server.close(reset=True)
        assert not client.stale()
        with pytest.raises(trio.BrokenResourceError):
            await client.receive_some()
        assert trio.current_time() - start == pytest.approx(1.0)
        client.close()
        listener.close()

    start = 0.0
    trio.run(main, clock=MockClock(autojump_threshold=0))


def test_memory_latency_may_drop_packets() -> None:
    async def main() -> None:
        network = MemoryNetwork(links=lambda host, port: Link(delay_s=float("inf")))
        network.listen("n1", 1)
        with trio.move_on_after(3600) as scope:
            await network.connect("n1", 1)
        assert scope.cancelled_caught

    trio.run(main, clock=MockClock(autojump_threshold=0))


@pytest.mark.sockets
def test_connect_tcp_tries_every_address_of_a_name() -> None:
    ports: list[int] = []

    class Resolver(trio.abc.HostnameResolver):
        async def getaddrinfo(self, *args: Any, **kwargs: Any) -> Any:
            info = (socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "")
            return [(*info, ("127.0.0.1", port)) for port in ports]

        async def getnameinfo(self, *args: Any) -> Any:
            raise NotImplementedError

    async def main() -> None:
        (gone,) = await open_listeners("127.0.0.1", 0)
        gone.close()
        (listener,) = await open_listeners("127.0.0.1", 0)
        ports.extend([gone.address[1], listener.address[1]])
        trio.socket.set_custom_hostname_resolver(Resolver())
        stream = await connect_tcp("engine.test", 1)
        assert stream.peer == listener.address
        stream.close()
        listener.close()
        with pytest.raises(ConnectionRefusedError):
            await connect_tcp("engine.test", 1)

    trio.run(main)


@pytest.mark.sockets
def test_open_listeners_reports_a_port_in_use_and_leaves_nothing_open() -> None:
    async def main() -> None:
        (listener,) = await open_listeners("127.0.0.1", 0)
        with pytest.raises(OSError, match="in use"):
            await open_listeners(*listener.address)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(accept_one, listener)
            await wait_all_tasks_blocked()
            listener.close()
        for again in await open_listeners(*listener.address):
            again.close()

    trio.run(main)


@pytest.mark.sockets
def test_accept_skips_connections_that_died_in_the_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    """ECONNABORTED is about one connection; EMFILE is about us, and is the caller's to see."""

    async def main() -> None:
        (listener,) = await open_listeners("127.0.0.1", 0)
        client = await connect_tcp(*listener.address)
        real = listener._sock
        errors = [errno.ECONNABORTED, errno.EPROTO, errno.EMFILE]

        class Sock:
            def accept(self) -> object:
                if errors:
                    raise OSError(errors.pop(0), "scripted")
                return real.accept()

            def close(self) -> None:
                real.close()

        monkeypatch.setattr(type(listener), "_sock", Sock(), raising=False)
        with pytest.raises(OSError, match="scripted") as caught:
            await listener.accept()
        assert caught.value.errno == errno.EMFILE
        (await listener.accept()).close()
        client.close()
        listener.close()

    trio.run(main)
