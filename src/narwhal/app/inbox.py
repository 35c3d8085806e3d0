"""The request's side of one HTTP exchange: its body, and the news that its client left."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from narwhal.model import BodyTooLarge

if TYPE_CHECKING:
    from collections.abc import Callable

    from narwhal.app.types import Receive


class Inbox:
    """The only reader of `receive()`. It holds at most `limit` bytes of the body.

    There are two ways to use it. `read_body` reads what there is to read, for a server that
    tells of a disconnect in another way. For one that does not, a task runs `watch` for the
    length of the request, and `wait_body` waits for what that finds: the news that the client
    left then comes at any moment, and nothing that the server queues can fill its queue.
    """

    def __init__(self, receive: Receive, *, limit: int, on_gone: Callable[[], None]) -> None:
        self._receive = receive
        self._limit = limit
        self._on_gone = on_gone
        self._parts: list[bytes] = []
        self._size = 0
        self._ended = False
        self._filled: trio.Event | None = None

    async def read_body(self) -> bytes:
        """Read the whole body; `BodyTooLarge` as soon as it is over the limit.

        If the client leaves in the middle, it says so and waits to be cancelled.
        """
        while not self._ended:
            if not await self._read():
                await trio.sleep_forever()
        return self._take()

    async def watch(self) -> None:
        """Read until the client is gone, and say so; what is not wanted is discarded."""
        while await self._read():
            pass

    async def wait_body(self) -> bytes:
        """As `read_body`, while another task runs `watch`."""
        if not self._ended:
            self._filled = trio.Event()
            await self._filled.wait()
        return self._take()

    async def _read(self) -> bool:
        message = await self._receive()
        if message["type"] == "http.disconnect":
            self._on_gone()
            return False
        if not self._ended:
            self._parts.append(message.get("body", b""))
            self._size += len(self._parts[-1])
            self._ended = self._size > self._limit or not message.get("more_body", False)
            if self._ended and self._filled is not None:
                self._filled.set()
        return True

    def _take(self) -> bytes:
        parts, self._parts = self._parts, []
        if self._size > self._limit:
            raise BodyTooLarge(
                f"The request body is larger than {self._limit} bytes (serving.max_request_bytes)."
            )
        return parts[0] if len(parts) == 1 else b"".join(parts)
