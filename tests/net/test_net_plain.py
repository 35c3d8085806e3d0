"""The short way to read a request, held against h11: a strict part of it, with equal results."""

from __future__ import annotations

import h11
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from narwhal.net.server.options import ServerOptions
from narwhal.net.server.plain import Taken, take_plain

OPTIONS = ServerOptions()

NAMES = st.sampled_from(
    b"Host|host|Content-Length|content-length|Transfer-Encoding|Expect|Upgrade|Connection|X-A|x-b"
    b"|bad name||x\x00|caf\xe9".split(b"|")
)
VALUES = st.one_of(
    st.sampled_from([b"x", b"0", b"3", b"03", b"+3", b"3, 3", b"close", b"chunked", b"", b" "]),
    st.binary(max_size=8),
)
SEPARATORS = st.sampled_from([b": ", b":", b":\t", b" : ", b":  "])
ENDS = st.sampled_from([b"\r\n", b"\r\n", b"\r\n", b"\n", b"\r", b"\r\n "])
HEADERS = st.lists(st.tuples(NAMES, SEPARATORS, VALUES, ENDS).map(b"".join), max_size=5)
LINES = st.sampled_from(
    [
        *[b"POST /v1/completions HTTP/1.1\r\n"] * 10,
        b"GET / HTTP/1.0\r\n",
        b"BREW / HTTP/1.1\r\n",
        b"GET  / HTTP/1.1\r\n",
        b"GET /\r\n",
        b"GET http://h/ HTTP/1.1\r\n",
        b"GET /\xff HTTP/1.1\r\n",
        b"GET / HTTP/1.1 \r\n",
        b"CONNECT h:1 HTTP/1.1\r\n",
        b"GET * HTTP/1.1\n",
        b"\r\nGET / HTTP/1.1\r\n",
    ]
)


@settings(max_examples=500)
@given(
    line=LINES,
    host=st.sampled_from([b"Host: h\r\n", b"", b"host: h\r\nHOST: i\r\n"]),
    headers=HEADERS,
    body=st.binary(max_size=12),
)
def test_what_is_taken_is_what_h11_takes(
    line: bytes, host: bytes, headers: list[bytes], body: bytes
) -> None:
    data = line + host + b"".join(headers) + b"\r\n" + body
    taken = take_plain(data, OPTIONS)
    if taken is None:
        return
    connection = h11.Connection(h11.SERVER)
    connection.receive_data(data)
    request = connection.next_event()
    assert isinstance(request, h11.Request)
    assert (request.method, request.target) == (taken.request.method, taken.request.target)
    assert request.http_version == taken.request.http_version
    assert list(request.headers) == taken.request.headers
    seen = b""
    while isinstance(event := connection.next_event(), h11.Data):
        seen += event.data
    assert isinstance(event, h11.EndOfMessage)
    assert seen == taken.body
    assert connection.trailing_data[0] == taken.beyond


def take(head: bytes, body: bytes = b"") -> Taken | None:
    return take_plain(head.replace(b"\n", b"\r\n") + b"\r\n\r\n" + body, OPTIONS)


def test_the_usual_request_is_taken() -> None:
    taken = take(
        b"POST /v1/x HTTP/1.1\nHost: h\nUser-Agent: curl/8 (x; y)\nContent-Length: 3", b"abcd"
    )
    assert taken is not None
    assert (taken.body, taken.beyond) == (b"abc", b"d")
    assert taken.request.headers[1] == (b"user-agent", b"curl/8 (x; y)")


@pytest.mark.parametrize(
    "head",
    [
        b"POST / HTTP/1.1\nHost: h\nContent-Length: 4",  # not all there
        b"POST / HTTP/1.1\nHost: h\nContent-Length: 3\nContent-Length: 3",
        b"POST / HTTP/1.1\nHost: h\nContent-Length: 3\nTransfer-Encoding: chunked",
        b"POST / HTTP/1.1\nHost: h\nExpect: 100-continue\nContent-Length: 3",
        b"POST / HTTP/1.1\nContent-Length: 3",
        b"POST / HTTP/1.1\nHost: h\nContent-Length: 3\nX: caf\xc3\xa9",
        b"POST / HTTP/1.1\nHost: h\nContent-Length: 3\nX: a\n b",
        b"POST / HTTP/1.0\nHost: h\nContent-Length: 3",
        b"POST /" + b"x" * 9000 + b" HTTP/1.1\nHost: h\nContent-Length: 3",
        b"POST / HTTP/1.1\nHost: h\nContent-Length: 3" + b"\nX: y" * 200,
    ],
)
def test_anything_odd_is_left_to_h11(head: bytes) -> None:
    assert take(head, b"abc") is None


def test_it_is_linear_in_a_hostile_head() -> None:
    for filler in (b"a" * 60_000, b"a: " * 20_000, b"a:b\r\n" * 12_000, b": " * 30_000):
        assert take_plain(b"GET / HTTP/1.1\r\nhost: " + filler, OPTIONS) is None
        assert (
            take_plain(b"GET / HTTP/1.1\r\nhost: " + filler + b"\r\n\r\n", OPTIONS) is None or True
        )
