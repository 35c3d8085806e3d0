"""The application on a plain ASGI server: one without extensions, faked in a few lines."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import attrs
import pytest
import trio
from emulator_kit import COMPLETIONS, completion, settings
from trio.testing import MockClock

from narwhal.emulator import EmulatedFleet, Leg

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


@attrs.define
class PlainServer:
    """Runs one request and collects what the application sends."""

    fleet: EmulatedFleet
    sent: list[dict[str, Any]] = attrs.field(factory=list)
    gone: trio.Event = attrs.field(factory=trio.Event)

    async def request(
        self, method: str, path: str, body: bytes = b"", **headers: str
    ) -> list[dict[str, Any]]:
        messages: list[dict[str, Any]] = [
            {"type": "http.request", "body": body[:5], "more_body": True},
            {"type": "http.request", "body": body[5:]},
        ]

        async def receive() -> dict[str, Any]:
            await trio.lowlevel.checkpoint()
            if messages:
                return messages.pop(0)
            await self.gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            await trio.lowlevel.checkpoint()
            self.sent.append(message)

        pairs = [(k.replace("_", "-").encode(), v.encode()) for k, v in headers.items()]
        scope = {"type": "http", "method": method, "path": path, "headers": pairs, "client": None}
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.fleet.engines[0].run)
            await self.fleet.apps[0](scope, receive, send)
            nursery.cancel_scope.cancel(reason="answered")
        return self.sent

    @property
    def body(self) -> bytes:
        return b"".join(m["body"] for m in self.sent if m["type"] == "http.response.body")


def run_plain(test: Callable[[PlainServer], Awaitable[None]]) -> None:
    async def main() -> None:
        await test(PlainServer(EmulatedFleet([settings()])))

    trio.run(main, clock=MockClock(autojump_threshold=0))


def post(**body: Any) -> bytes:
    return json.dumps(completion(**body)).encode()


def test_an_answer() -> None:
    async def test(server: PlainServer) -> None:
        start, *body = await server.request(
            "POST", COMPLETIONS, post(), content_type="application/json"
        )
        assert start["status"] == 200
        assert all(isinstance(name, bytes) for name, _ in start["headers"])
        assert body[-1]["more_body"] is False
        assert json.loads(server.body)["usage"]["completion_tokens"] == 4

    run_plain(test)


def test_a_stream() -> None:
    async def test(server: PlainServer) -> None:
        await server.request(
            "POST", COMPLETIONS, post(stream=True), content_type="application/json"
        )
        assert server.body.endswith(b"data: [DONE]\n\n")
        *more, last = [message["more_body"] for message in server.sent[1:]]
        assert all(more)
        assert last is False

    run_plain(test)


def test_an_abort_returns_early_so_that_the_server_cuts_the_answer() -> None:
    async def test(server: PlainServer) -> None:
        sent = await server.request(
            "POST",
            COMPLETIONS,
            post(stream=True),
            content_type="application/json",
            x_emulator_fault="tokens(2);rst",
        )
        assert sent[-1]["more_body"] is True
        assert server.body.count(b"data: ") == 2
        assert server.fleet.engines[0].stats.count("failed", Leg.WHOLE) == 1

    run_plain(test)


def test_a_disconnect_ends_the_request() -> None:
    async def test(server: PlainServer) -> None:
        async with trio.open_nursery() as nursery:

            async def leave() -> None:
                await trio.sleep(1)
                server.gone.set()

            nursery.start_soon(leave)
            await server.request(
                "POST", COMPLETIONS, post(max_tokens=9999), content_type="application/json"
            )
        engine = server.fleet.engines[0]
        assert engine.stats.count("aborted", Leg.WHOLE) == 1
        assert engine.idle
        assert server.sent == []

    run_plain(test)


def test_a_body_without_bounds_is_refused_and_not_kept() -> None:
    async def test(server: PlainServer) -> None:
        body = b" " * (65 * 1024 * 1024)
        (start, _) = await server.request("POST", COMPLETIONS, body)
        assert start["status"] == 413

    run_plain(test)


def test_nothing_but_http() -> None:
    async def test(server: PlainServer) -> None:
        async def unused(*_args: object) -> Any:
            raise AssertionError

        with pytest.raises(RuntimeError, match="lifespan"):
            await server.fleet.apps[0]({"type": "lifespan"}, unused, unused)

    run_plain(test)
