"""A server on a network in memory, and the blunt clients that the tests need."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from narwhal.net import ASGIApp, ByteStream, MemoryNetwork, Server, ServerOptions

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

HOST, PORT = "router", 8000
GET = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"


def post(body: bytes = b"", *, path: str = "/", length: int | None = None) -> bytes:
    size = len(body) if length is None else length
    return b"POST %b HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%b" % (
        path.encode(),
        size,
        body,
    )


async def read_to_end(stream: ByteStream) -> bytes:
    """All bytes up to the end of file; an error if the connection was reset instead."""
    parts = []
    while data := await stream.receive_some():
        parts.append(data)
    return b"".join(parts)


async def read_until(stream: ByteStream, end: bytes) -> bytes:
    """All bytes up to and including `end`, which must be what comes last."""
    got = b""
    while not got.endswith(end):
        data = await stream.receive_some()
        assert data, got
        got += data
    return got


async def echo(scope: Mapping[str, Any], receive: Any, send: Any) -> None:
    """Answer with the body that was sent."""
    body = await read_body(receive)
    await respond(send, body)


async def read_body(receive: Any) -> bytes:
    parts = []
    while True:
        message = await receive()
        assert message["type"] == "http.request"
        parts.append(message["body"])
        if not message["more_body"]:
            return b"".join(parts)


async def respond(send: Any, body: bytes = b"", *, status: int = 200) -> None:
    await send({"type": "http.response.start", "status": status, "headers": []})
    await send({"type": "http.response.body", "body": body})


async def start(send: Any, **headers: str) -> None:
    pairs = [(name.replace("_", "-").encode(), v.encode()) for name, v in headers.items()]
    await send({"type": "http.response.start", "status": 200, "headers": pairs})


async def part(send: Any, body: bytes) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": True})


class World:
    """One server in virtual time. `connect` opens a client."""

    def __init__(
        self,
        app: ASGIApp,
        options: ServerOptions,
        buffer_bytes: int,
        make: Callable[[ASGIApp], Any] | None,
    ) -> None:
        self.network = MemoryNetwork(buffer_bytes=buffer_bytes)
        self.server = Server(app, options=options) if make is None else make(app)
        self.clients: list[ByteStream] = []
        self.served = trio.Event()

    async def connect(self) -> ByteStream:
        client = await self.network.connect(HOST, PORT)
        self.clients.append(client)
        return client

    async def ask(self, request: bytes) -> bytes:
        """Send `request` on a connection of its own and return all that comes back."""
        client = await self.connect()
        await client.send_all(request)
        answer = await read_to_end(client)
        client.close()
        return answer


def in_world(
    app: ASGIApp,
    body: Callable[[World], Awaitable[None]],
    *,
    options: ServerOptions | None = None,
    buffer_bytes: int = 65536,
    make: Callable[[ASGIApp], Any] | None = None,
) -> None:
    """Run `body` against a server for `app`; afterwards nothing may be left over.

    `make` builds another server than ours from the application.
    """

    failures: list[BaseException] = []

    async def checked(scope: Any, receive: Any, send: Any) -> None:
        try:
            await app(scope, receive, send)
        except* AssertionError as group:  # the server would log it and live on
            failures.append(group)
            raise

    async def main() -> None:
        world = World(checked, options or ServerOptions(), buffer_bytes, make)
        with trio.fail_after(100_000):
            async with trio.open_nursery() as nursery:

                async def serve(task_status: trio.TaskStatus[None]) -> None:
                    listeners = [world.network.listen(HOST, PORT)]
                    await world.server.serve(listeners, task_status=task_status)
                    world.served.set()

                await nursery.start(serve)
                try:
                    await body(world)
                finally:
                    for client in world.clients:
                        client.close()
                await wait_all_tasks_blocked()
                nursery.cancel_scope.cancel(reason="the test is over")
        assert world.server.connections == 0
        assert world.server.requests == 0
        assert world.network.open_streams == 0

    trio.run(main, clock=MockClock(autojump_threshold=0))
    if failures:
        raise failures[0]
