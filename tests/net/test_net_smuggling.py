"""What one recipient could read in another way than the next: requests in, responses of engines.

Whoever stands in front of the router has looked at a request already. If that one and this server
disagree on where it ends, what follows is a request that nobody looked at.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from itertools import pairwise
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from net_world import World, in_world, respond
from trio.testing import wait_all_tasks_blocked

from narwhal.model import EngineProtocolError
from narwhal.net import ServerOptions
from narwhal.net.response import ResponseReader

HIDDEN = b"GET /hidden HTTP/1.1\r\nhost: x\r\n\r\n"
POST = b"POST / HTTP/1.1\r\nhost: x\r\n"
CHUNKS = POST + b"transfer-encoding: chunked\r\n\r\n"
LENGTH = b"content-length: %d\r\n\r\n" % len(HIDDEN)


class Requests:
    """An application that notes what it is asked."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, bytes]] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        parts = []
        while True:
            message = await receive()
            if message["type"] != "http.request":
                return
            parts.append(message["body"])
            if not message["more_body"]:
                break
        self.seen.append((scope["path"], b"".join(parts)))
        await respond(send)


def sent(
    data: bytes, *, size: int = 0, cuts: Collection[int] = ()
) -> tuple[list[tuple[str, bytes]], list[int]]:
    """What an application is asked, and the statuses of the answers, for bytes in such pieces."""
    ends = sorted(cuts) if cuts else list(range(size, len(data), size or len(data)))
    pieces = [data[start:end] for start, end in pairwise([0, *ends, len(data)])]
    app = Requests()
    statuses: list[int] = []

    async def body(world: World) -> None:
        client = await world.connect()
        for piece in pieces:
            try:
                await client.send_all(piece)
            except trio.BrokenResourceError:
                break
            await wait_all_tasks_blocked()
        answer = b""
        with trio.move_on_after(1):  # an answer comes at once, or not at all
            while more := await client.receive_some():
                answer += more
        statuses.extend(map(int, re.findall(rb"HTTP/1\.1 (\d{3}) ", answer)))

    in_world(app, body, options=ServerOptions(linger_timeout=0.1))
    return app.seen, statuses


REFUSED = {
    "folded-header": (POST + b"x: a\r\n b\r\ncontent-length: 3\r\n\r\nabc", 400),
    "folded-length": (POST + b"content-length:\r\n 3\r\n\r\nabc", 400),
    "folded-with-tab": (POST + b"transfer-encoding:\r\n\tchunked\r\n\r\n0\r\n\r\n", 400),
    "identity": (POST + b"transfer-encoding: identity\r\n\r\nabc", 501),
    "identity-and-length": (
        POST + b"transfer-encoding: identity\r\ncontent-length: 3\r\n\r\nabc",
        501,
    ),
    "empty-coding": (POST + b"transfer-encoding:\r\ncontent-length: 3\r\n\r\nabc", 501),
    "chunked-twice": (POST + b"transfer-encoding: chunked, chunked\r\n\r\n0\r\n\r\n", 501),
    "chunked-and-more": (POST + b"transfer-encoding: chunked, identity\r\n\r\n0\r\n\r\n", 501),
    "chunked-with-parameter": (POST + b"transfer-encoding: chunked;q=1\r\n\r\n0\r\n\r\n", 501),
    "chunked-in-quotes": (POST + b'transfer-encoding: "chunked"\r\n\r\n0\r\n\r\n', 501),
    "vertical-tab": (POST + b"transfer-encoding: \x0bchunked\r\n\r\n0\r\n\r\n", 400),
    "nul-in-coding": (POST + b"transfer-encoding: chunked\0\r\n\r\n0\r\n\r\n", 400),
    "space-before-colon": (POST + b"transfer-encoding : chunked\r\n\r\n0\r\n\r\n", 400),
    "length-with-underscore": (POST + b"content-length: 0_3\r\n\r\nabc", 400),
    "length-with-space": (POST + b"content-length: 3 3\r\n\r\nabc", 400),
    "length-of-nothing": (POST + b"content-length:\r\n\r\nabc", 400),
    "length-of-everything": (POST + b"content-length: " + b"9" * 30 + b"\r\n\r\nabc", 400),
    "chunked-in-1.0": (CHUNKS.replace(b"HTTP/1.1", b"HTTP/1.0") + b"0\r\n\r\n", 400),
    "chunk-with-line-feed": (CHUNKS + b"3\nabc\r\n0\r\n\r\n", 400),
    "chunk-data-with-line-feed": (CHUNKS + b"3\r\nabc\n0\r\n\r\n", 400),
    "last-chunk-with-line-feed": (CHUNKS + b"0\n\r\n", 400),
    "extension-with-line-feed": (CHUNKS + b"3;a\nabc\r\n0\r\n\r\n", 400),
    "chunk-with-underscore": (CHUNKS + b"0_3\r\nabc\r\n0\r\n\r\n", 400),
    "chunk-with-prefix": (CHUNKS + b"0x3\r\nabc\r\n0\r\n\r\n", 400),
    "chunk-with-sign": (CHUNKS + b"+3\r\nabc\r\n0\r\n\r\n", 400),
    "chunk-after-space": (CHUNKS + b" 3\r\nabc\r\n0\r\n\r\n", 400),
    "chunk-of-everything": (CHUNKS + b"f" * 30 + b"\r\nabc", 400),
    "chunk-longer-than-it-says": (CHUNKS + b"2\r\nabc\r\n0\r\n\r\n", 400),
    "end-with-line-feed": (CHUNKS + b"3\r\nabc\r\n0\r\n\n", 400),
    "trailers-end-with-line-feeds": (CHUNKS + b"0\r\nx: y\n\n", 400),
    "trailer-with-line-feed": (CHUNKS + b"0\r\nx: y\n\r\n", 400),
    "nul-in-name": (POST + b"x\0: y\r\n\r\n", 400),
    "nul-in-target": (b"GET /\0 HTTP/1.1\r\nhost: x\r\n\r\n", 400),
    "tabs-in-request-line": (b"GET\t/\tHTTP/1.1\r\nhost: x\r\n\r\n", 400),
    "two-spaces": (b"GET  / HTTP/1.1\r\nhost: x\r\n\r\n", 400),
    "no-version": (b"GET / \r\n\r\n", 400),
    "lower-case-version": (b"GET / http/1.1\r\nhost: x\r\n\r\n", 400),
    "empty-line-first": (b"\r\nGET / HTTP/1.1\r\nhost: x\r\n\r\n", 400),
}


@pytest.mark.parametrize("case", REFUSED)
@pytest.mark.parametrize("size", [1_000_000, 1, 7])
def test_what_is_ambiguous_is_refused_with_all_that_follows(case: str, size: int) -> None:
    data, status = REFUSED[case]
    assert sent(data + HIDDEN, size=size) == ([], [status])


# What is clear: path and body of the one request, then the one behind it.
CLEAR: dict[str, tuple[bytes, str, bytes]] = {
    "hidden-in-a-body": (POST + LENGTH + HIDDEN, "/", HIDDEN),
    "hidden-in-a-body-of-get": (b"GET / HTTP/1.1\r\nhost: x\r\n" + LENGTH + HIDDEN, "/", HIDDEN),
    "hidden-in-a-chunk": (
        CHUNKS + b"%x\r\n" % len(HIDDEN) + HIDDEN + b"\r\n0\r\n\r\n",
        "/",
        HIDDEN,
    ),
    "coding-in-capitals": (POST + b"TRANSFER-ENCODING: Chunked\r\n\r\n0\r\n\r\n", "/", b""),
    "coding-after-tab": (POST + b"transfer-encoding:\tchunked\r\n\r\n0\r\n\r\n", "/", b""),
    "underscore-is-another-name": (
        POST + b"transfer_encoding: chunked\r\ncontent-length: 3\r\n\r\nabc",
        "/",
        b"abc",
    ),
    "zeros-first": (POST + b"content-length: 0003\r\n\r\nabc", "/", b"abc"),
    "extension": (CHUNKS + b'3;a="b"\r\nabc\r\n0;c\r\n\r\n', "/", b"abc"),
    "extension-with-half-a-quote": (CHUNKS + b'3;a="\r\nabc\r\n0\r\n\r\n', "/", b"abc"),
    # A carriage return alone ends no line, here or anywhere that is known of.
    "extension-with-return": (CHUNKS + b"3;a\rb\r\nabc\r\n0\r\n\r\n", "/", b"abc"),
    "trailers": (CHUNKS + b"3\r\nabc\r\n0\r\ncontent-length: 99\r\nx: y\r\n\r\n", "/", b"abc"),
    "many-zeros": (CHUNKS + b"3\r\nabc\r\n0000\r\n\r\n", "/", b"abc"),
    "absolute-target": (
        b"GET http://other.example/x HTTP/1.1\r\nhost: x\r\n\r\n",
        "http://other.example/x",
        b"",
    ),
    "connection-names-host": (b"GET / HTTP/1.1\r\nhost: x\r\nconnection: host\r\n\r\n", "/", b""),
}


@pytest.mark.parametrize("case", CLEAR)
@pytest.mark.parametrize("size", [1_000_000, 1, 7])
def test_what_is_clear_is_one_request_and_what_follows_another(case: str, size: int) -> None:
    data, path, body = CLEAR[case]
    seen, _ = sent(data + HIDDEN, size=1_000_000)
    assert seen == [(path, body), ("/hidden", b"")]
    seen, _ = sent(data, size=size)
    assert seen == [(path, body)]


@given(st.data())
def test_how_the_bytes_were_cut_makes_no_difference(data: st.DataObject) -> None:
    case = data.draw(st.sampled_from(sorted(REFUSED)))
    content, status = REFUSED[case]
    content += HIDDEN
    cuts = data.draw(st.sets(st.integers(1, len(content) - 1), max_size=6))
    assert sent(content, cuts=cuts) == ([], [status])
    case = data.draw(st.sampled_from(sorted(CLEAR)))
    content, path, body = CLEAR[case]
    cuts = data.draw(st.sets(st.integers(1, len(content) - 1), max_size=6))
    assert sent(content, cuts=cuts)[0] == [(path, body)]


def test_1_0_keeps_no_connection_for_what_follows() -> None:
    keep = b"POST / HTTP/1.0\r\nhost: x\r\nconnection: keep-alive\r\ncontent-length: 3\r\n\r\nabc"
    assert sent(keep + HIDDEN, size=1_000_000) == ([("/", b"abc")], [200])


def test_trailers_are_no_headers() -> None:
    seen = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        while (await receive())["more_body"]:
            pass
        seen.append(scope["headers"])
        await respond(send)

    async def body(world: World) -> None:
        client = await world.connect()
        await client.send_all(CHUNKS + b"0\r\nauthorization: Bearer x\r\n\r\n")
        await client.receive_some()

    in_world(app, body)
    assert seen == [[(b"host", b"x"), (b"transfer-encoding", b"chunked")]]


# Responses of engines

OK = b"HTTP/1.1 200 OK\r\n"
CODED = OK + b"transfer-encoding: chunked\r\n\r\n"
UNUSABLE = {
    "length-and-chunks": OK + b"content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunks-and-length": OK + b"transfer-encoding: chunked\r\ncontent-length: 5\r\n\r\n0\r\n\r\n",
    "two-lengths": OK + b"content-length: 5\r\ncontent-length: 6\r\n\r\nhello!",
    "same-length-twice": OK + b"content-length: 5\r\ncontent-length: 5\r\n\r\nhello",
    "list-of-lengths": OK + b"content-length: 5, 5\r\n\r\nhello",
    "negative-length": OK + b"content-length: -5\r\n\r\nhello",
    "signed-length": OK + b"content-length: +5\r\n\r\nhello",
    "length-of-everything": OK + b"content-length: " + b"9" * 30 + b"\r\n\r\nhello",
    "unknown-coding": OK + b"transfer-encoding: xchunked\r\n\r\n0\r\n\r\n",
    "identity": OK + b"transfer-encoding: identity\r\n\r\nhello",
    "chunked-not-last": OK + b"transfer-encoding: chunked, gzip\r\n\r\n0\r\n\r\n",
    "compressed": OK + b"transfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "coding-twice": OK + b"transfer-encoding: chunked\r\n" * 2 + b"\r\n0\r\n\r\n",
    "no-length": OK + b"\r\nhello",
    "chunk-of-letters": CODED + b"zz\r\nhello\r\n0\r\n\r\n",
    "chunk-with-sign": CODED + b"-5\r\nhello\r\n0\r\n\r\n",
    "chunk-with-prefix": CODED + b"0x5\r\nhello\r\n0\r\n\r\n",
    "chunk-of-everything": CODED + b"f" * 17 + b"\r\nhello\r\n0\r\n\r\n",
    "chunk-with-line-feed": CODED + b"5\nhello\n0\n\n",
    "chunk-longer-than-it-says": CODED + b"3\r\nhello\r\n0\r\n\r\n",
    "line-feeds": b"HTTP/1.1 200 OK\ncontent-length: 5\n\nhello",
    "folded-header": OK + b"x: a\r\n b\r\ncontent-length: 5\r\n\r\nhello",
    "space-before-colon": OK + b"content-length : 5\r\n\r\nhello",
    "nul": OK + b"x: a\0b\r\ncontent-length: 5\r\n\r\nhello",
    "carriage-return": OK + b"x: a\rb: c\r\ncontent-length: 5\r\n\r\nhello",
    "long-header": OK + b"a: " + b"x" * 70_000 + b"\r\ncontent-length: 5\r\n\r\nhello",
    "many-headers": OK + b"a: b\r\n" * 12_000 + b"content-length: 5\r\n\r\nhello",
    "many-interims": b"HTTP/1.1 100 Continue\r\n\r\n" * 3_000 + OK,
}


@pytest.mark.parametrize("case", UNUSABLE)
@pytest.mark.parametrize("size", [1_000_000, 1])
def test_an_answer_of_an_engine_that_is_ambiguous_is_no_answer(case: str, size: int) -> None:
    data = UNUSABLE[case]
    reader = ResponseReader(max_head_bytes=65536)
    with pytest.raises(EngineProtocolError):
        for at in range(0, len(data), size):
            reader.feed(data[at : at + size])
    assert not reader.complete
    assert not reader.reusable


@pytest.mark.parametrize("size", [1_000_000, 1])
def test_a_second_answer_behind_the_first_is_dropped_with_the_connection(size: int) -> None:
    first = OK + b"content-length: 5\r\n\r\nhello"
    data = first + OK + b"content-length: 3\r\n\r\nbad"
    reader = ResponseReader(max_head_bytes=65536)
    for at in range(0, len(data), size):
        reader.feed(data[at : at + size])
    assert (reader.take(), reader.complete, reader.reusable) == (b"hello", True, False)
