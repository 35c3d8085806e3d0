"""One request: its body on the way in, its response on the way out, and the task that runs it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import unquote

import trio
from hypercorn.protocol.http_stream import ASGIHTTPState, HTTPStream
from hypercorn.utils import UnexpectedMessageError, build_and_validate_headers, suppress_body

from narwhal.net.server.heads import (
    asks_to_close,
    error_body,
    error_headers,
    response_head,
)

if TYPE_CHECKING:
    from collections.abc import Callable, MutableMapping

    import h11
    from hypercorn.typing import HTTPScope

    from narwhal.net.server.options import Message
    from narwhal.net.server.plain import PlainRequest
    from narwhal.net.server.protocol import Http1

logger = logging.getLogger("narwhal.net.server")

STREAM_ID = 1
"""HTTP/1.1 has one stream at a time; the number is Hypercorn's."""

FIRST_FINAL_STATUS = 200
LAST_STATUS = 999
BODILESS_STATUSES = frozenset({204, 304})


class RequestStream(HTTPStream):
    """One request and its response, as the application sees them.

    Differs from Hypercorn's `HTTPStream` in that

    - the body waits in a list, not in a channel of ten messages, so telling the application
      that the client left never has to wait for room;
    - nothing is written on `http.response.start`. The head goes out with the first body message,
      in one send; an application that wants it on the wire earlier sends an empty one;
    - chunks are framed here, since h11 takes 2 us for what one formatting operation does.
    """

    def __init__(self, protocol: Http1, request: h11.Request | PlainRequest) -> None:
        super().__init__(
            protocol.app,
            protocol.config,
            protocol.context,
            protocol.task_group,
            protocol.ssl,
            protocol.client,
            protocol.server,
            protocol.stream_send,
            STREAM_ID,
        )
        self._protocol = protocol
        self._wire = protocol.wire
        self._method = request.method.decode("ascii").upper()
        self._http_10 = request.http_version == b"1.0"
        self._last = asks_to_close(request)  # the connection ends with this response
        self._extensions: dict[str, Any] = {
            "narwhal.respond": self.respond,
            "narwhal.write": self.write,
            "narwhal.write_nowait": self.write_nowait,
            "narwhal.on_gone": self.on_gone,
            "narwhal.flush": self.flush,
            "narwhal.abort": self._wire.abort,
        }
        scope = self._make_scope(request)
        self.scope = cast("HTTPScope", scope)
        self._asgi_scope = scope
        # The body, on its way to the application.
        self.buffered = 0
        self._chunks: list[bytes] = []
        self._complete = False
        self._end_reported = False
        self._wake: trio.Event | None = None
        self._gone: Callable[[], None] | None = None
        # The response, on its way to the client.
        self._status = 0
        self._headers: list[tuple[bytes, bytes]] = []
        self._head_due = False
        self._bodiless = False
        self._length_left: int | None = None  # of a body whose length was announced
        self._chunked = False  # chunk framing, and the head is out: the fast path
        self._rest = b""  # taken by `write_nowait` and not sent yet

    def _make_scope(self, request: h11.Request | PlainRequest) -> MutableMapping[str, Any]:
        path, _, query = request.target.partition(b"?")
        return {
            "type": "http",
            "asgi": {"spec_version": "2.3", "version": "3.0"},
            "http_version": request.http_version.decode(),
            "method": self._method,
            "scheme": self.scheme,
            "path": unquote(path.decode("ascii")),
            "raw_path": path,
            "query_string": query,
            "root_path": "",
            "headers": list(request.headers),
            "client": self.client,
            "server": self.server,
            "state": {},
            "extensions": self._extensions,
        }

    # The task

    async def run(self) -> None:
        """Run the application on this request. Only a cancel gets out of it."""
        try:
            try:
                await self._wire.server.app(self._asgi_scope, self.receive, self.app_send)
            except* Exception:
                logger.exception("The application failed on %s %s", self._method, self._path())
            await self._conclude()
        finally:
            if self.state is not ASGIHTTPState.CLOSED and not self.closed:
                self._wire.abort()
            self._wire.server.request_ended()
            # The extensions lead back here: without them the request's memory is free at once.
            self._extensions.clear()
            self._gone = None

    async def _conclude(self) -> None:
        """Answer for an application that did not, or leave its answer visibly cut."""
        if self.closed or self.state is not ASGIHTTPState.REQUEST:
            return
        body = error_body(500, "The server failed to answer this request.")
        self._status, self._headers = 500, error_headers(body)
        self._head_due = True
        self.state = ASGIHTTPState.RESPONSE
        await self._finish(body)

    def _path(self) -> str:
        """For the log: with its escapes, or else a client could end the line and write another."""
        return self.scope["raw_path"].decode("ascii")

    @property
    def response_started(self) -> bool:
        """Whether the application has begun to answer."""
        return self.state is not ASGIHTTPState.REQUEST

    # The request's body

    def feed(self, data: bytes) -> None:
        """Queue a part of the body for the application."""
        self._chunks.append(data)
        self.buffered += len(data)
        self._notify()

    def feed_end(self) -> None:
        """Note that the body is complete."""
        self._complete = True
        self._notify()

    def lose(self) -> None:
        """The client is gone, or its request was over: sends do nothing from here on."""
        self.closed = True
        self._chunked = False
        self._notify()
        if self._gone is not None:
            self._gone()

    def refuse(self, status: int) -> None:
        """The server answers `status` itself, since the rest of the body cannot be read.

        The application loses its client, and finds the status in the extension `narwhal.refused`.
        """
        self._extensions["narwhal.refused"] = status
        self.lose()

    def on_gone(self, callback: Callable[[], None]) -> None:
        """Have `callback` called, synchronously and once, when the client is gone.

        Offered to applications as `narwhal.on_gone`: unlike a task that waits in `receive`, it
        costs nothing. Called at once if the client has left already.
        """
        if self.closed:
            callback()
        else:
            self._gone = callback

    def _notify(self) -> None:
        if self._wake is not None:
            self._wake.set()
            self._wake = None

    async def receive(self) -> Message:
        """Return what there is of the body, or else wait for more of it or for the client to go.

        A checkpoint only when it waits: a disconnect is also seen from a cancelled scope.
        """
        while True:
            if self._chunks or (self._complete and not self._end_reported):
                return self._take()
            if self.closed or self.state is ASGIHTTPState.CLOSED:
                return {"type": "http.disconnect"}
            if self.state is ASGIHTTPState.REQUEST and self._protocol.continue_due():
                await self._wire.write(self._protocol.continue_bytes())
                continue
            if self._wake is None:
                self._wake = trio.Event()
            await self._wake.wait()

    def _take(self) -> Message:
        body = b"".join(self._chunks)
        self._chunks.clear()
        self.buffered = 0
        self._end_reported = self._complete
        self._wire.resume_reading()
        return {"type": "http.request", "body": body, "more_body": not self._complete}

    # The response

    async def app_send(self, message: Any) -> None:
        """Take one ASGI message of the response; after the client left, do nothing.

        Blocks while the client does not read. Cancelling it then closes the connection.
        """
        kind = message["type"]
        if self.state is ASGIHTTPState.CLOSED:
            raise UnexpectedMessageError(self.state, kind)
        if self.closed or self._wire.dead:
            return
        if kind == "http.response.body" and self.state is ASGIHTTPState.RESPONSE:
            if message.get("more_body", False):
                await self.write(message.get("body", b""))
            else:
                await self._finish(message.get("body", b""))
        elif kind == "http.response.start" and self.state is ASGIHTTPState.REQUEST:
            headers = build_and_validate_headers(message.get("headers", ()))
            self._start(int(message["status"]), headers)
        else:
            raise UnexpectedMessageError(self.state, kind)

    async def respond(self, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
        """Send a whole response: `http.response.start` and the one body message in a call.

        Offered to applications as `narwhal.respond`. Header names are in lower case.
        """
        if self.closed or self._wire.dead:
            return
        if self.state is not ASGIHTTPState.REQUEST:
            raise UnexpectedMessageError(self.state, "http.response.start")
        self._start(status, headers)
        await self._finish(body)

    def _start(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        if not FIRST_FINAL_STATUS <= status <= LAST_STATUS:
            raise ValueError(f"{status} is not the status of a final response")
        self._status = status
        self._headers = headers
        self._head_due = True
        self.state = ASGIHTTPState.RESPONSE

    def write_nowait(self, data: bytes) -> bool:
        """Take a part of the body that is not the last, and send what the client takes now.

        The fast path of `app_send`, offered to applications as `narwhal.write_nowait`. False if
        some of it is left; then `flush` has to be awaited. What is written before that is kept
        and waits in line, without a bound.
        """
        if self._chunked:
            frame = b"%x\r\n%b\r\n" % (len(data), data) if data else b""
        elif self.closed or self._wire.dead:
            return True
        elif self.state is ASGIHTTPState.RESPONSE:
            frame = self._take_head(final_size=None) + self._frame(data)
        else:
            raise UnexpectedMessageError(self.state, "http.response.body")
        if self._rest:
            self._rest += frame
        elif frame:
            self._rest = self._wire.write_nowait(frame)
        return not self._rest

    async def flush(self) -> None:
        """Wait until the client has taken what `write_nowait` left; also `narwhal.flush`.

        A cancel closes the connection, since it is in the middle of something.
        """
        rest, self._rest = self._rest, b""
        if rest:
            await self._wire.flush(rest)

    async def write(self, data: bytes) -> None:
        """Send a part of the body that is not the last; an empty one sends only the head.

        Offered to applications as `narwhal.write`. Suspends only if the client is slow to read,
        and a cancel then closes the connection.
        """
        if not self.write_nowait(data):
            await self.flush()

    async def _finish(self, data: bytes) -> None:
        """Send the last part of the body and let the connection go on to its next request."""
        head = self._take_head(final_size=len(data))
        body = self._frame(data)
        if self._length_left:
            raise ValueError(f"the body is {self._length_left} bytes short of its content-length")
        end = b"0\r\n\r\n" if self._chunked else b""
        self.state = ASGIHTTPState.CLOSED
        self._chunked = False
        rest, self._rest = self._rest, b""
        await self._wire.write(rest + head + body + end)
        self._wire.cut_by_reset = False
        self._chunks.clear()
        self._end_reported = True
        self._notify()
        if not self._wire.dead:  # else the protocol has let go of it
            self._protocol.response_done(last=self._last)

    def _take_head(self, final_size: int | None) -> bytes:
        """Return the head if it is still due; `final_size` is the whole body's, if known."""
        if not self._head_due:
            return b""
        self._head_due = False
        try:
            return self._make_head(final_size)
        except ValueError:
            self.state = ASGIHTTPState.REQUEST  # nothing was sent, so a 500 still can be
            raise

    def _make_head(self, final_size: int | None) -> bytes:
        """Decide how the body is framed, and say so."""
        status = self._status
        headers, length, closes = self._look_through()
        bodiless = suppress_body(self._method, status)
        framed = length is not None
        chunked = False
        if not framed and final_size is not None and status not in BODILESS_STATUSES:
            headers.append((b"content-length", b"%d" % final_size))
        elif not (framed or bodiless or self._http_10):
            headers.append((b"transfer-encoding", b"chunked"))
            chunked = True
        if closes:
            self._last = True
        elif self._last:
            headers.append((b"connection", b"close"))
        head = response_head(status, headers)
        self._bodiless = bodiless
        self._chunked = chunked
        if framed and not bodiless:
            self._length_left = length
        # Without a length or chunks, only a reset tells a cut body from a complete one.
        self._wire.cut_by_reset = self._http_10 and not framed and final_size is None
        return head

    def _look_through(self) -> tuple[list[tuple[bytes, bytes]], int | None, bool]:
        """The headers to send, the body's length by them, and whether they end the connection.

        How to transfer the body is for this server to decide; for how long it is, if known, it
        takes the application's word, and holds it to that.
        """
        headers: list[tuple[bytes, bytes]] = []
        length, closes = None, False
        for header in (*self._headers, *self._protocol.extra_headers()):
            name = header[0].lower()
            if name == b"transfer-encoding":
                continue
            if name == b"content-length":
                if length is not None:
                    raise ValueError("a response has one content-length")
                length = int(header[1])
            elif name == b"connection":
                closes = closes or b"close" in header[1].lower()
            headers.append(header)
        return headers, length, closes

    def _frame(self, data: bytes) -> bytes:
        if not data or self._bodiless:
            return b""
        if self._chunked:
            return b"%x\r\n%b\r\n" % (len(data), data)
        if self._length_left is not None:
            self._length_left -= len(data)
            if self._length_left < 0:
                raise ValueError("the body is longer than its content-length")
        return data
