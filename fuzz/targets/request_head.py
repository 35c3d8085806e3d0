"""Any bytes in any pieces are the same requests to the server, or the same refusal; never a fault.

What the short way of reading takes, h11 takes as well. The first byte of an input sets the limits
(see `_OPTIONS`), the rest is what a client sends; each request is answered when all has arrived.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import h11
from hypercorn.trio.worker_context import WorkerContext

from fuzz.pieces import cuttings, sizes, take_option
from narwhal.net.server.heads import REASONS
from narwhal.net.server.options import ServerOptions
from narwhal.net.server.plain import take_plain
from narwhal.net.server.protocol import Http1

_OPTIONS = {"small": 1}
_LARGE = ServerOptions()
_SMALL = ServerOptions(max_header_bytes=256, max_headers=4, max_uri_bytes=32)

_LIMITS = frozenset({b"HTTP/1.1 %d %b" % (status, REASONS[status]) for status in (414, 431)})

_Seen = tuple[list[tuple[object, ...]], bytes]


def check(data: bytes) -> None:
    option, sent = take_option(data)
    options = _SMALL if option & _OPTIONS["small"] else _LARGE
    whole = _serve([sent], options)
    for pieces in cuttings(sent):
        cut = _serve(pieces, options)
        assert _alike(cut, whole), f"{cut} and {whole} for {sizes(pieces)}"
    _check_against_h11(sent, options)


def _alike(one: _Seen, other: _Seen) -> bool:
    """Whether they are the same, but for the reason of a refusal if a limit is among the reasons.

    A limit is looked at as soon as it is passed, so what has arrived by then decides whether it
    is found before another mistake.
    """
    return one == other or (
        one[0] == other[0]
        and one[1] != b"" != other[1]
        and not _LIMITS.isdisjoint((one[1], other[1]))
    )


class _Wire:
    """As much of a connection as its protocol uses, without a socket and without time."""

    def __init__(self, options: ServerOptions) -> None:
        self.app = None
        self.config = options.hypercorn()
        self.context = WorkerContext(None)
        self.secure = False
        self.stream = SimpleNamespace(peer=None, local=None)
        self.server = SimpleNamespace(
            options=options, draining=False, limit_fired=lambda _limit: None
        )
        self.over = False
        self.answer = b""
        self.running: Any = None

    @property
    def dead(self) -> bool:
        return self.over

    async def protocol_send(self, event: object) -> None:
        raise AssertionError(event)

    def abort(self) -> None:
        self.over = True

    def last_answer(self, data: bytes) -> None:
        self.answer = data
        self.over = True

    def request_began(self, stream: Any) -> None:
        self.running = stream

    def nothing(self) -> None:
        """For what only concerns time."""

    head_began = became_idle = resume_reading = body_complete = nothing

    def body_expected(self, received: int) -> None:
        """The same."""

    linger = abort


def _serve(pieces: list[bytes], options: ServerOptions) -> _Seen:
    """The requests with their bodies, and the status line of a refusal."""
    wire = _Wire(options)
    protocol = Http1(cast("Any", wire))
    for piece in pieces:
        if piece and not wire.over:
            protocol.data_received(piece)
    requests = []
    while wire.running is not None:
        stream, wire.running = wire.running, None
        requests.append((*_head(stream), _body(stream), protocol.complete))
        if not wire.over and protocol.complete:
            protocol.response_done(last=False)
    return requests, wire.answer.partition(b"\r\n")[0]


def _head(stream: Any) -> tuple[object, ...]:
    names = ("method", "raw_path", "query_string", "http_version", "headers")
    return tuple(stream.scope[name] for name in names)


def _body(stream: Any) -> bytes:
    """What has arrived of the body, which receiving does not wait for."""
    if not stream.buffered:
        return b""
    try:
        stream.receive().send(None)
    except StopIteration as stop:
        body: bytes = stop.value["body"]
        return body
    raise AssertionError("the body that is there has to be waited for")


def _check_against_h11(data: bytes, options: ServerOptions) -> None:
    taken = take_plain(data, options)
    if taken is None:
        return
    server = h11.Connection(h11.SERVER)
    server.receive_data(data)
    request = server.next_event()
    assert isinstance(request, h11.Request)
    assert (request.method, request.target) == (taken.request.method, taken.request.target)
    assert list(request.headers) == taken.request.headers
    body = bytearray()
    while type(event := server.next_event()) is h11.Data:
        body += event.data
    assert type(event) is h11.EndOfMessage
    assert bytes(body) == taken.body
    assert server.trailing_data[0] == taken.beyond
