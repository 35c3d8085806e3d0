"""Request heads: what h11 lets pass and this server does not. Pure functions on bytes."""

from __future__ import annotations

import json
import re
from functools import lru_cache
from http import HTTPStatus
from typing import TYPE_CHECKING

import attrs

from narwhal.model import ClientLimit

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import h11

    from narwhal.net.server.options import ServerOptions
    from narwhal.net.server.plain import PlainRequest

REASONS = {status.value: status.phrase.encode() for status in HTTPStatus}

TOKEN = re.compile(rb"[-!#$%&'*+.^_`|~0-9A-Za-z]+")
"""A field name, by RFC 9110 section 5.6.2."""

REQUEST_LINE_EXTRA = 64
"""What a request line has besides its target: method, version, spaces."""

SERVED_VERSIONS = frozenset({b"1.0", b"1.1"})


@attrs.frozen
class Refusal:
    """Why the server answers a request itself."""

    status: int
    message: str
    limit: ClientLimit | None = None
    """The limit that it went over, if it was one."""


def inspect_head(request: h11.Request, head: bytes, options: ServerOptions) -> Refusal | None:
    """Check a parsed request against the limits and against the bytes it was parsed from.

    `head` starts with the request's first byte and goes at least to the end of its headers.
    """
    if request.http_version not in SERVED_VERSIONS:
        return Refusal(505, "This server speaks HTTP/1.1.")
    if request.method == b"CONNECT":
        return Refusal(501, "This server is not a proxy: CONNECT is not implemented.")
    if len(request.target) > options.max_uri_bytes:
        return uri_too_long(options)
    if head.find(b"\n") >= longest_line(options):
        return line_too_long(options)
    raw, blank_line, _ = head.partition(b"\r\n\r\n")
    lines = raw.count(b"\r\n")
    if not blank_line or raw.count(b"\n") != lines:
        return Refusal(400, "Header lines must end with CR LF.")
    if b"\r\n " in raw or b"\r\n\t" in raw:
        # RFC 9112, section 5.2, leaves the choice; joined to one value by some and cut by others.
        return Refusal(400, "A header must be on one line.")
    if len(raw) + len(blank_line) > options.max_header_bytes:
        return head_too_large(options)
    if lines > options.max_headers:
        message = f"More than {options.max_headers} header lines."
        return Refusal(431, message, ClientLimit.HEADER_LINES)
    if _ambiguous_length(raw, request):
        return Refusal(400, "The length of the request's body is given more than once.")
    return None


def asks_to_close(request: h11.Request | PlainRequest) -> bool:
    """Whether the connection ends with the answer, by the client's wish or by its version."""
    return request.http_version == b"1.0" or says_close(request.headers)


def says_close(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Whether a `connection` header among these has `close`."""
    return any(
        name.lower() == b"connection" and b"close" in value.lower() for name, value in headers
    )


def response_head(status: int, headers: Sequence[tuple[bytes, bytes]]) -> bytes:
    """Return the head of a response.

    Raises `ValueError` for a header that would not stay one line, or has no name: what an
    application puts in there may come from a client.
    """
    lines = b"".join([b"%b: %b\r\n" % header for header in headers])
    count = len(headers)
    if lines.count(b"\r") != count or lines.count(b"\n") != count or b"\0" in lines:
        raise ValueError("a response header holds a line break or a NUL")
    if not all(_is_name(name) for name, _ in headers):
        raise ValueError("a response header has no valid name")
    return b"HTTP/1.1 %d %b\r\n%b\r\n" % (status, REASONS.get(status, b""), lines)


@lru_cache(maxsize=128)
def _is_name(name: bytes) -> bool:
    """Whether a header may be called that; applications have few, and use them again."""
    return TOKEN.fullmatch(name) is not None


def uri_too_long(options: ServerOptions) -> Refusal:
    """Return the refusal of a target over the limit."""
    message = f"The request target is longer than {options.max_uri_bytes} bytes."
    return Refusal(414, message, ClientLimit.URI_BYTES)


def longest_line(options: ServerOptions) -> int:
    """Return how many bytes may come without the end of the request line."""
    return options.max_uri_bytes + REQUEST_LINE_EXTRA


def line_too_long(options: ServerOptions) -> Refusal:
    """Return the refusal of a request line over its limit, whatever it is that is so long."""
    message = f"The request line is longer than {longest_line(options)} bytes."
    return Refusal(414, message, ClientLimit.URI_BYTES)


def head_too_large(options: ServerOptions) -> Refusal:
    """Return the refusal of a head over the limit."""
    message = f"The request head is larger than {options.max_header_bytes} bytes."
    return Refusal(431, message, ClientLimit.HEADER_BYTES)


def head_too_slow(options: ServerOptions) -> Refusal:
    """Return the refusal of a head that took too long."""
    message = f"The request head took over {options.header_timeout:g} s."
    return Refusal(408, message, ClientLimit.HEADER_TIME)


def body_too_slow(options: ServerOptions) -> Refusal:
    """Return the refusal of a body that comes too slowly."""
    message = (
        f"The request body took over {options.body_grace:g} s and came at less than "
        f"{options.min_body_rate:g} bytes/s."
    )
    return Refusal(408, message, ClientLimit.BODY_RATE)


def _ambiguous_length(raw: bytes, request: h11.Request) -> bool:
    """Whether two recipients could disagree on where the body ends.

    h11 folds equal lengths into one and lets a transfer coding win over a length. Both are
    allowed, and both are how a request is smuggled past whatever stands in front.
    """
    lower = raw.lower()
    lengths = lower.count(b"\ncontent-length:")
    codings = lower.count(b"\ntransfer-encoding:")
    if codings:
        return codings > 1 or lengths > 0 or request.http_version == b"1.0"
    if lengths == 1:
        _, _, rest = lower.partition(b"\ncontent-length:")
        value, _, _ = rest.partition(b"\r\n")
        return b"," in value
    return lengths > 1


def error_body(status: int, message: str) -> bytes:
    """Return an error object as the OpenAI API shapes it."""
    internal = status >= 500  # noqa: PLR2004 - where HTTP puts the fault on the server
    return json.dumps(
        {
            "error": {
                "message": message,
                "type": "internal_error" if internal else "invalid_request_error",
                "param": None,
                "code": "internal" if status == 500 else f"http_{status}",  # noqa: PLR2004
            },
        },
    ).encode()


def error_headers(body: bytes) -> list[tuple[bytes, bytes]]:
    """Return the headers of an answer with `error_body`, after which the connection closes."""
    return [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"connection", b"close"),
    ]


def refusal_bytes(refusal: Refusal) -> bytes:
    """Return a complete answer, independent of any parser's state."""
    body = error_body(refusal.status, refusal.message)
    headers = b"".join(b"%b: %b\r\n" % header for header in error_headers(body))
    reason = REASONS.get(refusal.status, b"")
    return b"HTTP/1.1 %d %b\r\n%b\r\n%b" % (refusal.status, reason, headers, body)
