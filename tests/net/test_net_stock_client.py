"""What stock httpcore does where our pool does something else, on the same network in memory.

Strict xfails: each is the reason for a part of the pool.
"""

from __future__ import annotations

import gc
import warnings
from typing import TYPE_CHECKING, Any

import httpcore
import pytest
import trio
from net_engine import OK, CancelAt, Engine, answer_all, one_second_then_close, read_request
from net_stock import StockNetwork
from trio.testing import MockClock, wait_all_tasks_blocked

from narwhal.net import ByteStream, MemoryNetwork

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

URL = "http://n1:8000/"


def with_stock_pool(
    body: Callable[[httpcore.AsyncConnectionPool, MemoryNetwork], Awaitable[None]],
    *scripts: Any,
    network: MemoryNetwork | None = None,
    limit: int = 10,
) -> None:
    async def main() -> None:
        net = network or MemoryNetwork()
        engine = Engine(net, *scripts)
        pool = httpcore.AsyncConnectionPool(
            max_connections=limit,
            network_backend=StockNetwork(net),
        )
        async with trio.open_nursery() as nursery:
            nursery.start_soon(engine.run)
            try:
                await body(pool, net)
            finally:
                nursery.cancel_scope.cancel(reason="the test is over")

    trio.run(main, clock=MockClock(autojump_threshold=0))


@pytest.mark.xfail(strict=True, reason="a waiter's cancel can leave a slot that nobody owns")
def test_cancelling_a_waiter_at_any_step_of_the_holder_costs_no_slot() -> None:
    """The counterpart of a test of the pool; see there."""
    step = 0
    more = True

    async def hold(pool: httpcore.AsyncConnectionPool, instrument: CancelAt) -> None:
        instrument.watch()
        await pool.request("GET", URL)

    async def wait(pool: httpcore.AsyncConnectionPool, scope: trio.CancelScope) -> None:
        with scope:
            await pool.request("GET", URL)

    async def body(pool: httpcore.AsyncConnectionPool, network: MemoryNetwork) -> None:
        nonlocal more
        scope = trio.CancelScope()
        instrument = CancelAt(scope, step)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(hold, pool, instrument)
            await wait_all_tasks_blocked()
            nursery.start_soon(wait, pool, scope)
        trio.lowlevel.remove_instrument(instrument)
        more = scope.cancelled_caught or step < 10
        with trio.fail_after(1000):
            assert (await pool.request("GET", URL)).content == b"ok"

    while more:
        step += 1
        with_stock_pool(body, one_second_then_close, limit=1)


@pytest.mark.xfail(strict=True, reason="a dead reused connection is reported, not replaced")
def test_a_dead_reused_connection_is_replayed() -> None:
    async def script(stream: ByteStream, number: int) -> None:
        await read_request(stream)
        await stream.send_all(OK)
        if number:
            await answer_all(stream, number)
        else:
            await read_request(stream)

    async def body(pool: httpcore.AsyncConnectionPool, network: MemoryNetwork) -> None:
        for _ in range(2):
            assert (await pool.request("GET", URL)).content == b"ok"

    with_stock_pool(body, script)


@pytest.mark.xfail(strict=True, reason="bodies are async generators, finished by the collector")
def test_a_body_that_is_left_early_is_cleaned_up_at_once() -> None:
    async def script(stream: ByteStream, number: int) -> None:
        await read_request(stream)
        await stream.send_all(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\nx\r\n")
        await stream.receive_some()

    async def body(pool: httpcore.AsyncConnectionPool, network: MemoryNetwork) -> None:
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            async with pool.stream("GET", URL) as response:
                async for _ in response.aiter_stream():
                    break
            gc.collect()
        assert not warned

    with_stock_pool(body, script)


@pytest.mark.xfail(strict=True, reason="a body that ends with the connection is taken as complete")
def test_a_body_that_may_have_been_cut_is_an_error() -> None:
    async def script(stream: ByteStream, number: int) -> None:
        await read_request(stream)
        await stream.send_all(b"HTTP/1.1 200 OK\r\n\r\nhalf an ans")

    async def body(pool: httpcore.AsyncConnectionPool, network: MemoryNetwork) -> None:
        with pytest.raises(httpcore.RemoteProtocolError):
            await pool.request("GET", URL)

    with_stock_pool(body, script)
