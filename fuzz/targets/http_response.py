"""Any bytes in any pieces are the same response, or the same `EngineProtocolError`, in bounds.

The first byte of an input sets the options (see `_OPTIONS`), the rest is what the server sends.
"""

from __future__ import annotations

import attrs
import h11

from fuzz.pieces import cuttings, sizes, take_option
from narwhal.model import EngineProtocolError
from narwhal.net.response import ResponseReader

_OPTIONS = {"head": 1, "small": 2}
_SMALL, _LARGE = 64, 65536
_FRAMING = frozenset({b"content-length", b"transfer-encoding"})
_BODILESS = frozenset({204, 304})


@attrs.frozen
class _Read:
    """What was read of a response."""

    refused: bool
    status: int = 0
    headers: tuple[tuple[bytes, bytes], ...] = ()
    body: bytes = b""
    head_complete: bool = False
    complete: bool = False
    reusable: bool = False


def check(data: bytes) -> None:
    option, sent = take_option(data)
    head_only = bool(option & _OPTIONS["head"])
    most = _SMALL if option & _OPTIONS["small"] else _LARGE
    whole = _read([sent], head_only=head_only, most=most)
    for pieces in cuttings(sent):
        cut = _read(pieces, head_only=head_only, most=most)
        assert cut == whole, f"{cut} and {whole} for {sizes(pieces)}"
    if whole.refused:
        assert not whole.reusable, "a connection is used again after an error"
    elif whole.head_complete:
        _check_head(sent, whole, head_only=head_only, most=most)


def _check_head(sent: bytes, whole: _Read, *, head_only: bool, most: int) -> None:
    assert _read([sent[:most]], head_only=head_only, most=most).head_complete, (
        "a head over the bound"
    )
    if head_only:
        assert whole.complete
        assert not whole.body, "an answer to HEAD has a body"
        return
    framed = _FRAMING & {name for name, _ in whole.headers}
    assert framed or whole.status in _BODILESS, "its end cannot be told from a cut"
    if whole.complete:
        _check_against_h11(sent, whole)


def _read(pieces: list[bytes], *, head_only: bool, most: int) -> _Read:
    reader = ResponseReader(max_head_bytes=most, head_only=head_only)
    body = bytearray()
    try:
        for piece in pieces:
            reader.feed(piece)
            body += reader.take()
    except EngineProtocolError:
        return _Read(refused=True, reusable=reader.reusable)
    finally:
        reader.close()
    return _Read(
        refused=False,
        status=reader.status,
        headers=tuple(reader.headers),
        body=bytes(body),
        head_complete=reader.head_complete,
        complete=reader.complete,
        reusable=reader.reusable,
    )


def _check_against_h11(sent: bytes, whole: _Read) -> None:
    """Where another parser takes the same bytes for a response, it is the same one."""
    client = h11.Connection(h11.CLIENT, max_incomplete_event_size=_LARGE)
    client.send(h11.Request(method="GET", target="/", headers=[("host", "h")]))
    client.send(h11.EndOfMessage())
    client.receive_data(sent)
    status, body = 0, bytearray()
    try:
        while type(event := client.next_event()) is not h11.EndOfMessage:
            if event is h11.NEED_DATA or isinstance(event, h11.ConnectionClosed):
                return
            if isinstance(event, h11.Response):
                status = event.status_code
            elif isinstance(event, h11.Data):
                body += event.data
    except h11.RemoteProtocolError:
        return
    assert (status, bytes(body)) == (whole.status, whole.body), "h11 reads something else"
