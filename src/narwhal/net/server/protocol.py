"""HTTP/1.1 on one connection: from bytes to requests, and from one request to the next."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import h11
from hypercorn.protocol.h11 import H11Protocol
from hypercorn.typing import ConnectionState

from narwhal.model import ClientLimit
from narwhal.net.server.heads import (
    Refusal,
    head_too_large,
    inspect_head,
    line_too_long,
    longest_line,
    refusal_bytes,
)
from narwhal.net.server.plain import take_plain
from narwhal.net.server.request import RequestStream
from narwhal.net.streams import RECEIVE_BYTES

if TYPE_CHECKING:
    from hypercorn.trio.task_group import TaskGroup

    from narwhal.net.server.connection import Connection
    from narwhal.net.server.plain import PlainRequest


CHUNKED_BYTES = 4096
"""Read at once of a body in chunks: 3 ms at the worst, and no less than a few of honest chunks."""


class Http1(H11Protocol):
    """Hypercorn's HTTP/1.1 protocol, with its parser and without its waiting.

    Every step from bytes to a started application is synchronous, so the reading task and an
    application's task can both take it without a lock. What is left out on purpose: websockets
    and h2c, each of which let one request end the whole server, and waiting for a pipelined
    request's turn in the reader, which hid that the client had left and leaked the connection.
    """

    connection: h11.Connection
    stream: RequestStream | None
    wire: Connection

    def __init__(self, wire: Connection) -> None:
        super().__init__(
            wire.app,
            wire.config,
            wire.context,
            cast("TaskGroup", None),  # applications are started in the connection's nursery
            ConnectionState({}),
            wire.secure,
            wire.stream.peer,
            wire.stream.local,
            wire.protocol_send,
        )
        self.wire = wire
        self._options = wire.server.options
        self._head: list[bytes] = []  # what has arrived of a request's head, as it arrived
        self._head_bytes = 0
        self._head_line_seen = False
        self._body_bytes = 0  # of the running request, as far as h11 gave them out
        self._pipelined = 0
        self._by_length = False  # whether that body's length was announced
        self._reads = (b"", b"")  # the last read, and three bytes from before it
        self._beyond: bytes | None = None  # what follows a body that h11 was not asked for

    def let_go(self) -> None:
        """Forget the connection, which is over: nothing is called on this any more."""
        del self.wire, self.send

    # State

    @property
    def mid_head(self) -> bool:
        """Whether a request has begun to arrive and its head is not complete."""
        return self._head_bytes > 0

    @property
    def congested(self) -> bool:
        """Whether the application is behind with receiving the body."""
        stream = self.stream
        return stream is not None and stream.buffered >= self._options.receive_buffer_bytes

    @property
    def read_bytes(self) -> int:
        """How much is to be read at once.

        Chunks cost by their number, 4 us each, and there may be one in six bytes: of 64 KiB of
        them nobody else would be served for 45 ms.
        """
        chunks_come = self.stream is not None and not self._by_length and not self.complete
        return CHUNKED_BYTES if chunks_come else RECEIVE_BYTES

    def continue_due(self) -> bool:
        """Whether the client waits for `100 Continue` before it sends the body."""
        return self.connection.they_are_waiting_for_100_continue and not self.complete

    @property
    def complete(self) -> bool:
        """Whether all of the running request has arrived."""
        return self._beyond is not None or self.connection.their_state is not h11.SEND_BODY

    def _following(self) -> bytes:
        """What has arrived after the running request."""
        return self.connection.trailing_data[0] if self._beyond is None else self._beyond

    def continue_bytes(self) -> bytes:
        """Return `100 Continue`, once; the application has asked for the body."""
        answer = h11.InformationalResponse(status_code=100, headers=[], reason=b"Continue")
        data = self.connection.send(answer) or b""
        self.await_body()
        return data

    def await_body(self) -> None:
        """Bound the wait for the rest of the body, if it is the client's turn to send it."""
        if not self.continue_due():
            self.wire.body_expected(self._body_bytes)

    def extra_headers(self) -> list[tuple[bytes, bytes]]:
        """Return what the server adds to a response that starts now."""
        headers = self.config.response_headers("h11")
        last = self.keep_alive_requests >= self._options.keep_alive_max_requests
        if last or not self.complete or self.wire.server.draining:
            headers.append((b"connection", b"close"))
        return headers

    # Bytes in

    def data_received(self, data: bytes) -> None:
        """Take what one read brought, and start what it completes."""
        if self._beyond is not None:
            self._beyond += data
        elif self._begin_plain(data):
            return
        else:
            before, last = self._reads
            self._reads = ((before + last[-3:])[-3:], data)
            self.connection.receive_data(data)
        if self.stream is not None and self.complete:
            self._pipelined += len(data)
            if self._pipelined > self._options.max_pipelined_bytes:
                self.wire.server.limit_fired(ClientLimit.PIPELINED)
                self.wire.abort()
            return
        if self.connection.their_state is h11.IDLE:
            self._head.append(data)
            self._head_bytes += len(data)
        self._advance()

    def connection_lost(self) -> None:
        """Tell the application of the running request that the client is gone."""
        stream, self.stream = self.stream, None
        if stream is not None:
            stream.lose()

    def _advance(self) -> None:
        """Handle every event that the bytes so far add up to."""
        connection = self.connection
        while True:
            if self.stream is not None and self.complete:
                # What follows waits for the answer, or is not looked at again.
                self._pipelined = len(self._following())
                self.wire.body_complete()
                return
            try:
                event = connection.next_event()
            except h11.RemoteProtocolError as error:
                self.refuse(self._explain(error))
                return
            if type(event) is h11.Request:
                if not self._begin(event):
                    return
            elif self.stream is None:
                self._wait_for_head()
                return
            elif type(event) is h11.Data:
                self._body_bytes += len(event.data)
                self.stream.feed(event.data)
            elif type(event) is h11.EndOfMessage:
                if not self._by_length and not self._ends_in_crlf():
                    self.refuse(Refusal(400, "The chunks do not end with CR LF."))
                    return
                self.stream.feed_end()
            else:
                self.await_body()
                return

    def _begin_plain(self, data: bytes) -> bool:
        """Begin a request that is all there and needs no parser; false if this is none."""
        if self.stream is not None or self._head_bytes:
            return False
        taken = take_plain(data, self._options)
        if taken is None:
            return False
        request, body, self._beyond = taken
        self._pipelined = len(self._beyond)
        stream = self._start(request)
        if body:
            stream.feed(body)
        stream.feed_end()
        return True

    def _start(self, request: h11.Request | PlainRequest) -> RequestStream:
        self.keep_alive_requests += 1
        self.stream = stream = RequestStream(self, request)
        self.wire.request_began(stream)
        return stream

    def _begin(self, request: h11.Request) -> bool:
        head = self._head[0] if len(self._head) == 1 else b"".join(self._head)
        self._head.clear()
        self._head_bytes = 0
        self._head_line_seen = False
        self._body_bytes = 0
        refusal = inspect_head(request, head, self._options)
        if refusal is not None:
            self.refuse(refusal)
            return False
        self._take_whole_body(self._start(request), request)
        return True

    def _take_whole_body(self, stream: RequestStream, request: h11.Request) -> None:
        """Hand over a body of known length that is here already, past the parser.

        That is most of them, and nothing in such a body needs parsing.
        """
        length = next((value for name, value in request.headers if name == b"content-length"), None)
        self._by_length = length is not None
        if length is None:
            return
        size = int(length)
        rest, _ = self.connection.trailing_data
        if len(rest) >= size:
            self._beyond = rest[size:]
            stream.feed(rest[:size])
            stream.feed_end()

    def _ends_in_crlf(self) -> bool:
        """Whether the message that has just ended did so with an empty line.

        h11 takes a line feed alone for the end of a trailer, or of all of them. Whoever stands in
        front and does not would take what follows for a part of the same request.
        """
        before, last = self._reads
        rest, _ = self.connection.trailing_data
        return (before + last[: len(last) - len(rest)])[-4:] == b"\r\n\r\n"

    def _wait_for_head(self) -> None:
        if not self._head_bytes:
            return
        if len(self._head) == 1:
            self.wire.head_began()
        longest = longest_line(self._options)
        if not self._head_line_seen and self._head_bytes >= longest:
            self._head_line_seen = b"\n" in b"".join(self._head)[:longest]
            if not self._head_line_seen:
                self.refuse(line_too_long(self._options))

    def _explain(self, error: h11.RemoteProtocolError) -> Refusal:
        if error.error_status_hint == 431:  # noqa: PLR2004 - h11's "receive buffer too long"
            return head_too_large(self._options)
        what, _, _ = str(error).partition(": b")  # what follows is the input
        return Refusal(error.error_status_hint, f"Not a valid HTTP/1.1 request: {what}.")

    # Responses out

    def refuse(self, refusal: Refusal) -> None:
        """Answer instead of the application if that is still possible, and close."""
        if refusal.limit is not None:
            self.wire.server.limit_fired(refusal.limit)
        stream, self.stream = self.stream, None
        if stream is not None:
            if stream.response_started:
                stream.lose()
                self.wire.abort()
                return
            stream.refuse(refusal.status)
        self.wire.last_answer(refusal_bytes(refusal))

    def response_done(self, *, last: bool) -> None:
        """Go on to the next request, or close, now that a response is complete.

        `last` says that the response announced the end of the connection.
        """
        self.stream = None
        self.wire.resume_reading()
        if self.complete and not last and not self.wire.server.draining:
            self._start_next(self._following())
        elif self._pipelined or not self.complete:
            self.wire.linger()
        else:
            self.wire.abort()

    def _start_next(self, pipelined: bytes) -> None:
        """Parse the next request with a parser of its own.

        h11 is told nothing of responses, which it would take twice as long over as over requests;
        a new parser costs less than a microsecond.
        """
        if self.connection.their_state is not h11.IDLE:
            self.connection = h11.Connection(
                h11.SERVER, max_incomplete_event_size=self.config.h11_max_incomplete_size
            )
        self._beyond = None
        self.wire.became_idle()
        if self._pipelined:
            self._pipelined = 0
            self.data_received(pipelined)
