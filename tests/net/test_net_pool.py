"""The client pool: reuse, limits, replays, and what a cancel may cost (nothing)."""

from __future__ import annotations

import contextlib
import gc
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import trio
from net_engine import (
    ENGINE,
    OK,
    REQUEST,
    CancelAt,
    Engine,
    answer_all,
    make_pool,
    one_second_then_close,
    read_request,
)
from trio.testing import MockClock, wait_all_tasks_blocked

from narwhal.model import (
    ConnectFailed,
    EngineClosed,
    EngineProtocolError,
    Limit,
    PoolExhausted,
    ResponseTooLarge,
)
from narwhal.net import ByteStream, ConnectionPool, Exchange, Link, MemoryNetwork
from narwhal.net.response import ResponseReader

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


def in_virtual_time(
    body: Callable[[ConnectionPool, Engine], Awaitable[None]],
    *scripts: Any,
    network: MemoryNetwork | None = None,
    **changes: Any,
) -> None:
    """Run `body` with a pool and an engine; afterwards every connection must be closed."""

    async def main() -> None:
        net = network or MemoryNetwork()
        engine = Engine(net, *scripts)
        pool = make_pool(net, **changes)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(engine.run)
            await body(pool, engine)
            await wait_all_tasks_blocked()
            assert (pool.busy, pool.waiting) == (0, 0)
            pool.close()
            assert pool.idle == 0
            nursery.cancel_scope.cancel(reason="the test is over")
        engine.listener.close()
        assert net.open_streams == 0

    trio.run(main, clock=MockClock(autojump_threshold=0))


async def ask(pool: ConnectionPool, *, replayable: bool = True) -> bytes:
    with await pool.send(REQUEST, replayable=replayable) as exchange:
        assert await exchange.response() == 200
        return await exchange.read_all(1_000_000)


async def finish(exchange: Exchange) -> bytes:
    await exchange.response()
    return await exchange.read_all(1_000_000)


# One exchange


def test_an_exchange() -> None:
    async def body(pool: ConnectionPool, engine: Engine) -> None:
        with await pool.send(REQUEST, replayable=False) as exchange:
            assert not exchange.reused
            assert exchange.request_bytes == len(REQUEST)
            assert await exchange.response() == 200
            assert exchange.headers == [(b"content-length", b"2")]
            assert exchange.response_bytes == len(OK)
            assert exchange.finished
            assert pool.busy == 0
            assert await exchange.read() == b"ok"
            assert await exchange.read() == b""
            assert exchange.read_nowait() == b""
        assert pool.idle == 1

    in_virtual_time(body)


def test_reads_bring_what_one_receive_brought() -> None:
    async def script(stream: ByteStream, number: int) -> None:
        await read_request(stream)
        await stream.send_all(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        await trio.sleep(1)
        await stream.send_all(b"1\r\na\r\n")
        await stream.send_all(b"2\r\nbc\r\n3\r\nd")
        await trio.sleep(1)
        await stream.send_all(b"ef\r\n")
        await trio.sleep(1)
        await stream.send_all(b"0\r\n\r\n")

    async def body(pool: ConnectionPool, engine: Engine) -> None:
        with await pool.send(REQUEST, replayable=False) as exchange:
            await exchange.response()
            assert exchange.read_nowait() is None
            assert await exchange.read() == b"abcd"
            assert exchange.read_nowait() is None
            await trio.sleep(1.5)
            assert exchange.read_nowait() == b"ef"
            assert not exchange.finished
            assert await exchange.read() == b""
            assert exchange.finished

    in_virtual_time(body, script)


def test_a_body_over_the_limit_closes_the_connection() -> None:
    async def body(pool: ConnectionPool, engine: Engine) -> None:
        exchange = await pool.send(REQUEST, replayable=False)
        await exchange.response()
        with pytest.raises(ResponseTooLarge, match="1 bytes"):
            await exchange.read_all(1)

    in_virtual_time(body)


def test_a_large_body_and_a_large_request_pass_bounded_buffers() -> None:
    size = 1_000_000
    request = b"POST / HTTP/1.1\r\nhost: n1\r\ncontent-length: %d\r\n\r\n" % size + b"q" * size

    async def script(stream: ByteStream, number: int) -> None:
        while await read_request(stream) == request:
            await stream.send_all(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % size)
            await stream.send_all(b"a" * size)

    async def body(pool: ConnectionPool, engine: Engine) -> None:
        for reused in (False, True):
            with await pool.send(request, replayable=False) as exchange:
                assert exchange.reused is reused
                assert exchange.request_bytes == len(request)
                await exchange.response()
                assert await exchange.read_all(size) == b"a" * size
        assert engine.accepted == 1

    in_virtual_time(body, script)


def test_closing_an_unfinished_exchange_closes_its_connection() -> None:
    async def script(stream: ByteStream, number: int) -> None:
        await read_request(stream)
        await stream.send_all(OK[:-1])
        left.append((await stream.receive_some(), trio.current_time()))

    async def body(pool: ConnectionPool, engine: Engine) -> None:
        with await pool.send(REQUEST, replayable=False) as exchange:
            await exchange.response()
            await trio.sleep(3)
        exchange.close()
        assert (pool.busy, pool.idle) == (0, 0)
        await wait_all_tasks_blocked()
        assert left == [(b"", 3)]
        with pytest.raises(EngineClosed, match="at this end"):
            await exchange.read_all(100)
        with pytest.raises(EngineClosed):
            exchange.read_nowait()

    left: list[tuple[bytes, float]] = []
    in_virtual_time(body, script)


def test_a_cancelled_read_loses_nothing() -> None:
    async def script(stream: ByteStream, number: int) -> None:
        await read_request(stream)
        for at in range(len(OK)):
            await trio.sleep(1)
            await stream.send_all(OK[at : at + 1])

    async def body(pool: ConnectionPool, engine: Engine) -> None:
        with await pool.send(REQUEST, replayable=False) as exchange:
            got = b""
            while not exchange.finished:
                with trio.move_on_after(0.3):
                    await exchange.response()
                    got += await exchange.read()
            assert got == b"ok"

    in_virtual_time(body, script)


@pytest.mark.parametrize("ending", ["end", "reset"])
@pytest.mark.parametrize("length", [1, len(OK) - 2, len(OK) - 1])
def test_a_cut_answer_is_an_error_with_counts(ending: str, length: int) -> None:
    async def script(stream: ByteStream, number: int) -> None:
        await read_request(stream)
        await stream.send_all(OK[:length])
        stream.close(reset=ending == "reset")

    async def body(pool: ConnectionPool, engine: Engine) -> None:
        exchange = await pool.send(REQUEST, replayable=True)
        with pytest.raises(EngineClosed, match="middle of its answer") as caught:
            await finish(exchange)
        assert caught.value.request_bytes == len(REQUEST)
        assert caught.value.response_bytes == length
        assert pool.busy == 0

    in_virtual_time(body, script)


def test_what_is_no_response_closes_the_connection() -> None:
    async def script(stream: ByteStream, number: int) -> None:
        await read_request(stream)
        await stream.send_all(b"HTTP/1.1 200 OK\r\n\r\nuntil the end of the connection")

    async def body(pool: ConnectionPool, engine: Engine) -> None:
        exchange = await pool.send(REQUEST, replayable=True)
        with pytest.raises(EngineProtocolError):
            await exchange.response()
        assert pool.busy == 0

    in_virtual_time(body, script)


# Reuse


def test_connections_are_reused_last_in_first_out() -> None:
    async def body(pool: ConnectionPool, engine: Engine) -> None:
        first = await pool.send(REQUEST, replayable=False)
        second = await pool.send(REQUEST, replayable=False)
        for exchange in (second, first):
            with exchange:
                await exchange.response()
        assert (pool.idle, engine.accepted) == (2, 2)
        for _ in range(3):
            with await pool.send(REQUEST, replayable=False) as exchange:
                assert exchange.reused
                assert exchange._stream is first._stream
                await exchange.response()
        await trio.sleep(3.9)
        await ask(pool)
        await trio.sleep(0.2)
        pool.close_expired()
        assert pool.idle == 1

    in_virtual_time(body)


def test_idle_connections_expire_before_the_server_closes_them() -> None:
    async def script(stream: ByteStream, number: int) -> None:
        with trio.CancelScope() as scope:
            while await read_request(stream):
                await stream.send_all(OK)
                scope.deadline = trio.current_time() + 5

    async def body(pool: ConnectionPool, engine: Engine) -> None:
        for pause, fresh in ((3.99, False), (4.0, True), (4.99, True), (5.0, True), (60, True)):
            await ask(pool)
            before = engine.accepted
            await trio.sleep(pause)
            await ask(pool)
            assert (engine.accepted > before) is fresh
        assert pool.replays == 0

    in_virtual_time(body, script)


@pytest.mark.parametrize("how", ["end", "reset", "surplus"])
def test_stale_connections_are_not_reused(how: str) -> None:
    async def script(stream: ByteStream, number: int) -> None:
        await read_request(stream)
        await stream.send_all(OK)
        await trio.sleep(1)
        if how == "surplus":
            await stream.send_all(b"HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\n\r\n")
            await trio.sleep(1)
        stream.close(reset=how == "reset")

    async def body(pool: ConnectionPool, engine: Engine) -> None:
        for _ in range(3):
            with await pool.send(REQUEST, replayable=False) as exchange:
                assert not exchange.reused
                assert await exchange.response() == 200
            await trio.sleep(1.5)

    in_virtual_time(body, script)


@pytest.mark.parametrize("extra", [b"connection: close\r\n", b"Connection: Close\r\n"])
def test_connection_close_is_honoured(extra: bytes) -> None:
    async def script(stream: ByteStream, number: int) -> None:
        await answer_all(stream, number, OK.replace(b"\r\n\r\n", b"\r\n" + extra + b"\r\n"))

    async def body(pool: ConnectionPool, engine: Engine) -> None:
        for _ in range(2):
            assert await ask(pool) == b"ok"
            assert pool.idle == 0
        assert engine.accepted == 2

    in_virtual_time(body, script)


# Replay


async def dies_on_second(stream: ByteStream, number: int) -> None:
    """Answer once, then close the connection when the next request is read."""
    await read_request(stream)
    await stream.send_all(OK)
    if number == 0:
        await read_request(stream)
    else:
        await answer_all(stream, number)


def test_a_reused_connection_that_dies_unanswered_is_replayed_once() -> None:
    async def body(pool: ConnectionPool, engine: Engine) -> None:
        assert await ask(pool) == b"ok"
        with await pool.send(REQUEST, replayable=True) as exchange:
            assert exchange.reused
            assert await exchange.response() == 200
            assert not exchange.reused
            assert await exchange.read_all(10) == b"ok"
            assert exchange.request_bytes == len(REQUEST)
        assert (engine.accepted, pool.replays) == (2, 1)

    in_virtual_time(body, dies_on_second)


def test_a_replay_leaves_nothing_for_the_collector() -> None:
    """The reader that waited on the dead connection is closed: its parser refers back to it."""

    async def body(pool: ConnectionPool, engine: Engine) -> None:
        assert await ask(pool) == b"ok"
        gc.collect()
        gc.disable()
        gc.set_debug(gc.DEBUG_SAVEALL)
        try:
            assert await ask(pool) == b"ok"
            gc.collect()
            left = [each for each in gc.garbage if isinstance(each, ResponseReader)]
        finally:
            gc.set_debug(0)
            gc.garbage.clear()
            gc.enable()
        assert (pool.replays, left) == (1, [])

    in_virtual_time(body, dies_on_second)


def test_what_must_not_be_sent_twice_is_not_replayed() -> None:
    async def body(pool: ConnectionPool, engine: Engine) -> None:
        assert await ask(pool) == b"ok"
        exchange = await pool.send(REQUEST, replayable=False)
        with pytest.raises(EngineClosed, match="without an answer") as caught:
            await exchange.response()
        assert caught.value.request_bytes == len(REQUEST)
        assert caught.value.response_bytes == 0
        assert engine.accepted == 1

    in_virtual_time(body, dies_on_second)


def test_a_fresh_connection_that_dies_is_not_replayed() -> None:
    async def script(stream: ByteStream, number: int) -> None:
        await read_request(stream)

    async def body(pool: ConnectionPool, engine: Engine) -> None:
        exchange = await pool.send(REQUEST, replayable=True)
        with pytest.raises(EngineClosed):
            await exchange.response()
        assert engine.accepted == 1

    in_virtual_time(body, script)


def test_nothing_is_replayed_twice() -> None:
    async def script(stream: ByteStream, number: int) -> None:
        await read_request(stream)
        if number == 0:
            await stream.send_all(OK)
            await read_request(stream)

    async def body(pool: ConnectionPool, engine: Engine) -> None:
        assert await ask(pool) == b"ok"
        exchange = await pool.send(REQUEST, replayable=True)
        with pytest.raises(EngineClosed):
            await exchange.response()
        assert engine.accepted == 2

    in_virtual_time(body, script)


def test_nothing_is_replayed_after_a_response_byte() -> None:
    async def script(stream: ByteStream, number: int) -> None:
        await read_request(stream)
        await stream.send_all(OK)
        await read_request(stream)
        await stream.send_all(b"H")

    async def body(pool: ConnectionPool, engine: Engine) -> None:
        assert await ask(pool) == b"ok"
        exchange = await pool.send(REQUEST, replayable=True)
        with pytest.raises(EngineClosed):
            await exchange.response()
        assert engine.accepted == 1

    in_virtual_time(body, script)


@pytest.mark.parametrize(("size", "delay"), [(3, 0.5), (1_000_000, 0.0)])
def test_a_cancel_while_a_request_is_sent_again_ends_its_exchange(size: int, delay: float) -> None:
    """While the second connection is opened, and while the request is written to it."""
    request = b"POST / HTTP/1.1\r\nhost: n1\r\ncontent-length: %d\r\n\r\n" % size + b"q" * size

    async def script(stream: ByteStream, number: int) -> None:
        if number == 0:
            await read_request(stream)
            await stream.send_all(OK)
            await read_request(stream)
        else:
            await trio.sleep(1000)

    async def body(pool: ConnectionPool, engine: Engine) -> None:
        assert await ask(pool) == b"ok"
        exchange = await pool.send(request, replayable=True)
        with trio.move_on_after(1.5) as scope:
            await exchange.response()
        assert scope.cancelled_caught
        assert pool.replays == 1
        assert pool.busy == 0
        with trio.fail_after(1), pytest.raises(EngineClosed, match="at this end"):
            await exchange.response()

    in_virtual_time(
        body, script, network=MemoryNetwork(links=lambda host, port: Link(delay_s=delay))
    )


class LateReset(ByteStream):
    """A stream whose reset is only noticed by the next write, as between two kernels."""

    def __init__(self, inner: ByteStream) -> None:
        self.inner = inner
        self.peer, self.local = inner.peer, inner.local
        self.broken = False
        self.unwilling = False

    async def receive_some(self, max_bytes: int = 65536) -> bytes:
        return await self.inner.receive_some(max_bytes)

    async def send_all(self, data: bytes) -> None:
        if self.unwilling:
            raise trio.BrokenResourceError("reset, after who knows how much")
        await self.inner.send_all(data)

    def send_nowait(self, data: bytes) -> int:
        if self.broken:
            raise trio.BrokenResourceError("reset")
        if self.unwilling:
            return 0
        return self.inner.send_nowait(data)

    def receive_nowait(self, max_bytes: int = 65536) -> bytes | None:
        return self.inner.receive_nowait(max_bytes)

    def close(self, *, reset: bool = False) -> None:
        self.inner.close(reset=reset)

    def stale(self) -> bool:
        return False


def test_what_was_not_written_at_all_may_always_be_replayed() -> None:
    network = MemoryNetwork()
    streams: list[LateReset] = []

    async def connect(host: str, port: int) -> ByteStream:
        streams.append(LateReset(await network.connect(host, port)))
        return streams[-1]

    async def script(stream: ByteStream, number: int) -> None:
        await read_request(stream)
        await stream.send_all(OK)
        if number:
            await answer_all(stream, number)

    async def body(pool: ConnectionPool, engine: Engine) -> None:
        assert await ask(pool) == b"ok"
        await wait_all_tasks_blocked()
        streams[0].broken = True
        assert await ask(pool, replayable=False) == b"ok"
        assert pool.replays == 1

    in_virtual_time(body, script, network=network, connect=connect)


def test_what_may_have_been_written_is_not_replayed() -> None:
    network = MemoryNetwork()
    streams: list[LateReset] = []

    async def connect(host: str, port: int) -> ByteStream:
        streams.append(LateReset(await network.connect(host, port)))
        return streams[-1]

    async def script(stream: ByteStream, number: int) -> None:
        await read_request(stream)
        await stream.send_all(OK)

    async def body(pool: ConnectionPool, engine: Engine) -> None:
        assert await ask(pool) == b"ok"
        await wait_all_tasks_blocked()
        streams[0].unwilling = True
        with pytest.raises(EngineClosed) as caught:
            await ask(pool, replayable=False)
        assert caught.value.request_bytes > 0

    in_virtual_time(body, script, network=network, connect=connect)


def test_the_last_look_before_writing_can_call_it_off() -> None:
    looks: list[float] = []

    def look() -> None:
        looks.append(trio.current_time())
        if len(looks) > 1:
            raise ValueError("too late")

    async def body(pool: ConnectionPool, engine: Engine) -> None:
        with await pool.send(REQUEST, replayable=False, before_write=look) as exchange:
            assert await finish(exchange) == b"ok"
        with pytest.raises(ValueError, match="too late"):
            await pool.send(REQUEST, replayable=False, before_write=look)
        assert looks == [1, 2]
        assert (pool.busy, pool.idle) == (0, 1)
        assert await ask(pool) == b"ok"
        assert engine.accepted == 1

    in_virtual_time(body, network=MemoryNetwork(links=lambda host, port: Link(delay_s=0.5)))


# Answers that come before the request is through


@pytest.mark.parametrize("linger", [True, False])
def test_an_early_answer_is_delivered_although_writing_fails(linger: bool) -> None:
    size = 1_000_000
    request = b"POST / HTTP/1.1\r\nhost: n1\r\ncontent-length: %d\r\n\r\n" % size + b"q" * size

    async def script(stream: ByteStream, number: int) -> None:
        await stream.receive_some(1000)
        await stream.send_all(b"HTTP/1.1 413 Too Large\r\ncontent-length: 4\r\n\r\nlong")
        await trio.sleep(1)
        while linger and await stream.receive_some():
            pass

    async def body(pool: ConnectionPool, engine: Engine) -> None:
        for _ in range(2):
            with await pool.send(request, replayable=True) as exchange:
                assert await exchange.response() == 413
                assert await exchange.read_all(100) == b"long"
            assert pool.idle == (1 if linger else 0)
            pool.close_expired()
            await trio.sleep(5)

    in_virtual_time(body, script)


def test_a_write_that_fails_without_an_answer_reports_it() -> None:
    size = 1_000_000
    request = b"POST / HTTP/1.1\r\nhost: n1\r\ncontent-length: %d\r\n\r\n" % size + b"q" * size

    async def script(stream: ByteStream, number: int) -> None:
        await stream.receive_some(1000)

    async def body(pool: ConnectionPool, engine: Engine) -> None:
        with pytest.raises(EngineClosed) as caught:
            await pool.send(request, replayable=True)
        assert 0 < caught.value.request_bytes < len(request)
        assert engine.accepted == 1

    in_virtual_time(body, script)


# Limits


def test_waiting_requests_are_served_in_order() -> None:
    async def script(stream: ByteStream, number: int) -> None:
        while await read_request(stream):
            await trio.sleep(1)
            await stream.send_all(OK)

    order: list[int] = []

    async def one(pool: ConnectionPool, number: int) -> None:
        await ask(pool)
        order.append(number)

    async def body(pool: ConnectionPool, engine: Engine) -> None:
        async with trio.open_nursery() as nursery:
            for number in range(5):
                nursery.start_soon(one, pool, number)
                await wait_all_tasks_blocked()
            assert (pool.busy, pool.waiting) == (1, 4)
        assert order == [0, 1, 2, 3, 4]
        assert engine.accepted == 1

    in_virtual_time(body, script, limit=1)


def test_waiting_is_bounded_by_the_pool_timeout() -> None:
    async def body(pool: ConnectionPool, engine: Engine) -> None:
        with (
            await pool.send(REQUEST, replayable=True),
            await pool.send(REQUEST, replayable=True),
        ):
            with pytest.raises(PoolExhausted, match="came free within 5 s; all 2 are in use"):
                await pool.send(REQUEST, replayable=True)
            assert trio.current_time() == 5
            assert pool.waiting == 0

    in_virtual_time(body)


def test_a_slot_freed_by_a_failure_goes_to_the_one_who_waits() -> None:
    async def script(stream: ByteStream, number: int) -> None:
        await read_request(stream)
        await trio.sleep(1)
        if number:
            await stream.send_all(OK)

    async def body(pool: ConnectionPool, engine: Engine) -> None:
        async def fails() -> None:
            with pytest.raises(EngineClosed):
                await ask(pool)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(fails)
            await wait_all_tasks_blocked()
            assert await ask(pool) == b"ok"

    in_virtual_time(body, script, limit=1)


def test_a_connection_handed_over_may_turn_out_stale() -> None:
    async def script(stream: ByteStream, number: int) -> None:
        await read_request(stream)
        await trio.sleep(1)
        await stream.send_all(OK)

    async def body(pool: ConnectionPool, engine: Engine) -> None:
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(partial(ask, pool, replayable=False))
        assert (engine.accepted, pool.replays) == (3, 0)

    in_virtual_time(body, script, limit=1)


def test_connecting_is_bounded_by_its_own_limit() -> None:
    network = MemoryNetwork(links=lambda host, port: Link(delay_s=float("inf")))

    async def body(pool: ConnectionPool, engine: Engine) -> None:
        with pytest.raises(ConnectFailed, match="within 10 s") as caught:
            await pool.send(REQUEST, replayable=True)
        assert caught.value.limit is Limit.CONNECT
        assert trio.current_time() == 10

    in_virtual_time(body, network=network)


def test_a_callers_deadline_is_not_taken_for_the_pools() -> None:
    network = MemoryNetwork(links=lambda host, port: Link(delay_s=float("inf")))

    async def body(pool: ConnectionPool, engine: Engine) -> None:
        with trio.move_on_after(10) as scope:
            await pool.send(REQUEST, replayable=True)
        assert scope.cancelled_caught

    in_virtual_time(body, network=network, connect_timeout=10)


def test_a_refused_connection() -> None:
    async def body(pool: ConnectionPool, engine: Engine) -> None:
        engine.listener.close()
        for _ in range(3):
            with pytest.raises(ConnectFailed, match=r"n1:8000.*refused") as caught:
                await pool.send(REQUEST, replayable=True)
            assert caught.value.limit is None

    in_virtual_time(body, limit=1)


def test_a_replay_that_cannot_connect_frees_its_slot() -> None:
    async def body(pool: ConnectionPool, engine: Engine) -> None:
        await ask(pool)
        exchange = await pool.send(REQUEST, replayable=True)
        engine.listener.close()
        with exchange, pytest.raises(ConnectFailed):
            await exchange.response()
        assert pool.busy == 0

    in_virtual_time(body, dies_on_second, limit=1)


def test_closing_the_pool_while_it_connects() -> None:
    async def body(pool: ConnectionPool, engine: Engine) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(close_soon, pool)
            with pytest.raises(EngineClosed, match="was closed"):
                await pool.send(REQUEST, replayable=True)
        assert trio.current_time() == 1

    async def close_soon(pool: ConnectionPool) -> None:
        await trio.sleep(0.5)
        pool.close()

    in_virtual_time(body, network=MemoryNetwork(links=lambda host, port: Link(delay_s=0.5)))


def test_closing_the_pool_ends_idle_busy_and_waiting() -> None:
    async def hang(stream: ByteStream, number: int) -> None:
        await read_request(stream)
        await stream.receive_some()

    async def body(pool: ConnectionPool, engine: Engine) -> None:
        async def fails() -> None:
            with pytest.raises(EngineClosed, match=r"pool|at this end"):
                await ask(pool)

        async with trio.open_nursery() as nursery:
            for _ in range(4):
                nursery.start_soon(fails)
            await wait_all_tasks_blocked()
            assert (pool.busy, pool.waiting) == (2, 2)
            pool.close()
        with pytest.raises(EngineClosed, match="was closed"):
            await pool.send(REQUEST, replayable=True)

    in_virtual_time(body, hang)


# Cancellation at every step


async def slow_parts(stream: ByteStream, number: int) -> None:
    while await read_request(stream):
        for piece in (OK[:5], OK[5:-1], OK[-1:]):
            await trio.sleep(0.1)
            await stream.send_all(piece)


async def until_second(stream: ByteStream, number: int) -> None:
    """Each connection answers one request and dies on the next: every reuse is a replay."""
    await read_request(stream)
    await stream.send_all(OK)
    await read_request(stream)


@pytest.mark.parametrize("script", [slow_parts, until_second])
@pytest.mark.parametrize("state", ["cold", "warm", "contended", "latency"])
def test_no_cancel_at_any_step_costs_a_slot_or_mixes_answers(state: str, script: Any) -> None:
    """After the cancel the pool of one must serve the next requests, rightly and at once."""
    step = 0
    caught = True

    async def cancelled_at(pool: ConnectionPool) -> bool:
        with trio.CancelScope() as scope:
            instrument = CancelAt(scope, step)
            try:
                await ask(pool)
            finally:
                trio.lowlevel.remove_instrument(instrument)
        return scope.cancelled_caught

    async def body(pool: ConnectionPool, engine: Engine) -> None:
        nonlocal caught
        if state == "warm":
            await ask(pool)
        async with trio.open_nursery() as nursery:
            if state == "contended":
                for _ in range(2):
                    nursery.start_soon(ask, pool)
                await wait_all_tasks_blocked()
            caught = await cancelled_at(pool)
            if state == "contended":
                nursery.start_soon(ask, pool)
            assert await ask(pool) == b"ok"
        assert await ask(pool) == b"ok"
        assert (pool.busy, pool.waiting) == (0, 0)

    delay = 0.05 if state == "latency" else 0.0
    while caught:
        step += 1
        network = MemoryNetwork(links=lambda host, port: Link(delay_s=delay))
        in_virtual_time(body, script, network=network, limit=1)
    assert step > 1


@pytest.mark.parametrize("script", [slow_parts, until_second, one_second_then_close])
def test_cancelling_a_waiter_at_any_step_of_the_holder_costs_no_slot(script: Any) -> None:
    """Including the step that hands the connection over."""
    step = 0
    more = True

    async def hold(pool: ConnectionPool, instrument: CancelAt) -> None:
        instrument.watch()
        await ask(pool)

    async def wait(pool: ConnectionPool, scope: trio.CancelScope) -> None:
        with scope:
            await ask(pool)

    async def body(pool: ConnectionPool, engine: Engine) -> None:
        nonlocal more
        scope = trio.CancelScope()
        instrument = CancelAt(scope, step)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(hold, pool, instrument)
            await wait_all_tasks_blocked()
            nursery.start_soon(wait, pool, scope)
        trio.lowlevel.remove_instrument(instrument)
        more = scope.cancelled_caught or step < 10
        with trio.fail_after(2):
            assert await ask(pool) == b"ok"

    while more:
        step += 1
        in_virtual_time(body, script, limit=1)


def test_churn_leaves_nothing_behind() -> None:
    """Contention and random cancels: the mix that made another pool lose every slot it had."""
    seeds = range(40)

    async def client(pool: ConnectionPool, seed: int) -> None:
        for turn in range(30):
            with trio.move_on_after((seed * 7 + turn * 13) % 23 / 100):
                with contextlib.suppress(PoolExhausted):
                    assert await ask(pool) == b"ok"

    async def body(pool: ConnectionPool, engine: Engine) -> None:
        async with trio.open_nursery() as nursery:
            for seed in seeds:
                nursery.start_soon(client, pool, seed)
        assert (pool.busy, pool.waiting) == (0, 0)
        async with trio.open_nursery() as nursery:
            for _ in range(10):
                nursery.start_soon(ask, pool)

    network = MemoryNetwork(links=lambda host, port: Link(delay_s=0.01))
    in_virtual_time(body, slow_parts, network=network, limit=10, pool_timeout=0.2)


def test_the_engine_is_the_one_that_was_asked_for() -> None:
    assert make_pool(MemoryNetwork()).name == f"{ENGINE[0]}:{ENGINE[1]}"
