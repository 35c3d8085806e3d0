"""The application in other ASGI servers: driven by hand, and by Hypercorn's own Trio worker."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest
import trio
from hypercorn.config import Config
from hypercorn.trio import serve
from trio.testing import wait_all_tasks_blocked

from narwhal import Router, Terminal, open_router
from narwhal.net import MemoryNetwork

from processes import PATIENCE_S
from stub_fleet import Play, Script, StubFleet, good
from worlds import World, fleet_config, play

PROMPT = {"model": "m", "prompt": "hello", "max_tokens": 4}
LONG = PROMPT | {"max_tokens": 50}


async def slow(play_: Play) -> None:
    if play_.leg != "decode":
        await good(play_)
        return
    await play_.hdr()
    await play_.tokens(50, every=0.1)
    await play_.finish(50)


async def breaks_off(play_: Play) -> None:
    if play_.leg != "decode":
        await good(play_)
        return
    await play_.hdr()
    await play_.tokens(2)
    await play_.wait(0.1)
    play_.rst()


class Exchange:
    """One request as a plain ASGI server passes it in, without extensions, and the answer."""

    def __init__(self, body: object, path: str = "/v1/completions") -> None:
        raw = json.dumps(body).encode()
        self.scope = {
            "type": "http",
            "method": "POST",
            "path": path,
            "headers": [(b"content-type", b"application/json")],
        }
        self.sent: list[Any] = []
        self._put, self._take = trio.open_memory_channel[Any](100)
        third = len(raw) // 3
        for part, more in ((raw[:third], True), (raw[third:], True), (b"", False)):
            self._put.send_nowait({"type": "http.request", "body": part, "more_body": more})

    def leave(self) -> None:
        self._put.send_nowait({"type": "http.disconnect"})

    async def run(self, world: World) -> None:
        await world.router.app(self.scope, self._take.receive, self.send)

    async def send(self, message: Any) -> None:
        await trio.lowlevel.checkpoint()
        self.sent.append(message)

    @property
    def status(self) -> int:
        """Of the one response; the messages are in the order that ASGI asks for."""
        kinds = [message["type"] for message in self.sent]
        assert kinds == ["http.response.start"] + ["http.response.body"] * (len(kinds) - 1)
        return int(self.sent[0]["status"])

    @property
    def body(self) -> bytes:
        return b"".join(message["body"] for message in self.sent[1:])

    @property
    def complete(self) -> bool:
        return [message["more_body"] for message in self.sent[1:]][-1:] == [False]


@pytest.mark.parametrize("stream", [True, False])
def test_any_asgi_server_gets_the_same_answer(stream: bool) -> None:
    async def body(world: World) -> None:
        ask = PROMPT | {"stream": stream}
        exchange = Exchange(ask)
        await exchange.run(world)
        assert (exchange.status, exchange.complete) == (200, True)
        assert exchange.body == (await world.post(ask)).body
        assert world.rows[0].terminal is Terminal.COMPLETED

    play(body)


def test_without_extensions_a_client_that_leaves_is_heard_as_soon() -> None:
    async def body(world: World) -> None:
        world.script(slow)
        exchange = Exchange(LONG | {"stream": True})
        async with trio.open_nursery() as nursery:
            nursery.start_soon(exchange.run, world)
            await trio.sleep(1.05)
            exchange.leave()
        assert trio.current_time() == pytest.approx(1.05)
        assert world.row.code == "client_closed"
        assert not exchange.complete
        await trio.sleep(0.01)
        assert world.engine("d0").aborted["decode"] == 1

    play(body)


def test_without_extensions_a_failed_stream_is_left_unfinished() -> None:
    async def body(world: World) -> None:
        world.script(breaks_off)
        exchange = Exchange(PROMPT | {"stream": True})
        await exchange.run(world)
        assert exchange.status == 200
        assert b'"code":"engine_closed"' in exchange.body
        assert b"[DONE]" not in exchange.body
        assert not exchange.complete, "a server cuts what has no end"

    play(body)


def test_a_body_in_pieces_is_bounded_without_extensions() -> None:
    async def body(world: World) -> None:
        exchange = Exchange(PROMPT | {"prompt": "x" * 2000})
        await exchange.run(world)
        assert (exchange.status, exchange.complete) == (413, True)

    play(body, fleet_config(max_request_bytes=1000))


def test_a_server_that_raises_on_a_lost_client_is_understood() -> None:
    async def body(world: World) -> None:
        world.script(slow)
        exchange = Exchange(LONG | {"stream": True})

        async def send(message: Any) -> None:
            if len(exchange.sent) == 5:
                raise OSError("client gone")  # as ASGI 2.4 allows
            await exchange.send(message)

        await world.router.app(exchange.scope, exchange._take.receive, send)
        assert world.row.code == "client_closed"
        await trio.sleep(0.01)
        assert world.engine("d0").aborted["decode"] == 1

    play(body)


@pytest.mark.parametrize("stream", [True, False])
def test_the_disconnect_after_an_answer_is_no_news(stream: bool) -> None:
    async def body(world: World) -> None:
        exchange = Exchange(PROMPT | {"stream": stream})

        async def send(message: Any) -> None:
            await exchange.send(message)
            if message.get("more_body") is False:
                exchange.leave()
                await trio.sleep(0.1)  # what a server still has to do for its connection

        await world.router.app(exchange.scope, exchange._take.receive, send)
        assert exchange.complete
        assert world.row.terminal is Terminal.COMPLETED

    play(body)


def test_a_deadline_in_the_middle_of_a_whole_answer_only_cuts_it() -> None:
    async def body(world: World) -> None:
        exchange = Exchange(PROMPT)

        async def send(message: Any) -> None:
            await exchange.send(message)
            if message.get("more_body") is False:
                await trio.sleep_forever()

        await world.router.app(exchange.scope, exchange._take.receive, send)
        assert world.row.terminal is Terminal.EXPIRED
        assert exchange.status == 200

    play(body)


def test_lifespan_is_answered_and_other_protocols_refused() -> None:
    async def body(world: World) -> None:
        events = iter(["lifespan.startup", "lifespan.shutdown"])
        sent: list[Any] = []

        async def receive() -> Any:
            return {"type": next(events)}

        async def send(message: Any) -> None:
            sent.append(message["type"])

        await world.router.app({"type": "lifespan"}, receive, send)
        assert sent == ["lifespan.startup.complete", "lifespan.shutdown.complete"]
        with pytest.raises(ValueError, match="only HTTP"):
            await world.router.app({"type": "websocket", "path": "/"}, receive, send)

    play(body)


# Hypercorn's own Trio worker, as it is


Use = Callable[[Router, StubFleet, int], Awaitable[None]]


def with_hypercorn(use: Use, *, script: Script = good) -> None:
    """Serve a router with the stock server on a real port, its stub engines in memory."""

    async def main() -> None:
        config, network = fleet_config(), MemoryNetwork()
        stubs = StubFleet(network)
        settings = Config()
        settings.bind = ["127.0.0.1:0"]
        settings.errorlog = None
        settings.shutdown_timeout = settings.graceful_timeout = 1.0
        async with trio.open_nursery() as nursery:
            for spec in config.engines:
                stub = stubs.add(spec.iid, spec.port)
                stub.script = script
                await nursery.start(stub.run)
            async with open_router(config, environ={}, connect=network.connect) as router:
                served = partial(serve, router.app, settings, mode="asgi")
                binds = await nursery.start(partial(served, shutdown_trigger=trio.sleep_forever))
                with trio.fail_after(PATIENCE_S):
                    await use(router, stubs, int(binds[0].rpartition(":")[2]))
                nursery.cancel_scope.cancel(reason="the test is over")

    trio.run(main)


async def request(port: int, ask: dict[str, Any]) -> trio.SocketStream:
    stream = await trio.open_tcp_stream("127.0.0.1", port)
    raw = json.dumps(ask).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(raw)
    await stream.send_all(head + raw)
    return stream


async def until(stream: trio.SocketStream, end: bytes) -> bytes:
    data = b""
    while not data.endswith(end):
        part = await stream.receive_some()
        assert part, data
        data += part
    return data


@pytest.mark.sockets
def test_hypercorn_delivers_streams() -> None:
    async def use(router: Router, stubs: StubFleet, port: int) -> None:
        async with await request(port, PROMPT | {"stream": True}) as stream:
            data = await until(stream, b"0\r\n\r\n")
        assert data.startswith(b"HTTP/1.1 200")
        assert b" t3" in data
        assert b"data: [DONE]\n\n" in data

    with_hypercorn(use)


@pytest.mark.sockets
def test_hypercorn_cuts_a_failed_stream() -> None:
    async def use(router: Router, stubs: StubFleet, port: int) -> None:
        async with await request(port, PROMPT | {"stream": True}) as stream:
            data = b"".join([part async for part in stream])
        assert b'"code":"engine_closed"' in data
        assert not data.endswith(b"0\r\n\r\n")
        assert router.telemetry.totals().terminals[Terminal.FAILED] == 1

    with_hypercorn(use, script=breaks_off)


@pytest.mark.sockets
def test_hypercorn_tells_of_a_client_that_leaves() -> None:
    async def use(router: Router, stubs: StubFleet, port: int) -> None:
        async with await request(port, LONG | {"stream": True}) as stream:
            await until(stream, b"\n\n\r\n")
        await router.core.lives.wait_empty()
        await wait_all_tasks_blocked(0.01)
        assert stubs.engines["d0"].aborted["decode"] == 1
        assert router.telemetry.totals().terminals[Terminal.CANCELLED] == 1

    with_hypercorn(use, script=slow)


@pytest.mark.sockets
def test_hypercorn_s_news_after_an_answer_are_no_cancel() -> None:
    async def use(router: Router, stubs: StubFleet, port: int) -> None:
        async with await request(port, PROMPT | {"stream": True}) as stream:
            await until(stream, b"0\r\n\r\n")
            await router.core.lives.wait_empty()
        assert router.telemetry.totals().terminals[Terminal.COMPLETED] == 1

    with_hypercorn(use)
