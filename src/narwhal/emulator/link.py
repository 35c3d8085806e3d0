"""The answering side of one HTTP exchange, for answers that have to go wrong on purpose."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import TYPE_CHECKING, Any

import trio

from narwhal.emulator.faults import Bytewise, Drip, OneWrite, Split

if TYPE_CHECKING:
    from collections.abc import Mapping

    from narwhal.emulator.faults import Fault
    from narwhal.emulator.stats import Record

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

MAX_BODY_BYTES = 64 * 1024 * 1024
"""A request body that is larger is not kept; no test needs one."""

_DRIPS_PER_SECOND = 20


class Inbox:
    """The one reader of `receive()`: the body first, then the client's leaving.

    Something has to read at all times. A server may wait for a body to be taken before it
    looks for the client's leaving.
    """

    def __init__(self, receive: Receive) -> None:
        self.unread_s = 0.0
        """Seconds to wait before the first byte is read; to be set before `pump` starts."""
        self._receive = receive
        self._parts: list[bytes] = []
        self._size = 0
        self._complete = trio.Event()

    async def pump(self, scope: trio.CancelScope) -> None:
        """Read until the client leaves, and cancel `scope` then."""
        if self.unread_s:
            await trio.sleep(self.unread_s)
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                scope.cancel(reason="the client left")
                return
            part = message.get("body", b"")
            self._size += len(part)
            if self._size <= MAX_BODY_BYTES:
                self._parts.append(part)
            if not message.get("more_body", False):
                self._complete.set()

    async def body(self) -> bytes | None:
        """Wait for the whole body; None if it is too large."""
        await self._complete.wait()
        return b"".join(self._parts) if self._size <= MAX_BODY_BYTES else None


class Link:
    """Writes one response. Uses the server's extensions if it has them, else plain ASGI.

    Every write is cancellable and blocks while the client does not read.
    """

    def __init__(self, scope: Scope, send: Send) -> None:
        extensions = scope.get("extensions") or {}
        self.started = False
        self.over = False
        """The message is complete or the connection gone: nothing can be sent any more."""
        self.record: Record | None = None
        """Where what is sent is written down, if anywhere."""
        self._send = send
        self._fast: Callable[[bytes], Awaitable[None]] | None = extensions.get("narwhal.write")
        self._abort: Callable[..., None] | None = extensions.get("narwhal.abort")

    async def start(self, status: int, headers: Mapping[str, str]) -> None:
        """Send status and headers, at the latest with the first write."""
        self.started = True
        if self.record is not None:
            self.record.answer(status)
        await self._send(
            {
                "type": "http.response.start",
                "status": status,
                "headers": [(k.lower().encode(), v.encode()) for k, v in headers.items()],
            }
        )

    async def write(self, data: bytes) -> None:
        """Send a part of the body; an empty one sends what is due of the head."""
        if self.record is not None:
            self.record.write(data)
        if self._fast is not None:
            await self._fast(data)
        else:
            await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def end(self, data: bytes = b"") -> None:
        """Send the last part of the body."""
        self.over = True
        if self.record is not None:
            self.record.write(data)
        await self._send({"type": "http.response.body", "body": data, "more_body": False})

    def abort(self, *, reset: bool = False) -> None:
        """Close the connection, or leave that to the server: it cuts what is not complete."""
        self.over = True
        if self._abort is not None:
            self._abort(reset=reset)


class Pen:
    """How the bytes of a body are cut into writes. This one cuts nothing."""

    def __init__(self, link: Link) -> None:
        self._link = link

    async def write(self, data: bytes) -> None:
        """Write `data`, or keep it for `finish`."""
        await self._link.write(data)

    async def finish(self) -> None:
        """Write what was kept; nothing more is written after it."""


class _DripPen(Pen):
    """So many bytes a second."""

    def __init__(self, link: Link, drip: Drip) -> None:
        super().__init__(link)
        self._rate = max(drip.bytes_per_second, 1e-3)
        self._size = max(1, int(self._rate / _DRIPS_PER_SECOND))

    async def write(self, data: bytes) -> None:
        for start in range(0, len(data), self._size):
            part = data[start : start + self._size]
            await self._link.write(part)
            await trio.sleep(len(part) / self._rate)


class _BytewisePen(Pen):
    """One byte per write."""

    def __init__(self, link: Link, bytewise: Bytewise) -> None:
        super().__init__(link)
        self._gap = bytewise.gap

    async def write(self, data: bytes) -> None:
        for place in range(len(data)):
            await self._link.write(data[place : place + 1])
            await trio.sleep(self._gap)


class _HoldingPen(Pen):
    """Everything at the end, in one write or two."""

    def __init__(self, link: Link, split: Split | None) -> None:
        super().__init__(link)
        self._split = split
        self._parts: list[bytes] = []

    async def write(self, data: bytes) -> None:
        self._parts.append(data)

    async def finish(self) -> None:
        data = b"".join(self._parts)
        self._parts.clear()
        at = 0
        if self._split is not None and 0 < self._split.at < len(data):
            at = self._split.at
            await self._link.write(data[:at])
            await trio.sleep(self._split.gap)
        if data:
            await self._link.write(data[at:])


def pen_for(link: Link, fault: Fault | None) -> Pen:
    """The pen that a fault asks for."""
    if fault is not None:
        for action in fault.actions:
            if isinstance(action, Drip):
                return _DripPen(link, action)
            if isinstance(action, Bytewise):
                return _BytewisePen(link, action)
            if isinstance(action, Split):
                return _HoldingPen(link, action)
            if isinstance(action, OneWrite):
                return _HoldingPen(link, None)
    return Pen(link)
