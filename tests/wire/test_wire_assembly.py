"""A whole answer out of a stream equals the whole answer the engine would have given."""

from __future__ import annotations

import json
import sys
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
    head,
    usage_chunk,
    with_line_ends,
)

from narwhal.model import ResponseTooLarge, Route, StreamFailed
from narwhal.wire.assembly import Assembler, Usage
from narwhal.wire.vllm import parse_prefill

DESCRIPTOR = {
    "do_remote_prefill": True,
    "remote_block_ids": [[7]],
    "remote_engine_id": "e",
    "remote_request_id": "r",
    "remote_host": "h",
    "remote_port": 1,
}


def whole(route: Route, choice: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """A whole answer with every key that vLLM 0.32 writes, in its order."""
    kind = "chat.completion" if route is Route.CHAT else "text_completion"
    if route is Route.CHAT:
        message: dict[str, Any] = {
            "role": "assistant", "content": None, "refusal": None, "annotations": None,
            "audio": None, "function_call": None, "reasoning": None,
        }  # fmt: skip
        defaults: dict[str, Any] = {
            "index": 0, "message": message, "logprobs": None, "finish_reason": "stop",
            "stop_reason": None, "token_ids": None, "routed_experts": None,
        }  # fmt: skip
        message.update(choice.pop("message"))
    else:
        defaults = {
            "index": 0, "text": "", "logprobs": None, "finish_reason": "length",
            "stop_reason": None, "token_ids": None, "prompt_logprobs": None,
            "prompt_token_ids": None, "routed_experts": None,
        }  # fmt: skip
    defaults.update(choice)
    answer: dict[str, Any] = {
        **head(kind), "choices": [defaults], "service_tier": None,
        "system_fingerprint": "vllm-0.32.0",
        "usage": {**USAGE, "prompt_tokens_details": None, "completion_tokens_details": None},
        "kv_transfer_params": None, "ec_transfer_params": None, "metrics": None,
    }  # fmt: skip
    if route is Route.CHAT:
        answer |= {"prompt_logprobs": None, "prompt_token_ids": None, "prompt_text": None}
    return {**answer, **fields}


def template_of(answer: dict[str, Any], **prefill: Any) -> Any:
    """What a prefill leg on the same engine teaches: its own token, the same keys."""
    other = json.loads(json.dumps(answer))
    choice = other["choices"][0]
    choice["finish_reason"] = "length"
    if "message" in choice:
        choice["message"].pop("tool_calls", None)
        choice["message"].update({"content": "P", "reasoning": None})
        choice["logprobs"] = None
    else:
        choice["text"] = "P"
    other.update(id="cmpl-P", kv_transfer_params=DESCRIPTOR, **prefill)
    return parse_prefill(json.dumps(other).encode()).template


def assemble(route: Route, template: Any, *chunks: dict[str, Any], **asked: bool) -> dict[str, Any]:
    assembler = Assembler(route=route, template=template, max_bytes=1 << 24, **asked)
    for chunk in chunks:
        assembler.feed(event(chunk))
    kind = "chat.completion.chunk" if route is Route.CHAT else "text_completion"
    assembler.feed(event(usage_chunk(kind)))
    assembler.feed(DONE)
    answer = json.loads(assembler.finish())
    assert isinstance(answer, dict)
    assert assembler.usage == Usage(7, 3)
    return answer


def assert_same(assembled: dict[str, Any], answer: dict[str, Any], *, order: bool = True) -> None:
    assert assembled == answer
    if order:
        assert json.dumps(assembled) == json.dumps(answer)


def test_a_completion() -> None:
    answer = whole(Route.COMPLETIONS, {"text": " a \u65e5\U0001f600", "stop_reason": 5})
    chunks = [completion_chunk(" a "), completion_chunk(""), completion_chunk("\u65e5")]
    last = completion_chunk("\U0001f600", "length", stop_reason=5)
    template = template_of(answer)
    assert_same(assemble(Route.COMPLETIONS, template, *chunks, last), answer)


def test_completion_log_probabilities_and_token_ids() -> None:
    logprobs: dict[str, list[Any]] = {
        "text_offset": [0, 2, 4],
        "token_logprobs": [None, -0.25, -9999.0],
        "tokens": [" a", " b", " c"],
        "top_logprobs": [None, {" b": -0.25, " x": -1.5}, {"index": -0.5}],
    }
    answer = whole(
        Route.COMPLETIONS,
        {
            "text": " a b c",
            "logprobs": logprobs,
            "token_ids": [5, 6, 7],
            "prompt_token_ids": [1, 2],
        },
    )
    chunks = []
    for n, text in enumerate([" a", " b", " c"]):
        part = {key: values[n : n + 1] for key, values in logprobs.items()}
        extra = {"prompt_token_ids": [1, 2]} if n == 0 else {}
        finish = "length" if n == 2 else None
        chunk = completion_chunk(text, finish, token_ids=[5 + n], **extra)
        chunk["choices"][0]["logprobs"] = part
        chunks.append(chunk)
    assert_same(assemble(Route.COMPLETIONS, template_of(answer), *chunks), answer)


def test_the_prompts_log_probabilities_come_from_the_prefill() -> None:
    values = [None, {"5": {"logprob": -0.5, "rank": 1, "decoded_token": "\u65e5"}}]
    answer = whole(Route.COMPLETIONS, {"text": "a", "prompt_logprobs": values})
    chunk = completion_chunk("a", "length")
    assert_same(assemble(Route.COMPLETIONS, template_of(answer), chunk), answer)
    chat = whole(Route.CHAT, {"message": {"content": "a"}}, prompt_logprobs=values)
    chunk = chat_chunk({"content": "a"}, "stop")
    assert_same(assemble(Route.CHAT, template_of(chat), ROLE, chunk), chat)


def test_a_chat() -> None:
    answer = whole(Route.CHAT, {"message": {"content": "Hello \u65e5"}}, prompt_token_ids=[1, 2])
    chunks = [
        {**ROLE, "prompt_token_ids": [1, 2]},
        chat_chunk({"content": "Hel"}),
        chat_chunk({"content": ""}),
        chat_chunk({"content": "lo \u65e5"}),
        chat_chunk({}, "stop", stop_reason=None),
    ]
    assert_same(assemble(Route.CHAT, template_of(answer), *chunks), answer)


def test_an_empty_chat() -> None:
    answer = whole(Route.CHAT, {"message": {"content": ""}})
    assert_same(
        assemble(Route.CHAT, template_of(answer), ROLE, chat_chunk({"content": ""}, "stop")),
        answer,
    )


def test_chat_log_probabilities_on_every_chunk() -> None:
    items = [
        {"token": t, "logprob": -0.125 * n, "bytes": [65], "top_logprobs": [{"token": t}]}
        for n, t in enumerate("abc")
    ]
    answer = whole(Route.CHAT, {"message": {"content": "abc"}, "logprobs": {"content": items}})
    chunks = []
    for n, item in enumerate(items):
        chunk = chat_chunk({"content": item["token"]}, "stop" if n == 2 else None)
        chunk["choices"][0]["logprobs"] = {"content": [item]}
        chunks.append(chunk)
    assert_same(assemble(Route.CHAT, template_of(answer), ROLE, *chunks), answer)


def call(n: int, name: str, arguments: str) -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    return {"id": f"chatcmpl-tool-{n}", "type": "function", "function": function}


CALLS = [call(0, "get_weather", '{"city": "\u6771\u4eac"}'), call(1, "get_time", '{"zone": "JST"}')]


def with_calls(**message: Any) -> dict[str, Any]:
    content = {"content": None, **message, "tool_calls": CALLS}
    return whole(Route.CHAT, {"message": content, "finish_reason": "tool_calls"})


def test_two_tool_calls_whole_in_a_chunk_each() -> None:
    chunks = [chat_chunk({"tool_calls": [{"index": n, **c}]}) for n, c in enumerate(CALLS)]
    assembled = assemble(
        Route.CHAT, template_of(with_calls()), ROLE, *chunks, chat_chunk({}, "tool_calls")
    )
    assert_same(assembled, with_calls(), order=False)


@pytest.mark.parametrize("interleaved", [True, False])
@pytest.mark.parametrize("later", [{}, {"id": None}, {"id": "", "type": "function"}])
def test_two_tool_calls_split_mid_json(interleaved: bool, later: dict[str, Any]) -> None:
    deltas: list[list[dict[str, Any]]] = []
    for n, whole_call in enumerate(CALLS):
        arguments = whole_call["function"]["arguments"]
        first = {**whole_call["function"], "arguments": ""}
        deltas.append([{"index": n, **whole_call, "function": first}])
        deltas[-1] += [
            {"index": n, **later, "function": {"arguments": arguments[at : at + 3]}}
            for at in range(0, len(arguments), 3)
        ]
    flat = [delta for pair in zip(*deltas, strict=False) for delta in pair]
    flat += deltas[0][len(deltas[1]) :] + deltas[1][len(deltas[0]) :]
    chosen = flat if interleaved else [*deltas[0], *deltas[1]]
    text = [chat_chunk({"content": "Let me "}), chat_chunk({"content": "look."})]
    chunks = [chat_chunk({"tool_calls": [delta]}) for delta in chosen]
    answer = with_calls(content="Let me look.")
    assembled = assemble(
        Route.CHAT, template_of(answer), ROLE, *text, *chunks, chat_chunk({}, "tool_calls")
    )
    assert_same(assembled, answer, order=False)


def test_content_beside_tool_calls_is_what_the_engine_has_there() -> None:
    template = template_of(with_calls())
    template["choices"]["message"]["content"] = ""  # with a tool choice that was forced
    chunks = [chat_chunk({"tool_calls": [{"index": n, **c}]}) for n, c in enumerate(CALLS)]
    assembled = assemble(Route.CHAT, template, ROLE, *chunks, chat_chunk({}, "tool_calls"))
    assert_same(assembled, with_calls(content=""), order=False)


@pytest.mark.parametrize("template", [None, template_of(with_calls())])
def test_content_beside_a_call_that_was_forced_is_empty(template: Any) -> None:
    """The prefill's token was text, from which a call could only have become."""
    chunks = [chat_chunk({"content": None, "tool_calls": [{"index": 0, **CALLS[0]}]})]
    chunks.append(chat_chunk({}, "stop"))
    for forced, content in ((True, ""), (False, None)):
        answer = assemble(Route.CHAT, template, ROLE, *chunks, forced_tool=forced)
        assert answer["choices"][0]["message"]["content"] == content
    text = chat_chunk({"content": "x"}, "length")
    answer = assemble(Route.CHAT, template, ROLE, text, forced_tool=True)
    assert answer["choices"][0]["message"]["content"] == "x"


def test_a_call_that_is_cut_behind_its_name_has_empty_arguments() -> None:
    """An engine sends none then, and a client takes it that every call has them."""
    begun = {"index": 0, "id": "call-1", "type": "function", "function": {"name": "weather"}}
    chunks = [chat_chunk({"content": None, "tool_calls": [begun]}), chat_chunk({}, "length")]
    answer = assemble(Route.CHAT, None, ROLE, *chunks)
    (made,) = answer["choices"][0]["message"]["tool_calls"]
    assert made["function"] == {"name": "weather", "arguments": ""}


def test_ids_of_a_prompt_that_nobody_asked_for_are_left_out() -> None:
    """A stream that echoes has them in its first event, a whole answer has not."""
    chunks = [completion_chunk("Hi a", prompt_token_ids=[1, 2]), completion_chunk(" b", "length")]
    answer = whole(Route.COMPLETIONS, {"text": "Hi a b"})
    template = template_of(answer)
    assert_same(assemble(Route.COMPLETIONS, template, *chunks, returns_ids=False), answer)
    asked = whole(Route.COMPLETIONS, {"text": "Hi a b", "prompt_token_ids": [1, 2]})
    assert_same(assemble(Route.COMPLETIONS, template, *chunks), asked)


def test_reasoning_refusal_and_what_only_this_vendor_sends() -> None:
    message = {
        "content": "answer",
        "reasoning": "think hard",
        "refusal": "no no",
        "audio": {"id": "au-1", "data": "QUJD", "expires_at": 9},
        "citations": [{"start": 1}, {"start": 2}],
        "vendor": {"score": 2, "notes": "xy"},
    }
    answer = whole(Route.CHAT, {"message": message, "vendor_choice": "ab"}, vendor_top={"a": 1})
    chunks = [
        chat_chunk({"reasoning": "think "}),
        chat_chunk({"reasoning": "hard", "citations": [{"start": 1}]}),
        chat_chunk({"refusal": "no ", "audio": {"id": "au-1", "data": "QU"}}, vendor_choice="a"),
        chat_chunk({"refusal": "no", "audio": {"id": "au-1", "data": "JD", "expires_at": 9}}),
        chat_chunk({"vendor": {"score": 1, "notes": "x"}}),
        chat_chunk({"content": "ans", "vendor": {"score": 2, "notes": "y"}}),
        {**chat_chunk({"content": "wer", "citations": [{"start": 2}]}), "vendor_top": {"a": 1}},
        chat_chunk({}, "stop", vendor_choice="b"),
    ]
    assembled = assemble(Route.CHAT, template_of(answer), ROLE, *chunks)
    assert_same(assembled, answer, order=False)


def test_reasoning_alone_has_no_content() -> None:
    answer = whole(Route.CHAT, {"message": {"reasoning": "hm"}, "finish_reason": "length"})
    chunk = chat_chunk({"reasoning": "hm"}, "length")
    assert_same(assemble(Route.CHAT, template_of(answer), ROLE, chunk), answer)


def test_choices_are_kept_apart() -> None:
    assembler = Assembler(route=Route.CHAT, template=None, max_bytes=1 << 20)
    order = [(1, "x"), (0, "a"), (1, "y"), (0, "b")]
    for index, text in order:
        assembler.feed(event(chat_chunk({"role": "assistant", "content": text}, index=index)))
    for index in (1, 0):
        assembler.feed(event(chat_chunk({}, "stop", index=index)))
    assembler.feed(DONE)
    choices = json.loads(assembler.finish())["choices"]
    assert [(c["index"], c["message"]["content"]) for c in choices] == [(0, "ab"), (1, "xy")]


def test_without_a_template_there_is_what_every_answer_has() -> None:
    chat = assemble(Route.CHAT, None, ROLE, chat_chunk({"content": "a"}, "stop"))
    assert chat == {
        **head("chat.completion"),
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "a"},
                "logprobs": None,
                "finish_reason": "stop",
            }
        ],
        "usage": USAGE,
        "system_fingerprint": "vllm-0.32.0",
    }
    text = assemble(Route.COMPLETIONS, None, completion_chunk("a", "length"))
    assert text["choices"] == [
        {"index": 0, "text": "a", "logprobs": None, "finish_reason": "length"}
    ]


def test_nothing_of_the_prefill_and_no_transfer_parameters_show() -> None:
    answer = whole(Route.COMPLETIONS, {"text": "a"})
    chunk = {**completion_chunk("a", "length"), "kv_transfer_params": {"secret": 1}}
    assembled = assemble(Route.COMPLETIONS, template_of(answer), chunk)
    assert_same(assembled, answer)
    without = assemble(Route.COMPLETIONS, None, chunk)
    assert "kv_transfer_params" not in without


def test_a_stream_without_usage_makes_an_answer_without() -> None:
    answer = whole(Route.COMPLETIONS, {"text": "a"})
    assembler = Assembler(route=Route.COMPLETIONS, template=template_of(answer), max_bytes=1 << 20)
    assembler.feed(event(completion_chunk("a", "length")) + DONE)
    assert json.loads(assembler.finish())["usage"] is None
    assert assembler.usage is None


def test_null_takes_nothing_away() -> None:
    answer = whole(Route.CHAT, {"message": {"content": "ab", "tool_calls": []}})
    template = template_of(answer)
    template["choices"]["message"]["tool_calls"] = []
    first = chat_chunk({"role": "assistant", "content": "a", "tool_calls": None})
    last = chat_chunk({"content": "b", "role": None}, "stop")
    assembled = assemble(
        Route.CHAT, template, {**first, "service_tier": "x"}, {**last, "service_tier": None}
    )
    assert_same(assembled, {**answer, "service_tier": "x"}, order=False)


# Failures


def fed(*pieces: bytes, route: Route = Route.CHAT, max_bytes: int = 1 << 20) -> Assembler:
    assembler = Assembler(route=route, template=None, max_bytes=max_bytes)
    for piece in pieces:
        assembler.feed(piece)
    return assembler


@pytest.mark.parametrize(
    ("pieces", "code"),
    [
        ([event(ROLE), event(ERROR), DONE], "stream_error"),
        ([event(chat_chunk({"content": "a"})), event(ERROR), DONE], "stream_error"),
        ([event(ROLE), DONE], "stream_empty"),
        ([DONE], "stream_empty"),
        ([b"data: {\n\n"], "stream_malformed"),
        ([b"data: []\n\n"], "stream_malformed"),
        ([b'data: {"a":NaN}\n\n'], "stream_malformed"),
        ([event({"choices": 5})], "stream_malformed"),
        ([event({"choices": [5]})], "stream_malformed"),
        ([event({"choices": [{"index": "0"}]})], "stream_malformed"),
        ([event({"choices": [{"index": 0, "delta": "x"}]})], "stream_malformed"),
        ([b"data: " + b"[" * 100_000 + b"]" * 100_000 + b"\n\n"], "stream_malformed"),
    ],
)
def test_a_stream_that_fails(pieces: list[bytes], code: str) -> None:
    assembler = Assembler(route=Route.CHAT, template=None, max_bytes=1 << 20)
    with pytest.raises(StreamFailed) as caught:
        assembler.feed(b"".join(pieces))
    assert caught.value.code == code
    assert assembler.error is caught.value
    assembler.feed(event(chat_chunk({"content": "a"})) + DONE)
    assert not assembler.done
    with pytest.raises(StreamFailed):
        assembler.finish()


def test_depth_is_a_failure_of_the_stream_wherever_the_stack_ends() -> None:
    limit = sys.getrecursionlimit()
    ends = set()
    for depth in (10, *range(limit // 4, limit - 150, 50), *range(limit - 150, limit)):
        nested = b'{"a":' * depth + b"1" + b"}" * depth
        chunk = b'data: {"choices":[{"index":0,"delta":{"content":"x","v":%b}}]}\n\n' % nested
        assembler = Assembler(route=Route.CHAT, template=None, max_bytes=1 << 20)
        try:
            assembler.feed(chunk + DONE)
            assert nested in assembler.finish()
        except StreamFailed as error:
            ends.add(error.code)
        else:
            ends.add("whole")
    assert ends == {"whole", "stream_malformed"}


def test_depth_that_only_the_parser_can_take(monkeypatch: pytest.MonkeyPatch) -> None:
    def too_deep(*_: object) -> object:
        raise RecursionError

    monkeypatch.setattr("narwhal.wire.assembly.merge", too_deep)
    assembler = Assembler(route=Route.CHAT, template=None, max_bytes=1 << 20)
    with pytest.raises(StreamFailed, match="nested too deeply"):
        assembler.feed(event(ROLE))


@pytest.mark.parametrize("tail", [b"", b"data: [DONE]", b"data: {"])
def test_without_done_it_failed(tail: bytes) -> None:
    assembler = fed(event(chat_chunk({"content": "a"}, "stop")), tail)
    with pytest.raises(StreamFailed, match=r"without \[DONE\]") as caught:
        assembler.finish()
    assert caught.value.code == "stream_cut"
    assert assembler.first_token
    assert not assembler.done


def test_done_without_a_finish_reason_is_an_answer() -> None:
    assembler = fed(event(chat_chunk({"content": "a"})) + DONE + b"data: junk\n\n")
    assert json.loads(assembler.finish())["choices"][0]["finish_reason"] is None
    assert (assembler.done, assembler.tokens) == (True, 1)


def test_what_is_kept_is_bounded_and_envelopes_are_not_kept() -> None:
    chunk = event(chat_chunk({"content": "0123456789"}))
    inside = len(json.dumps(json.loads(chunk[6:])["choices"], separators=(",", ":")))
    assert len(chunk) > 1.5 * inside
    assembler = fed(*[chunk] * 20, max_bytes=20 * inside + len(chunk))
    assert assembler.tokens == 20
    with pytest.raises(ResponseTooLarge, match=r"serving\.max_response_bytes"):
        fed(*[chunk] * 20, max_bytes=18 * inside)
    with pytest.raises(ResponseTooLarge):
        fed(b"data: " + b"x" * 2000, max_bytes=1000)
    with pytest.raises(ResponseTooLarge):
        fed(event(chat_chunk({"content": "x" * 2000})), max_bytes=1000)


def test_a_long_first_event_does_not_widen_the_bound() -> None:
    """As with `return_token_ids`: it has the prompt's ids beside the choices, no other has."""
    first = event({**ROLE, "prompt_token_ids": list(range(1000))})
    chunk = event(chat_chunk({"content": "0123456789" * 10}))
    assert len(first) > 10 * len(chunk)
    with pytest.raises(ResponseTooLarge):
        fed(first, *[chunk] * 60, max_bytes=len(first) + 100)


def test_what_is_new_around_the_choices_is_kept_and_counted() -> None:
    chunks = [{**chat_chunk({"content": "a"}), f"x{n}": "y" * 1000} for n in range(5)]
    with pytest.raises(ResponseTooLarge):
        fed(event(ROLE), *map(event, chunks), max_bytes=5000)
    repeated = [{**chat_chunk({"content": "a"}), "x": "y" * 1000} for _ in range(5)]
    assert fed(event(ROLE), *map(event, repeated), max_bytes=5000).tokens == 5


# Properties

TEXT = st.text(max_size=12)


@st.composite
def messages(draw: st.DrawFn) -> dict[str, Any]:
    message: dict[str, Any] = {}
    for key in draw(st.sets(st.sampled_from(["content", "reasoning", "refusal", "vendor"]))):
        message[key] = draw(st.text(min_size=1, max_size=12))
    count = draw(st.integers(0, 3))
    if count:
        message["tool_calls"] = [call(n, f"f{n}", draw(TEXT)) for n in range(count)]
    if not message:
        message["content"] = ""
    return message


def pieces_of(draw: st.DrawFn, text: str) -> list[str]:
    cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=3)))
    return [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]


@st.composite
def deltas_of(draw: st.DrawFn, message: dict[str, Any]) -> list[dict[str, Any]]:
    """Deltas that stream a message, several fields and tool calls interleaved at random."""
    queues: list[list[dict[str, Any]]] = []
    for key, value in message.items():
        if isinstance(value, str):
            queues.append([{key: piece} for piece in pieces_of(draw, value)])
            continue
        for index, item in enumerate(value):
            first, *rest = pieces_of(draw, item["function"]["arguments"])
            begun = {**item, "function": {**item["function"], "arguments": first}}
            queue = [{"index": index, **begun}]
            queue += [{"index": index, "function": {"arguments": piece}} for piece in rest]
            queues.append([{key: [delta]} for delta in queue])
    deltas = []
    while queues:
        queue = draw(st.sampled_from(queues))
        deltas.append(queue.pop(0))
        if not queue:
            queues.remove(queue)
    return deltas


@settings(deadline=None)
@given(message=messages(), line_end=st.sampled_from([b"\n", b"\r\n"]), data=st.data())
def test_any_way_of_streaming_an_answer_assembles_to_it(
    message: dict[str, Any], line_end: bytes, data: st.DataObject
) -> None:
    answer = whole(Route.CHAT, {"message": message})
    chunks = [ROLE, *(chat_chunk(delta) for delta in data.draw(deltas_of(message)))]
    chunks += [chat_chunk({}, "stop"), usage_chunk("chat.completion.chunk")]
    text = with_line_ends([*map(event, chunks), b": bye\n\n", DONE], line_end)
    assembler = Assembler(route=Route.CHAT, template=template_of(answer), max_bytes=1 << 20)
    for piece in data.draw(cut(text)):
        assembler.feed(piece)
    assert json.loads(assembler.finish()) == answer
    assert (assembler.done, assembler.usage) == (True, Usage(7, 3))
    assert assembler.tokens == len(chunks) - 2


@settings(deadline=None)
@given(st.lists(TEXT, min_size=1), st.data())
def test_texts_are_joined_whatever_the_pieces(texts: list[str], data: st.DataObject) -> None:
    sent = b"".join([*completion_stream(*texts), DONE])
    assembler = fed(*data.draw(cut(sent)), route=Route.COMPLETIONS)
    assert json.loads(assembler.finish())["choices"][0]["text"] == "".join(texts)
    assert assembler.tokens == len(texts)


@settings(deadline=None)
@given(
    st.lists(
        st.fixed_dictionaries(
            {},
            optional={
                "choices": st.lists(
                    st.dictionaries(
                        st.sampled_from(["index", "delta", "text", "logprobs", "finish_reason"]),
                        st.none() | st.integers(0, 2) | TEXT | st.just({"a": "b"}) | st.just([1]),
                    )
                ),
                "usage": st.none() | st.just(USAGE) | TEXT,
                "id": TEXT,
                "x": st.just([{"index": 1}]),
            },
        ),
        max_size=5,
    ),
    st.sampled_from(Route),
)
def test_any_chunks_make_an_answer_or_fail_the_stream(
    chunks: list[dict[str, Any]], route: Route
) -> None:
    assembler = Assembler(route=route, template=None, max_bytes=1 << 20)
    try:
        assembler.feed(b"".join(map(event, chunks)) + DONE)
        answer = json.loads(assembler.finish())
    except StreamFailed:
        assert assembler.error is not None
    else:
        assert answer["object"] in {"chat.completion", "text_completion"}
        assert answer["choices"]
