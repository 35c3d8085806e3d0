"""The request's side of one HTTP exchange: its body, and the news that its client left."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from narwhal.model import BodyTooLarge

if TYPE_CHECKING:
    from collections.abc import Callable

    from narwhal.app.types import Receive


class Inbox:
    """The only reader of `receive()`.

    It never stops reading, so a disconnect is seen at any moment of the request, also when
    nothing else is being waited for, and a server that queues body messages is never left with
    a full queue. It holds at most `limit` bytes; what a client sends beyond them is discarded.
    """

    def __init__(self, receive: Receive, *, limit: int, on_gone: Callable[[], None]) -> None:
        self._receive = receive
        self._limit = limit
        self._on_gone = on_gone
        self._parts: list[bytes] = []
        self._size = 0
        self._ready = trio.Event()

    async def run(self) -> None:
        """Read until the client is gone; then say so and return."""
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                self._on_gone()
                return
            self._take(message.get("body", b""), more=message.get("more_body", False))

    def _take(self, part: bytes, *, more: bool) -> None:
        if self._ready.is_set():
            return
        self._size += len(part)
        if self._size > self._limit:
            self._parts.clear()
            self._ready.set()
            return
        self._parts.append(part)
        if not more:
            self._ready.set()

    async def body(self) -> bytes:
        """The whole body, or `BodyTooLarge` as soon as it is over the limit."""
        await self._ready.wait()
        if self._size > self._limit:
            raise BodyTooLarge(
                f"The request body is larger than {self._limit} bytes (serving.max_request_bytes)."
            )
        return b"".join(self._parts)
