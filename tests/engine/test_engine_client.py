"""One engine's client against a scripted engine, in memory."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

import pytest
import trio
from trio.testing import MockClock

from narwhal.config import EngineSpec
from narwhal.engine import Correlation, EngineClient, EnginePools
from narwhal.model import (
    ConnectFailed,
    EngineClosed,
    EngineProtocolError,
    EngineStatus,
    ResponseTooLarge,
    Role,
    Route,
)
from narwhal.net import ConnectionPool, MemoryNetwork
from narwhal.wire.trace_context import TraceContext

from stub_fleet import Play, Script, StubFleet

CONTEXT = TraceContext("00-" + "a" * 32 + "-" + "b" * 16 + "-01", "vendor=1")
IDS = Correlation("req-1-1-prefill", CONTEXT)


def with_client(script: Script, body: Callable[[EngineClient, StubFleet], Awaitable[None]]) -> None:
    async def main() -> None:
        network = MemoryNetwork()
        fleet = StubFleet(network)
        engine = fleet.add("p0", 9100)
        engine.script = script
        pool = partial(
            ConnectionPool,
            "127.0.0.1",
            9100,
            connect=network.connect,
            limit=4,
            pool_timeout=5.0,
            connect_timeout=5.0,
        )
        spec = EngineSpec(iid="p0", url="http://127.0.0.1:9100", role=Role.PREFILL)
        pools = EnginePools(data=pool(), counting=pool(), control=pool())
        client = EngineClient(spec, pools, api_key="k3y", max_response_bytes=10_000)
        async with trio.open_nursery() as nursery:
            await nursery.start(engine.run)
            await body(client, fleet)
            for each in (pools.data, pools.counting, pools.control):
                assert (each.busy, each.waiting) == (0, 0)
            client.close()
            nursery.cancel_scope.cancel(reason="done")

    trio.run(main, clock=MockClock(autojump_threshold=0))


def ignore(_: object) -> None:
    """What a prefill that is not cancelled does with a late answer."""


def answering(status: int, body: bytes, **headers: object) -> Script:
    async def script(play: Play) -> None:
        await play.status(status, body, **headers)

    return script


def test_every_call_carries_the_engines_key_and_its_own_id() -> None:
    async def body(client: EngineClient, fleet: StubFleet) -> None:
        await client.prefill(Route.CHAT, b"{}", IDS, on_answer=ignore, on_late=ignore)
        await client.health()
        prefill, health = fleet.seen
        assert prefill.path == "/v1/chat/completions"
        assert prefill.headers["x-request-id"] == "req-1-1-prefill"
        assert prefill.headers["traceparent"] == CONTEXT.traceparent
        assert prefill.headers["tracestate"] == "vendor=1"
        assert {seen.headers["authorization"] for seen in (prefill, health)} == {"Bearer k3y"}

    with_client(answering(200, b"{}"), body)


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("7", 7.0),
        ("0", 0.0),
        ("soon", None),
        ("Fri, 31 Dec 1999", None),
        ("1.5", None),
    ],
)
def test_retry_after(header: str, seconds: float | None) -> None:
    async def body(client: EngineClient, fleet: StubFleet) -> None:
        with pytest.raises(EngineStatus) as error:
            await client.prefill(Route.COMPLETIONS, b"{}", IDS, on_answer=ignore, on_late=ignore)
        assert (error.value.engine_status, error.value.retry_after) == (503, seconds)
        assert error.value.body == b"busy"

    with_client(answering(503, b"busy", Retry_After=header), body)


def test_an_endless_error_body_is_not_kept() -> None:
    async def body(client: EngineClient, fleet: StubFleet) -> None:
        with pytest.raises(EngineStatus) as error:
            await client.prefill(Route.COMPLETIONS, b"{}", IDS, on_answer=ignore, on_late=ignore)
        assert error.value.body == b""

    with_client(answering(500, b"x" * 100_000), body)


def test_a_huge_answer_is_a_clean_error() -> None:
    async def body(client: EngineClient, fleet: StubFleet) -> None:
        with pytest.raises(ResponseTooLarge):
            await client.prefill(Route.COMPLETIONS, b"{}", IDS, on_answer=ignore, on_late=ignore)

    with_client(answering(200, b"x" * 100_000), body)


@pytest.mark.parametrize("status", [200, 400, 404, 422])
def test_a_release_is_done_whatever_the_engine_says_of_the_request(status: int) -> None:
    async def body(client: EngineClient, fleet: StubFleet) -> None:
        await client.release(b"{}", IDS)

    with_client(answering(status, b"{}"), body)


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_release_that_the_engine_never_looked_at_is_none(status: int) -> None:
    async def body(client: EngineClient, fleet: StubFleet) -> None:
        with pytest.raises(EngineStatus):
            await client.release(b"{}", IDS)

    with_client(answering(status, b"{}"), body)


def test_an_engine_that_is_not_there() -> None:
    async def body(client: EngineClient, fleet: StubFleet) -> None:
        client.pools.data.port = 1
        with pytest.raises(ConnectFailed):
            await client.prefill(Route.COMPLETIONS, b"{}", IDS, on_answer=ignore, on_late=ignore)

    with_client(answering(200, b"{}"), body)


def test_an_engine_that_hangs_up() -> None:
    async def script(play: Play) -> None:
        play.fin()

    async def body(client: EngineClient, fleet: StubFleet) -> None:
        with pytest.raises(EngineClosed):
            await client.prefill(Route.COMPLETIONS, b"{}", IDS, on_answer=ignore, on_late=ignore)

    with_client(script, body)


def test_counting() -> None:
    async def body(client: EngineClient, fleet: StubFleet) -> None:
        assert await client.tokenize(b'{"model":"m","prompt":"x"}') == 5

    with_client(answering(200, b'{"count":5,"max_model_len":10}'), body)


def test_identity() -> None:
    async def script(play: Play) -> None:
        pages = {
            "/version": b'{"version":"0.32.0"}',
            "/metrics": b"# HELP x\nprocess_start_time_seconds 1.7e9\nother 1\n",
            "/v1/models": b'{"data":[]}',
        }
        await play.status(200, pages[play.seen.path])

    async def body(client: EngineClient, fleet: StubFleet) -> None:
        assert await client.version() == "0.32.0"
        assert (await client.process()).start_s == 1.7e9
        assert await client.models() == b'{"data":[]}'

    with_client(script, body)


def test_identity_that_is_not_told() -> None:
    async def body(client: EngineClient, fleet: StubFleet) -> None:
        with pytest.raises(EngineProtocolError):
            await client.version()
        assert (await client.process()).start_s is None

    with_client(answering(200, b"hello"), body)


@pytest.mark.parametrize(("status", "healthy"), [(200, True), (503, False)])
def test_health(status: int, healthy: bool) -> None:
    async def body(client: EngineClient, fleet: StubFleet) -> None:
        assert await client.health() is healthy

    with_client(answering(status, b""), body)
