"""httpx on the pool."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any

import httpx
import pytest
import trio
from net_engine import OK, Engine, answer_all, make_pool, read_request
from trio.testing import MockClock

from narwhal.model import ConnectFailed
from narwhal.net import ByteStream, MemoryNetwork, PooledTransport

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

URL = "http://n1:8000"


def with_client(
    body: Callable[[httpx.AsyncClient, PooledTransport, Engine], Awaitable[None]],
    *scripts: Any,
) -> None:
    async def main() -> None:
        network = MemoryNetwork()
        engine = Engine(network, *scripts)
        transport = PooledTransport(make_pool(network))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(engine.run)
            async with httpx.AsyncClient(transport=transport, base_url=URL) as client:
                await body(client, transport, engine)
                assert transport._pool.busy == 0
            nursery.cancel_scope.cancel(reason="the test is over")
        engine.listener.close()
        assert network.open_streams == 0

    trio.run(main, clock=MockClock(autojump_threshold=0))


def test_requests_arrive_as_httpx_means_them() -> None:
    seen: list[bytes] = []

    async def script(stream: ByteStream, number: int) -> None:
        while request := await read_request(stream):
            seen.append(request)
            await stream.send_all(OK)

    async def parts() -> Any:
        yield b"ab"
        yield b"c"

    async def body(client: httpx.AsyncClient, transport: PooledTransport, engine: Engine) -> None:
        assert (await client.get("/health", params={"a": "b c"})).text == "ok"
        assert (await client.post("/v1", json={"x": 1})).status_code == 200
        assert (await client.post("/v1", content=parts())).headers["content-length"] == "2"
        assert (await client.post("/v1")).content == b"ok"
        lines = [request.split(b"\r\n")[0] for request in seen]
        assert lines == [b"GET /health?a=b+c HTTP/1.1"] + [b"POST /v1 HTTP/1.1"] * 3
        assert b"content-length" not in seen[0]
        assert seen[1].endswith(b'content-length: 7\r\n\r\n{"x":1}')
        assert seen[2].endswith(b"content-length: 3\r\n\r\nabc")
        assert b"transfer-encoding" not in seen[2].lower()
        assert b"content-length: 0" in seen[3]
        assert engine.accepted == 1

    with_client(body, script)


def test_streams_that_are_left_early_close_at_once() -> None:
    async def script(stream: ByteStream, number: int) -> None:
        await read_request(stream)
        await stream.send_all(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        while True:
            await stream.send_all(b"1\r\nx\r\n")
            await trio.sleep(1)

    async def body(client: httpx.AsyncClient, transport: PooledTransport, engine: Engine) -> None:
        for how in ("leave", "cancel"):
            response = await transport.handle_async_request(httpx.Request("GET", URL))
            assert isinstance(response.stream, httpx.AsyncByteStream)
            with trio.move_on_after(2.5) as scope:
                async for part in response.stream:
                    assert part == b"x"
                    if how == "leave":
                        break
            assert scope.cancelled_caught is (how == "cancel")
            await response.aclose()
            assert transport._pool.busy == 0
        gc.collect()  # a generator left suspended would warn here, and warnings are errors

    with_client(body, script)


def test_cancelling_before_the_head_closes_the_connection() -> None:
    async def hang(stream: ByteStream, number: int) -> None:
        await read_request(stream)
        await stream.receive_some()

    async def body(client: httpx.AsyncClient, transport: PooledTransport, engine: Engine) -> None:
        with trio.move_on_after(1) as scope:
            await client.get("/")
        assert scope.cancelled_caught

    with_client(body, hang)


@pytest.mark.parametrize(
    ("method", "extensions", "replayed"),
    [("GET", {}, True), ("POST", {}, False), ("POST", {"narwhal.replayable": True}, True)],
)
def test_what_may_be_sent_twice(method: str, extensions: dict[str, Any], replayed: bool) -> None:
    async def script(stream: ByteStream, number: int) -> None:
        await read_request(stream)
        await stream.send_all(OK)
        await read_request(stream)
        if number:
            await stream.send_all(OK)
            await answer_all(stream, number)

    async def body(client: httpx.AsyncClient, transport: PooledTransport, engine: Engine) -> None:
        await client.get("/")
        if replayed:
            assert (await client.request(method, "/", extensions=extensions)).text == "ok"
        else:
            with pytest.raises(Exception, match="without an answer"):
                await client.request(method, "/", extensions=extensions)
        assert transport._pool.replays == replayed

    with_client(body, script)


def test_errors_are_the_pools() -> None:
    async def body(client: httpx.AsyncClient, transport: PooledTransport, engine: Engine) -> None:
        engine.listener.close()
        with pytest.raises(ConnectFailed):
            await client.get("/")

    with_client(body)
