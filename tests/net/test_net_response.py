"""The response parser: what it accepts, what it refuses, and that cuts in the input are unseen."""

from __future__ import annotations

import contextlib
import itertools
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from narwhal.model import EngineProtocolError
from narwhal.net.response import ResponseReader

OK = b"HTTP/1.1 200 OK\r\n"
SIZED = OK + b"Content-Length: 5\r\nX-A: b\r\n\r\nhello"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n2\r\nlo\r\n0\r\n\r\n"


def read(data: bytes, *cuts: int, head_only: bool = False, limit: int = 65536) -> ResponseReader:
    reader = ResponseReader(max_head_bytes=limit, head_only=head_only)
    edges = [0, *sorted(cut % len(data) for cut in cuts), len(data)]
    for begin, end in itertools.pairwise(edges):
        if begin < end:
            reader.feed(data[begin:end])
    return reader


@pytest.mark.parametrize("data", [SIZED, CHUNKED])
def test_a_complete_response(data: bytes) -> None:
    reader = read(data)
    assert (reader.status, reader.take()) == (200, b"hello")
    assert reader.head_complete
    assert reader.complete
    assert reader.reusable


def test_header_names_are_lower_case() -> None:
    assert read(SIZED).headers == [(b"content-length", b"5"), (b"x-a", b"b")]


@given(st.sampled_from([SIZED, CHUNKED]), st.lists(st.integers(0, 200), max_size=6))
def test_cuts_in_the_input_change_nothing(data: bytes, cuts: list[int]) -> None:
    whole, cut = read(data), read(data, *cuts)
    assert whole.take() == cut.take()
    assert (whole.status, whole.headers, whole.complete, whole.reusable) == (
        cut.status,
        cut.headers,
        cut.complete,
        cut.reusable,
    )


@given(st.binary(max_size=200), st.lists(st.integers(0, 200), max_size=3))
def test_any_bytes_parse_or_are_the_one_error(data: bytes, cuts: list[int]) -> None:
    for start in (b"", OK, OK + b"transfer-encoding: chunked\r\n\r\n"):
        with contextlib.suppress(EngineProtocolError):
            read(start + data + b"\n", *cuts)


@pytest.mark.parametrize("cut", range(len(SIZED)))
def test_every_prefix_is_incomplete(cut: int) -> None:
    reader = read(SIZED[:cut]) if cut else ResponseReader(max_head_bytes=100)
    assert not reader.complete
    assert not reader.reusable


@pytest.mark.parametrize(
    "data",
    [
        SIZED.replace(b"X-A: b", b"Connection: close"),
        CHUNKED.replace(b"\r\n\r\n", b"\r\nconnection: Close\r\n\r\n", 1),
        SIZED.replace(b"1.1", b"1.0"),
        SIZED + b"H",
        SIZED + SIZED,
        CHUNKED + b"garbage",
        SIZED.replace(b"X-A: b", b"Connection: close") + b"x",
    ],
    ids=["close", "close-chunked", "1.0", "surplus", "second", "garbage", "close-and-more"],
)
@pytest.mark.parametrize("at_once", [True, False])
def test_some_connections_must_not_be_used_again(data: bytes, at_once: bool) -> None:
    cut = re.search(b"hello|0\r\n\r\n", data)
    assert cut is not None
    reader = read(data) if at_once else read(data, cut.end())
    assert reader.complete
    assert reader.take() == b"hello"
    assert not reader.reusable


@pytest.mark.parametrize("data", [SIZED, CHUNKED])
@pytest.mark.parametrize("ends", [b"\r\n", b"\n\r\n", b"\r"])
@pytest.mark.parametrize("at_once", [True, False])
def test_line_ends_after_a_response_are_nothing(data: bytes, ends: bytes, at_once: bool) -> None:
    assert read(data + ends, *([] if at_once else [len(data)])).reusable
    assert not read(data + ends + b"H", *([] if at_once else [len(data)])).reusable


@pytest.mark.parametrize("data", [SIZED, CHUNKED, OK + b"\r\nhello"])
@given(cuts=st.lists(st.integers(0, 200), max_size=3))
def test_what_follows_the_head_of_an_answer_to_head_is_no_body(
    data: bytes, cuts: list[int]
) -> None:
    reader = read(data, *cuts, head_only=True)
    assert reader.complete
    assert reader.take() == b""
    assert not reader.reusable


HEADS = [
    OK + b"content-length: 5\r\n\r\n",
    b"HTTP/1.1 200 %b\r\ncontent-length: 5\r\n\r\n" % (b"y" * 80),
    b"HTTP/1.1 100 Continue\r\n\r\n" * 4 + OK + b"content-length:      5\r\n\r\n",
    OK + b"a:\r\n" * 20 + b"content-length: 5\r\n\r\n",
]


@pytest.mark.parametrize("head", HEADS)
@given(cuts=st.lists(st.integers(0, 200), max_size=3))
def test_the_bound_of_a_head_is_exact_however_it_is_cut(head: bytes, cuts: list[int]) -> None:
    """Found with a head over the bound that came in one read, which was not held to it."""
    assert read(head + b"hello", *cuts, limit=len(head)).take() == b"hello"
    with pytest.raises(EngineProtocolError, match=f"larger than {len(head) - 1} bytes"):
        read(head + b"hello", *cuts, limit=len(head) - 1)


def test_interim_responses_are_skipped() -> None:
    interim = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early\r\nlink: x\r\n\r\n"
    reader = read(interim + SIZED)
    assert reader.status == 200
    assert (b"link", b"x") not in reader.headers
    assert reader.reusable


@pytest.mark.parametrize("status", [b"204 No Content", b"304 Not Modified"])
def test_statuses_without_a_body_are_complete(status: bytes) -> None:
    reader = read(SIZED[: -len(b"hello")].replace(b"200 OK", status).replace(b"5", b"0"))
    assert reader.complete
    assert reader.reusable


def test_an_answer_to_head_is_complete_and_its_connection_done_with() -> None:
    reader = read(SIZED[: -len(b"hello")], head_only=True)
    assert reader.complete
    assert not reader.reusable


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (OK + b"\r\nhello", "neither a length nor chunks"),
        (OK + b"connection: close\r\n\r\nhello", "neither a length nor chunks"),
        (SIZED.replace(b"X-A: b", b"transfer-encoding: chunked"), "Transfer-Encoding"),
        (SIZED.replace(b"X-A: b", b"content-length: 6"), "Content-Length"),
        (CHUNKED.replace(b"3\r\nhel", b"zz\r\nhel"), "chunk size"),
        (b"HTTP/1.1 101 X\r\nupgrade: h2c\r\nconnection: upgrade\r\n\r\n", "switched protocols"),
        (b"hello", "HTTP"),
        (b"\x16\x03\x01\x02\x00", "HTTP"),
        (OK + b"x: " + b"y" * 3000, "larger than 1000"),
        (OK + b"x: " + b"y" * 3000 + b"\r\ncontent-length: 0\r\n\r\n", "larger than 1000"),
        (b"HTTP/1.1 100 Continue\r\n\r\n" * 50, "larger than 1000"),
    ],
)
def test_what_is_not_a_response(data: bytes, says: str) -> None:
    with pytest.raises(EngineProtocolError, match=says):
        read(data, limit=1000)
    with pytest.raises(EngineProtocolError, match=says):
        read(data, *range(0, len(data), 7), limit=1000)
