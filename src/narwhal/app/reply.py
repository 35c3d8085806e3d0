"""Answers over ASGI."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from narwhal.app.types import Headers, Scope, Send
    from narwhal.model import Outcome

    Respond = Callable[[int, Headers, bytes], Awaitable[None]]
JSON = (b"content-type", b"application/json")
_STREAM_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    # nginx buffers proxied answers unless told otherwise, and would hold tokens back.
    (b"x-accel-buffering", b"no"),
]


class AsgiReply:
    """The `Reply` of one HTTP exchange.

    On the project's own server it uses extensions of the ASGI scope: `narwhal.respond`,
    `narwhal.write_nowait` and `narwhal.flush` send without the message machinery,
    `narwhal.abort` closes the connection at once. On any other server it does without: a
    response that must not end well is left unfinished, which ASGI servers answer by cutting it.
    """

    def __init__(
        self, scope: Scope, send: Send, *, headers: Headers, on_gone: Callable[[], None]
    ) -> None:
        extensions = scope.get("extensions") or {}
        self._send = send
        self._respond: Respond | None = extensions.get("narwhal.respond")
        self._write_nowait: Callable[[bytes], bool] | None = extensions.get("narwhal.write_nowait")
        self._flush: Callable[[], Awaitable[None]] | None = extensions.get("narwhal.flush")
        self._abort: Callable[[], None] | None = extensions.get("narwhal.abort")
        self._headers = headers
        self._on_gone = on_gone
        self.ended = False
        """Whether the end of the response has been handed to the server."""
        self._pending = b""
        self.committed = False

    async def commit(self) -> None:
        """Send the status 200 and the headers of a stream; once."""
        if not self.committed:
            self.committed = True
            await self._start(200, [*_STREAM_HEADERS, *self._headers])
            await self._body(b"", more=True)

    async def write(self, data: bytes) -> None:
        """Send events."""
        if not self.committed:
            self.committed = True
            await self._start(200, [*_STREAM_HEADERS, *self._headers])
        await self._body(data, more=True)

    def write_nowait(self, data: bytes) -> bool:
        """Send events if the server has a way to do it at once."""
        if self._write_nowait is not None and self._flush is not None:
            return self._write_nowait(data)
        self._pending = data
        return False

    async def flush(self) -> None:
        """Send what `write_nowait` could not."""
        if self._write_nowait is not None and self._flush is not None:
            await self._flush()
        else:
            await self._body(self._pending, more=True)

    async def complete(self, data: bytes, *, stream: bool) -> None:
        """Send the rest of a stream, or a whole answer, and finish the response."""
        self.ended = True
        begun, self.committed = self.committed, True
        if begun:
            await self._body(data, more=False)
        elif stream:
            await self._start(200, [*_STREAM_HEADERS, *self._headers])
            await self._body(data, more=False)
        else:
            await self._whole(200, [JSON, *self._headers], data)

    async def fail(self, outcome: Outcome, error: bytes) -> None:
        """Send the error: as a response if none was begun, else as an event and then a cut."""
        if self.ended:
            return  # cut in the middle of its end: the connection is closed already
        if self.committed:
            await self.write(error)
            self.abort()
            return
        self.ended = True
        await self._whole(outcome.status, [*error_headers(outcome), *self._headers], error)

    def abort(self) -> None:
        """Close the connection, unless the response was finished."""
        if not self.ended and self._abort is not None:
            self._abort()

    async def _whole(self, status: int, headers: Headers, body: bytes) -> None:
        if self._respond is not None:
            await self._respond(status, headers, body)
            return
        await self._start(status, [*headers, (b"content-length", b"%d" % len(body))])
        await self._body(body, more=False)

    async def _start(self, status: int, headers: Headers) -> None:
        await self._message({"type": "http.response.start", "status": status, "headers": headers})

    async def _body(self, data: bytes, *, more: bool) -> None:
        await self._message({"type": "http.response.body", "body": data, "more_body": more})

    async def _message(self, message: dict[str, object]) -> None:
        try:
            await self._send(message)
        except OSError:
            # ASGI 2.4: a server may say so when the client is gone.
            self._on_gone()


def error_headers(outcome: Outcome) -> Headers:
    """The headers of an error response."""
    headers = [JSON]
    if outcome.retry_after is not None:
        headers.append((b"retry-after", b"%d" % outcome.retry_after))
    elif outcome.status == 429:  # noqa: PLR2004 - client libraries retry every 429 unless told
        headers.append((b"x-should-retry", b"false"))
    if outcome.code in ("draining", "shutdown"):
        headers.append((b"connection", b"close"))
    return headers
