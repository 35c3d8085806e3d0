"""A stream on its way to the client: what passes, what is held, and what the router learns."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from wire_streams import (
    DONE,
    ERROR,
    ROLE,
    USAGE,
    chat_chunk,
    completion_chunk,
    completion_stream,
    cut,
    event,
    usage_chunk,
    with_line_ends,
)

from narwhal.model import FailureClass, ResponseTooLarge, Route, StreamFailed
from narwhal.wire.assembly import Assembler
from narwhal.wire.decode import DecodeStream, Usage
from narwhal.wire.errors import parse_engine_error

COUNT = Usage(7, 3)


def stream(
    route: Route = Route.COMPLETIONS, *, strip_usage: bool = True, max_held: int = 1 << 24
) -> DecodeStream:
    return DecodeStream(route=route, strip_usage=strip_usage, max_held=max_held)


def facts(decode: DecodeStream) -> tuple[object, ...]:
    error = decode.error and (str(decode.error), decode.error.code, body_of(decode))
    return decode.first_token, decode.done, decode.tokens, decode.usage, error


def body_of(decode: DecodeStream) -> bytes:
    return decode.error.body if isinstance(decode.error, StreamFailed) else b""


def run(decode: DecodeStream, *pieces: bytes) -> bytes:
    return b"".join(decode.feed(piece) for piece in pieces)


def test_a_stream_passes_as_it_is_but_for_the_usage_the_router_asked_for() -> None:
    events = completion_stream(" a", "", " \u65e5")
    decode = stream()
    assert run(decode, *events, event(usage_chunk()), DONE) == b"".join([*events, DONE])
    assert facts(decode) == (True, True, 3, COUNT, None)
    decode.finish()


def test_the_usage_a_client_asked_for_passes() -> None:
    events = [*completion_stream(" a"), event(usage_chunk()), DONE]
    decode = stream(strip_usage=False)
    assert run(decode, *events) == b"".join(events)
    assert decode.usage == COUNT


def test_usage_on_every_chunk_passes_and_the_last_counts() -> None:
    chunks = [{**completion_chunk("a"), "usage": {**USAGE, "completion_tokens": n}} for n in (1, 2)]
    events = [event(chunk) for chunk in chunks]
    for strip in (True, False):
        decode = stream(strip_usage=strip)
        assert run(decode, *events, DONE) == b"".join([*events, DONE])
        assert decode.usage == Usage(7, 2)
        assert decode.tokens == 2


@pytest.mark.parametrize("count", [-1, 2**31, 10**400, 1.0, True, "7", None])
@pytest.mark.parametrize("name", ["prompt_tokens", "completion_tokens"])
def test_usage_that_cannot_be_is_no_usage(name: str, count: object) -> None:
    wrong = {**usage_chunk(), "usage": {**USAGE, name: count}}
    decode = stream()
    run(decode, *completion_stream(" a"), event(wrong), DONE)
    assert decode.usage is None


@pytest.mark.parametrize("spaced", [True, False])
def test_usage_that_is_null_on_every_chunk_is_no_usage(spaced: bool) -> None:
    chunk = {**completion_chunk("a"), "usage": None}
    events = [event(chunk, spaced=spaced) for _ in range(3)]
    decode = stream()
    assert run(decode, *events, event(usage_chunk()), DONE) == b"".join([*events, DONE])
    assert facts(decode) == (True, True, 3, COUNT, None)


def test_nothing_passes_before_the_first_token_and_then_everything() -> None:
    meta = event({"choices": [], "prompt_filter_results": []})
    comment = b": ping\n\n"
    decode = stream(Route.CHAT)
    assert run(decode, comment, event(ROLE), meta) == b""
    assert not decode.first_token
    first = event(chat_chunk({"content": "a"}))
    assert decode.feed(first[:20]) == b""
    assert decode.feed(first[20:]) == comment + event(ROLE) + meta + first
    assert decode.first_token
    assert decode.tokens == 1


@pytest.mark.parametrize(
    "delta",
    [
        {"content": ""},
        {"content": "a"},
        {"reasoning": "a"},
        {"reasoning_content": ""},
        {"tool_calls": [{"index": 0, "function": {"arguments": ""}}]},
        {"refusal": "no"},
        {"role": "assistant", "content": "a"},
        {"role": "assistant", "reasoning": "a"},
        {"role": None, "content": ""},
        {},
    ],
)
def test_a_delta_that_is_a_token(delta: dict[str, Any]) -> None:
    decode = stream(Route.CHAT)
    decode.feed(event(chat_chunk(delta)))
    assert decode.first_token


@pytest.mark.parametrize(
    "delta",
    [
        {"role": "assistant"},
        {"role": "assistant", "content": ""},
        {"role": "assistant", "content": None, "tool_calls": [], "refusal": None, "x": {}},
    ],
)
def test_a_delta_that_only_announces_a_role(delta: dict[str, Any]) -> None:
    decode = stream(Route.CHAT)
    decode.feed(event({**chat_chunk(delta), "prompt_token_ids": [1, 2]}))
    assert not decode.first_token
    ended = stream(Route.CHAT)
    ended.feed(event(chat_chunk(delta, "stop")))
    assert ended.first_token
    counted = stream(Route.CHAT)
    counted.feed(event(chat_chunk(delta, token_ids=[5])))
    assert counted.first_token


@pytest.mark.parametrize(
    "chunk",
    [
        {"choices": []},
        {"choices": None},
        {"choices": {}},
        {"choices": [None, 5]},
        {"choices": [{"index": 0}]},
        {"choices": [{"index": 0, "text": None, "delta": None}]},
        {"choices": [{"index": 0, "text": None, "delta": "x"}]},
        {"choices": [], "usage": USAGE},
        {},
    ],
)
@pytest.mark.parametrize("route", list(Route))
def test_metadata(route: Route, chunk: dict[str, Any]) -> None:
    decode = stream(route, strip_usage=False)
    assert decode.feed(event(chunk)) == b""
    assert not decode.first_token
    token = event(completion_chunk("a") if route is Route.COMPLETIONS else chat_chunk({}))
    assert decode.feed(token) == event(chunk) + token


def test_a_usage_event_before_the_first_token_is_not_forwarded_either() -> None:
    decode = stream()
    events = completion_stream("a")
    assert run(decode, event(usage_chunk()), *events) == b"".join(events)
    assert decode.usage == COUNT


# The end


def test_it_ends_at_done_whatever_follows() -> None:
    events = completion_stream("a")
    decode = stream()
    assert decode.feed(b"".join([*events, DONE, event(ERROR), b"junk"])) == b"".join(
        [*events, DONE]
    )
    assert run(decode, b"data: more\n\n", *events) == b""
    assert facts(decode) == (True, True, 1, None, None)
    decode.finish()


@pytest.mark.parametrize(
    "done", [b"data: [DONE]\n\n", b"data:[DONE]\n\n", b"data: [DONE] \r\n\r\n"]
)
def test_done_passes_as_the_engine_wrote_it(done: bytes) -> None:
    decode = stream()
    events = completion_stream("a")
    assert run(decode, *events, done) == b"".join([*events, done])
    assert decode.done


def test_a_text_that_says_done_is_a_text() -> None:
    events = completion_stream("[DONE]", "data: [DONE]\n\n", "x")
    decode = stream()
    assert run(decode, b"".join(events)) == b"".join(events)
    assert not decode.done
    assert decode.tokens == 3


@pytest.mark.parametrize("tail", [b"", b"data: [DONE]", b"data: [DONE]\n", b"data: {", b": c\n\n"])
def test_without_done_it_failed(tail: bytes) -> None:
    events = completion_stream("a", "b")
    decode = stream()
    forwarded = run(decode, *events, tail)
    assert forwarded == b"".join(events) + (tail if tail.endswith(b"\n\n") else b"")
    with pytest.raises(StreamFailed, match=r"without \[DONE\]") as caught:
        decode.finish()
    assert caught.value.code == "stream_cut"
    assert caught.value.failure is FailureClass.STREAM
    assert decode.error is caught.value


@pytest.mark.parametrize("before", [b"", event(ROLE), b": ping\n\n"])
def test_done_without_a_token_is_no_answer(before: bytes) -> None:
    decode = stream(Route.CHAT)
    assert decode.feed(before + DONE) == b""
    assert decode.error is not None
    assert decode.error.code == "stream_empty"
    with pytest.raises(StreamFailed):
        decode.finish()


# Errors


def test_an_error_before_the_first_token() -> None:
    decode = stream(Route.CHAT)
    assert run(decode, event(ROLE), event(ERROR), DONE) == b""
    assert decode.error is not None
    assert str(decode.error) == (
        "the engine reported an error in its stream: 500 InternalServerError"
    )
    assert decode.error.code == "stream_error"
    assert parse_engine_error(200, body_of(decode)).message == "Internal server error"


def test_an_error_after_output_lets_pass_what_came_before_it() -> None:
    events = completion_stream("a", "b")
    decode = stream()
    assert decode.feed(events[0]) == events[0]
    assert decode.feed(events[1] + event(ERROR) + DONE) == events[1]
    assert run(decode, DONE, *events) == b""
    assert not decode.done
    assert decode.tokens == 2
    with pytest.raises(StreamFailed, match="500 InternalServerError"):
        decode.finish()


@pytest.mark.parametrize(
    "read",
    [
        event(completion_chunk("b")) + DONE,
        event(completion_chunk("b")) + b": ping\n\n" + DONE,
        event(completion_chunk("b")) + b"\n" + DONE,
        event(completion_chunk("b")).replace(b"\n", b"\r") + DONE,
        event(completion_chunk("b"))[:-2] + b"\r\r" + DONE,
        b"\n" + DONE,
    ],
)
def test_the_end_is_seen_in_the_same_read_as_output(read: bytes) -> None:
    decode = stream()
    decode.feed(event(completion_chunk("a")))
    assert decode.feed(read) == read
    assert decode.done


def test_an_error_in_a_read_of_its_own() -> None:
    decode = stream()
    decode.feed(event(completion_chunk("a")))
    assert decode.feed(event(ERROR)) == b""
    assert decode.error is not None


def test_the_end_of_a_comment_that_looks_like_an_event() -> None:
    token = event(completion_chunk("a"))
    decode = stream()
    assert run(decode, token, b": ", token, token) == token + b": " + token + token
    assert decode.tokens == 2


@pytest.mark.parametrize(
    "error",
    [
        {"error": {"message": "m"}},
        {"error": "m"},
        {"error": {}},
        {"object": "error", "message": "m", "code": 400},
    ],
)
@pytest.mark.parametrize("spaced", [True, False])
def test_forms_of_errors(error: dict[str, Any], spaced: bool) -> None:
    for first in (b"", event(completion_chunk("a"))):
        decode = stream()
        assert decode.feed(first + event(error, spaced=spaced)) == first
        assert decode.error is not None
        assert json.loads(body_of(decode)) == error


@pytest.mark.parametrize(
    "chunk",
    [
        completion_chunk('"error"'),
        completion_chunk("error"),
        completion_chunk('{"error": {"message": "m"}} "usage"'),
        {**completion_chunk("a"), "error": None},
        {**completion_chunk("a"), "error": False},
        completion_chunk("a", vendor={"error": "inner", "usage": {"prompt_tokens": 1}}),
        completion_chunk("a", stop_reason="error"),
        completion_chunk("usage"),
    ],
)
def test_what_only_looks_like_an_error(chunk: dict[str, Any]) -> None:
    events = [event(completion_chunk("a")), event(chunk), event(completion_chunk("b"))]
    decode = stream()
    assert run(decode, *events, DONE) == b"".join([*events, DONE])
    assert facts(decode) == (True, True, 3, None, None)


@pytest.mark.parametrize("data", [b"data: {\n\n", b"data: [1]\n\n", b'data: {"a":"\xff"}\n\n'])
def test_a_malformed_event_fails_before_the_first_token_and_passes_after_it(data: bytes) -> None:
    decode = stream()
    assert decode.feed(data) == b""
    assert decode.error is not None
    assert decode.error.code == "stream_malformed"
    later = stream()
    token = event(completion_chunk("a"))
    broken = data.replace(b"{", b'{"error"').replace(b"[", b'["usage"')
    assert run(later, token, data, broken, DONE) == token + data + broken + DONE
    assert facts(later) == (True, True, 1, None, None)


# Bounds


def test_what_is_held_before_the_first_token_is_bounded() -> None:
    decode = stream(Route.CHAT, max_held=1000)
    roles = [event(ROLE)] * 20
    with pytest.raises(ResponseTooLarge, match=r"1000 bytes .*serving\.max_response_bytes"):
        run(decode, *roles)


@pytest.mark.parametrize("first", [b"", event(completion_chunk("a"))])
@pytest.mark.parametrize("step", [100, 10_000])
def test_an_event_over_the_bound(first: bytes, step: int) -> None:
    long = event(completion_chunk("x" * 2000))
    decode = stream(max_held=1000)
    decode.feed(first)
    with pytest.raises(ResponseTooLarge):
        run(decode, *(long[at : at + step] for at in range(0, len(long), step)))


@pytest.mark.parametrize("first", [b"", event(completion_chunk("a"))])
def test_an_event_without_an_end(first: bytes) -> None:
    decode = stream(max_held=1000)
    assert run(decode, first, b"data: ", b"x" * 994) == first
    with pytest.raises(ResponseTooLarge):
        decode.feed(b"x")


@settings(deadline=None)
@given(
    count=st.integers(0, 4), tail=st.sampled_from(["", "x" * 2000, "x" * 1_000_000]), data=st.data()
)
def test_what_precedes_an_event_over_the_bound_is_sent_on_however_it_was_cut(
    count: int, tail: str, data: st.DataObject
) -> None:
    """Found with the small events and the large one in the same read, which took all with it."""
    small = b"".join(completion_stream(*"a" * count)) if count else b""
    text = small + event(completion_chunk(tail)) + DONE
    decode = stream(max_held=1000)
    output = b""
    pieces = data.draw(st.just([text]) | cut(text[: len(small) + 1200]))
    with contextlib.suppress(ResponseTooLarge):
        for piece in [*pieces, text[sum(map(len, pieces)) :]]:
            output += decode.feed(piece)
        decode.finish()
    assert isinstance(decode.error, ResponseTooLarge) == bool(tail)
    assert output == (small if tail else text)
    assert decode.feed(DONE) == b""


def test_a_read_over_the_bound_is_fine_if_its_events_are_not() -> None:
    events = completion_stream(*("x" * 50 for _ in range(20)))
    decode = stream(max_held=1000)
    assert run(decode, events[0], b"".join(events[1:])) == b"".join(events)


def test_an_event_of_eight_mebibytes_passes() -> None:
    events = completion_stream("a", "x" * (8 << 20), "b")
    text = b"".join(events)
    decode = stream()
    assert run(decode, *(text[at : at + 65536] for at in range(0, len(text), 65536))) == text
    assert decode.tokens == 3


# Whatever the pieces

ORDINARY = st.sampled_from(
    [
        event(completion_chunk("a")),
        event(completion_chunk("\u65e5\U0001f600\u0301"), spaced=False),
        event(completion_chunk('[DONE] "error" "usage"')),
        event(completion_chunk("error")),
        event({**completion_chunk("a"), "usage": None}),
        event({**completion_chunk("a"), "usage": USAGE}),
        event(chat_chunk({"content": ""})),
        b": ping\n\n",
        b"event: message\nid: 1\ndata: {}\n\n",
        b"data: not json\n\n",
        b'data: {"choices":[{"text":\ndata: "b"}]}\n\n',
        b"\n",
        event(completion_chunk("c"), spaced=True),
    ]
)
ENDINGS = st.sampled_from(
    [
        DONE,
        event(usage_chunk()) + DONE,
        event(ERROR) + DONE,
        b"data: [DO",
        b"",
        DONE + b"data: after\n\n",
        event(usage_chunk()) + event(completion_chunk("z")),
    ]
)


@settings(deadline=None, max_examples=300)
@given(
    parts=st.tuples(
        st.sampled_from([b"", event(ROLE), event({"choices": []}) + b": x\n\n"]),
        st.lists(ORDINARY, max_size=6).map(b"".join),
        ENDINGS,
    ),
    line_end=st.sampled_from([b"\n", b"\r\n", b"\r"]),
    strip=st.booleans(),
    route=st.sampled_from(Route),
    data=st.data(),
)
def test_any_pieces_give_the_same_output_and_facts(
    parts: tuple[bytes, ...], line_end: bytes, strip: bool, route: Route, data: st.DataObject
) -> None:
    text = with_line_ends(parts, line_end)
    whole = stream(route, strip_usage=strip)
    expected = whole.feed(text)
    pieces = stream(route, strip_usage=strip)
    output = b""
    for piece in data.draw(cut(text)):
        output += pieces.feed(piece)
        assert expected.startswith(output)
    assert output == expected
    assert facts(pieces) == facts(whole)


@settings(deadline=None)
@given(texts=st.lists(st.text(max_size=6), min_size=1), data=st.data(), strip=st.booleans())
def test_a_good_stream_passes_whole(texts: list[str], data: st.DataObject, strip: bool) -> None:
    events = completion_stream(*texts)
    sent = b"".join([*events, event(usage_chunk()), DONE])
    decode = stream(strip_usage=strip)
    output = run(decode, *data.draw(cut(sent)))
    kept = [*events, DONE] if strip else [*events, event(usage_chunk()), DONE]
    assert output == b"".join(kept)
    assert facts(decode) == (True, True, len(texts), COUNT, None)
    decode.finish()


@settings(deadline=None)
@given(
    route=st.sampled_from(Route),
    events=st.lists(
        st.sampled_from(
            [
                event(ROLE),
                event(chat_chunk({"content": "a"})),
                event(completion_chunk('"usage"')),
                event({**completion_chunk("b"), "usage": USAGE}),
                event(usage_chunk()),
                event({"choices": []}),
                event(ERROR),
                b": ping\n\n",
                DONE,
            ]
        ),
        max_size=8,
    ),
)
def test_an_assembler_learns_the_same_from_the_same_stream(
    route: Route, events: list[bytes]
) -> None:
    decode = stream(route)
    assembler = Assembler(route=route, template=None, max_bytes=1 << 20)
    decode.feed(b"".join(events))
    with contextlib.suppress(StreamFailed):
        assembler.feed(b"".join(events))
    assert (assembler.first_token, assembler.done) == (decode.first_token, decode.done)
    assert (assembler.tokens, assembler.usage) == (decode.tokens, decode.usage)
    assert str(assembler.error) == str(decode.error)


@settings(deadline=None)
@given(st.lists(st.binary(max_size=20) | st.sampled_from([b"data: {", b"}\n\n", b"\r", DONE])))
def test_any_bytes_pass_or_fail_the_stream(pieces: list[bytes]) -> None:
    decode = stream(max_held=200)
    token = event(completion_chunk("a"))
    try:
        output = run(decode, token, *pieces)
        assert output.startswith(token)
        assert (token + b"".join(pieces)).startswith(output)
    except ResponseTooLarge:
        assert sum(map(len, pieces)) > 200 - len(token)
