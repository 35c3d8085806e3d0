"""What passes through: byte for byte, whatever the pieces; and assembled answers."""

from __future__ import annotations

import json
from typing import Any

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from stub_fleet import Play, Script, good
from worlds import World, fleet_config, play

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": True}
TEXT = "漢字 \U0001f468\u200d\U0001f469\u200d\U0001f467 e\u0301 \U0001f1e9\U0001f1ea \u2028 end"


def chat_events(text: str = TEXT) -> list[bytes]:
    """A chat stream, one character an event, as an engine writes it: raw UTF-8, compact."""

    def event(choices: list[Any], **more: Any) -> bytes:
        body = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "choices": choices} | more
        compact = json.dumps(body, ensure_ascii=False, separators=(",", ":"))
        return b"data: " + compact.encode() + b"\n\n"

    events = [event([{"index": 0, "delta": {"role": "assistant", "content": ""}}])]
    events += [event([{"index": 0, "delta": {"content": c}, "finish_reason": None}]) for c in text]
    events.append(event([{"index": 0, "delta": {"content": ""}, "finish_reason": "stop"}]))
    usage = {"prompt_tokens": 5, "completion_tokens": len(text) + 1, "total_tokens": 0}
    events.append(event([], usage=usage))
    events.append(b"data: [DONE]\n\n")
    return events


def sending(pieces: list[bytes], *, wait: float = 0.0) -> Script:
    """A decoder that writes these pieces of body, each in a chunk and a write of its own."""

    async def script(play_: Play) -> None:
        if play_.leg not in ("decode", "whole"):
            await good(play_)
            return
        await play_.hdr()
        for piece in pieces:
            await play_.chunk(piece)
            if wait:
                await trio.sleep(wait)
        await play_.send(b"0\r\n\r\n")

    return script


def expected(events: list[bytes], *, usage: bool) -> bytes:
    return b"".join(e for e in events if usage or b'"choices":[]' not in e)


@pytest.mark.parametrize("usage", [True, False])
@pytest.mark.parametrize("size", [1, 7, 64, 10**6])
@pytest.mark.parametrize("wait", [0.0, 0.001])
def test_any_pieces_give_the_same_bytes(size: int, usage: bool, wait: float) -> None:
    events = chat_events()
    whole = b"".join(events)
    pieces = [whole[at : at + size] for at in range(0, len(whole), size)]

    async def body(world: World) -> None:
        world.script(sending(pieces, wait=wait))
        ask = CHAT | ({"stream_options": {"include_usage": True}} if usage else {})
        answer = await world.post(ask, "/v1/chat/completions")
        assert answer.body == expected(events, usage=usage)
        assert answer.text == TEXT
        assert answer.complete
        assert world.row.completion_tokens == len(TEXT) + 1
        assert world.row.prompt_tokens == 5

    play(body)


@settings(deadline=None, max_examples=60)
@given(cut=st.integers(1, 600), usage=st.booleans())
def test_every_split_position(cut: int, usage: bool) -> None:
    events = chat_events("漢\U0001f468e\u0301")
    whole = b"".join(events)

    async def body(world: World) -> None:
        world.script(sending([whole[:cut], whole[cut:]] if cut < len(whole) else [whole]))
        ask = CHAT | ({"stream_options": {"include_usage": True}} if usage else {})
        answer = await world.post(ask, "/v1/chat/completions")
        assert answer.body == expected(events, usage=usage)

    play(body)


@pytest.mark.parametrize("size", [200_000, 1_000_000, 8_000_000])
@pytest.mark.parametrize("first", [True, False])
def test_a_huge_event_passes(size: int, first: bool) -> None:
    async def body(world: World) -> None:
        events = chat_events("ab")
        huge = chat_events("x" * 1)[1].replace(b'"x"', b'"' + b"y" * size + b'"')
        events.insert(1 if first else 2, huge)
        world.script(sending(events))
        answer = await world.post(CHAT, "/v1/chat/completions")
        assert answer.body == expected(events, usage=False)
        assert answer.complete

    play(body)


@pytest.mark.parametrize("stream", [True, False])
def test_an_event_over_the_cap_is_a_clean_error(stream: bool) -> None:
    async def body(world: World) -> None:
        huge = chat_events("x")[1].replace(b'"x"', b'"' + b"y" * 300_000 + b'"')
        world.script(sending([*chat_events("ab")[:2], huge]))
        answer = await world.post(CHAT | {"stream": stream}, "/v1/chat/completions")
        assert answer.error["code"] == "response_too_large"
        assert "serving.max_response_bytes" in answer.error["message"]
        assert len(world.row.attempts) == 1
        assert not answer.done

    play(body, fleet_config(max_response_bytes=200_000, max_attempts=3))


def test_comments_and_vendor_events_pass_untouched() -> None:
    async def body(world: World) -> None:
        events = chat_events("ab")
        events[2:2] = [
            b": ping\n\n",
            b'event: note\ndata: {"x":1}\n\n',
            b"id: 7\r\ndata: {}\r\n\r\n",
        ]
        world.script(sending(events))
        answer = await world.post(CHAT, "/v1/chat/completions")
        assert answer.body == expected(events, usage=False)

    play(body)


def test_text_that_looks_like_the_protocol_is_text() -> None:
    text = 'data: [DONE]\n\n{"error": {"code": 500}} "usage":{"prompt_tokens":1}'

    async def body(world: World) -> None:
        events = chat_events(text)
        one = chat_events("x")[1].replace(b'"x"', json.dumps(text).encode())
        events.insert(2, one)
        world.script(sending(events))
        answer = await world.post(CHAT, "/v1/chat/completions")
        assert answer.body == expected(events, usage=False)
        assert answer.complete

    play(body)


def test_all_that_one_read_brings_goes_out_in_one_send() -> None:
    async def body(world: World) -> None:
        events = chat_events("abcdefgh")
        sends: list[bytes] = []
        whole = b"".join(events[2:])

        async def script(play_: Play) -> None:
            if play_.leg != "decode":
                await good(play_)
                return
            await play_.hdr()
            await play_.chunk(events[0] + events[1])
            await trio.sleep(1)
            frames = b"".join(b"%x\r\n%b\r\n" % (len(e), e) for e in events[2:])
            await play_.send(frames + b"0\r\n\r\n")

        world.script(script)
        client = await world.connect()
        await client.ask(CHAT, "/v1/chat/completions")
        await trio.sleep(0.5)
        receive = client.stream.receive_some
        await receive()
        await trio.sleep(1)
        sends.append(await receive())
        assert sends[0].count(b"data: ") == whole.count(b"data: ") - 1  # usage was not asked for
        assert sends[0].endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
        client.close()

    play(body)


TOOLS: list[dict[str, Any]] = [
    {"role": "assistant", "content": ""},
    {"reasoning_content": "let me "},
    {"reasoning_content": "see"},
    {"content": "Calling"},
    {
        "tool_calls": [
            {
                "index": 0,
                "id": "a",
                "type": "function",
                "function": {"name": "f", "arguments": '{"x":1}'},
            }
        ]
    },
    {
        "tool_calls": [
            {
                "index": 1,
                "id": "b",
                "type": "function",
                "function": {"name": "g", "arguments": '{"y"'},
            }
        ]
    },
    {"tool_calls": [{"index": 1, "function": {"arguments": ":[2,"}}]},
    {"tool_calls": [{"index": 1, "function": {"arguments": "3]}"}}]},
    {"refusal": None, "vendor": {"k": 1}},
]


def test_an_assembled_answer_loses_nothing() -> None:
    async def body(world: World) -> None:
        events: list[dict[str, Any]] = []
        for n, delta in enumerate(TOOLS):
            logprobs = {"content": [{"token": f"t{n}", "logprob": -0.5, "top_logprobs": []}]}
            choice = {"index": 0, "delta": delta, "logprobs": logprobs, "finish_reason": None}
            events.append({"id": "c", "created": 7, "model": "m", "choices": [choice], "vendor": n})
        events[-1]["choices"][0]["finish_reason"] = "tool_calls"
        usage = {"prompt_tokens": 5, "completion_tokens": 9, "total_tokens": 14}
        events.append({"id": "c", "choices": [], "usage": usage})
        pieces = [b"data: " + json.dumps(e).encode() + b"\n\n" for e in events]
        world.script(sending([*pieces, b"data: [DONE]\n\n"]))
        answer = await world.post(CHAT | {"stream": False}, "/v1/chat/completions")
        assert answer.headers["content-type"] == "application/json"
        whole = answer.json
        assert whole["object"] == "chat.completion"
        assert whole["usage"] == usage
        (choice,) = whole["choices"]
        assert choice["finish_reason"] == "tool_calls"
        assert len(choice["logprobs"]["content"]) == len(TOOLS)
        message = choice["message"]
        assert message["content"] == "Calling"
        assert message["reasoning_content"] == "let me see"
        assert message["vendor"] == {"k": 1}
        assert [(c["id"], c["function"]) for c in message["tool_calls"]] == [
            ("a", {"name": "f", "arguments": '{"x":1}'}),
            ("b", {"name": "g", "arguments": '{"y":[2,3]}'}),
        ]

    play(body)


@pytest.mark.parametrize("chat", [True, False])
@pytest.mark.parametrize(
    "limits",
    [
        {},
        {"max_tokens": 9},
        {"max_completion_tokens": 9},
        {"max_tokens": 9, "max_completion_tokens": 8},
        {"max_tokens": None},
        {"max_completion_tokens": None},
    ],
)
def test_the_prefill_is_one_token_and_the_decode_the_clients_own(
    chat: bool, limits: dict[str, Any]
) -> None:
    more = {
        "stream": True,
        "stream_options": {"include_usage": True},
        "min_tokens": 4,
        "stop": ["never"],
        "vendor_field": {"deep": [1, 2.50, "\u00e9"]},
        "temperature": 0.0,
    }

    async def body(world: World) -> None:
        ask = CHAT | more | limits if chat else {"model": "m", "prompt": "x"} | more | limits
        path = "/v1/chat/completions" if chat else "/v1/completions"
        answer = await world.post(ask, path)
        assert answer.done
        prefill = world.stubs.legs("prefill")[0].body
        decode = world.stubs.legs("decode")[0].body
        bounds = [prefill.get("max_tokens"), prefill.get("max_completion_tokens")]
        assert {b for b in bounds if b is not None} == {1}
        assert prefill["stream"] is False
        assert not {"min_tokens", "stream_options", "stop"} & prefill.keys()
        handoff = decode.pop("kv_transfer_params")
        assert handoff["remote_engine_id"] == "p0"
        assert decode == ask
        for field in ("messages", "prompt", "vendor_field", "temperature"):
            assert prefill.get(field) == ask.get(field)

    play(body)


@pytest.mark.parametrize("stream", [True, False])
def test_one_engine_serves_both_phases_in_one_plain_leg(stream: bool) -> None:
    async def body(world: World) -> None:
        answer = await world.post({"model": "m", "prompt": "x", "max_tokens": 3, "stream": stream})
        assert answer.text == " t0 t1 t2"
        assert [seen.leg for seen in world.stubs.seen] == ["tokenize", "whole"]
        assert "kv_transfer_params" not in world.stubs.seen[1].body
        assert world.row.prefill_ttft_s is not None

    config = fleet_config(prefill=0, decode=1)
    play(body, config)
