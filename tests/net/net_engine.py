"""Scripted servers for the client's tests: each connection does exactly what it is told."""

from __future__ import annotations

from typing import Any

import trio

from narwhal.net import ByteStream, ConnectionPool, MemoryNetwork

ENGINE = ("n1", 8000)
REQUEST = b"POST /v1 HTTP/1.1\r\nhost: n1\r\ncontent-length: 3\r\n\r\nabc"
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"

Script = "Callable[[ByteStream, int], Awaitable[None]]"


async def read_request(stream: ByteStream) -> bytes:
    """One request with a content-length; `b""` if the client left."""
    got = b""
    while b"\r\n\r\n" not in got:
        data = await stream.receive_some()
        if not data:
            return b""
        got += data
    head, _, body = got.partition(b"\r\n\r\n")
    _, _, length = head.lower().partition(b"content-length: ")
    size = int(length.partition(b"\r")[0] or 0)
    while len(body) < size:
        data = await stream.receive_some()
        if not data:
            return b""
        body += data
    return head + b"\r\n\r\n" + body


async def answer_all(stream: ByteStream, number: int, answer: bytes = OK) -> None:
    """Answer every request of a connection alike."""
    while await read_request(stream):
        await stream.send_all(answer)


async def one_second_then_close(stream: ByteStream, number: int) -> None:
    """Take a second for one request, and make the next one connect anew."""
    await read_request(stream)
    await trio.sleep(1)
    await stream.send_all(OK.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n"))


class CancelAt(trio.abc.Instrument):
    """Cancels `scope` when a task is about to take its n-th step; by default the present task."""

    def __init__(self, scope: trio.CancelScope, step: int) -> None:
        self.scope = scope
        self.left = step
        self.watch()
        trio.lowlevel.add_instrument(self)

    def watch(self) -> None:
        """Count the steps of the present task."""
        self.task = trio.lowlevel.current_task()

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        if task is self.task:
            self.left -= 1
            if self.left == 0:
                self.scope.cancel(reason="sweep")


class Engine:
    """Accepts connections and runs a script on each; `scripts[i]` on the i-th, or the last."""

    def __init__(self, network: MemoryNetwork, *scripts: Any) -> None:
        self.scripts = scripts or (answer_all,)
        self.listener = network.listen(*ENGINE)
        self.accepted = 0

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            while True:
                try:
                    stream = await self.listener.accept()
                except trio.ClosedResourceError:
                    return
                script = self.scripts[min(self.accepted, len(self.scripts) - 1)]
                nursery.start_soon(self._serve, stream, script, self.accepted)
                self.accepted += 1

    async def _serve(self, stream: ByteStream, script: Any, number: int) -> None:
        try:
            await script(stream, number)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        finally:
            stream.close()


def make_pool(network: MemoryNetwork, **changes: Any) -> ConnectionPool:
    settings: dict[str, Any] = {
        "connect": network.connect,
        "limit": 2,
        "pool_timeout": 5.0,
        "connect_timeout": 10.0,
    }
    return ConnectionPool(*ENGINE, **(settings | changes))
