"""The commonest form of request, taken apart without h11.

h11 decides what is a valid request: its care with everything that is odd is why it is here. A
request that is there as a whole and has nothing odd about it needs none of that care, and takes
h11 25 us. What is accepted here is a strict part of what h11 accepts, with the same result; a
property test holds the two against each other. Whatever is not accepted here goes to h11.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from narwhal.net.server.options import ServerOptions

# Header values are visible ASCII with single blanks or more in between, and never empty.
_HEAD = re.compile(
    rb"(GET|HEAD|POST|PUT|PATCH|DELETE|OPTIONS) ([!-~]+) HTTP/1\.1\r\n"
    rb"((?:[-!#$%&'*+.^_`|~0-9A-Za-z]+:[ \t]?[!-~](?:[ -~]*[!-~])?\r\n)+)"
)
# Headers that decide how the rest is read, or ask for something.
_ODD = frozenset({b"transfer-encoding", b"expect", b"upgrade"})
_MOST_DIGITS = 12


class PlainRequest(NamedTuple):
    """What an application's scope is made from; as much of `h11.Request` as that needs."""

    method: bytes
    target: bytes
    headers: list[tuple[bytes, bytes]]
    """Names in lower case, in the order in which they came."""
    http_version: bytes = b"1.1"


class Taken(NamedTuple):
    """A whole request off the front of what was received."""

    request: PlainRequest
    body: bytes
    beyond: bytes
    """What follows it."""


def take_plain(data: bytes, options: ServerOptions) -> Taken | None:
    """Take a request off the front of `data`; None unless it is all there and has nothing odd.

    None says nothing about whether the request is valid.
    """
    end = data.find(b"\r\n\r\n")
    whole = 0 <= end <= options.max_header_bytes - 4
    match = _HEAD.fullmatch(data, 0, end + 2) if whole else None
    if match is None:
        return None
    method, target, lines = match.groups()
    headers = []
    for line in lines.split(b"\r\n")[:-1]:
        name, _, value = line.partition(b":")
        headers.append((name.lower(), value.strip()))
    size = _body_size(headers)
    start = end + 4
    if (
        size is None
        or len(data) < start + size
        or len(headers) > options.max_headers
        or len(target) > options.max_uri_bytes
    ):
        return None
    body = data[start : start + size]
    return Taken(PlainRequest(method, target, headers), body, data[start + size :])


def _body_size(headers: list[tuple[bytes, bytes]]) -> int | None:
    """How long the body is, if nothing but one plain length has a say in it."""
    names = [name for name, _ in headers]
    if names.count(b"host") != 1 or not _ODD.isdisjoint(names):
        return None
    lengths = [value for name, value in headers if name == b"content-length"]
    if not lengths:
        return 0
    if len(lengths) > 1 or not lengths[0].isdigit() or len(lengths[0]) > _MOST_DIGITS:
        return None
    return int(lengths[0])
