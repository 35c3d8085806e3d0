"""What a client may send, what it is told, and that nothing it sends can do anything else."""

from __future__ import annotations

import contextlib
import json
import sys
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from narwhal.model import InvalidRequest, Route, UnknownModel
from narwhal.wire.openai import CompletionRequest, models_body, parse_request

if TYPE_CHECKING:
    from collections.abc import Callable


def compact(document: object) -> bytes:
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()


def spaced(document: object) -> bytes:
    return json.dumps(document).encode()


def indented(document: object) -> bytes:
    return json.dumps(document, indent=2).encode()


def completion(**fields: Any) -> dict[str, Any]:
    return {"model": "m", "prompt": "hello", **fields}


def chat(**fields: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": "hello"}], **fields}


def parse(document: dict[str, Any]) -> CompletionRequest:
    route = Route.CHAT if "messages" in document else Route.COMPLETIONS
    return parse_request(route, compact(document), model="m")


def refusal(document: dict[str, Any]) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        parse(document)
    assert caught.value.status == 400
    return caught.value


@pytest.mark.parametrize("dump", [compact, spaced, indented])
def test_fields_are_the_clients_bytes_in_its_order(dump: Callable[[object], bytes]) -> None:
    document = completion(temperature=0.25, vendor={"a": [1, None]}, stop=None, seed=7)
    request = parse_request(Route.COMPLETIONS, dump(document), model="m")
    assert list(request.fields) == list(document)
    assert {key: json.loads(bytes(raw)) for key, raw in request.fields.items()} == document


def test_what_the_router_reads() -> None:
    request = parse(
        completion(stream=True, stream_options={"include_usage": True}, max_tokens=9, n=1)
    )
    assert (request.route, request.model) == (Route.COMPLETIONS, "m")
    assert request.stream
    assert request.include_usage
    assert request.max_tokens == 9
    assert (request.prompt_chars, request.prompt_tokens) == (5, None)


def test_absent_and_null_are_the_same() -> None:
    plain = parse(completion())
    names = ["stream", "stream_options", "max_tokens", "n", "best_of", "kv_transfer_params", "echo"]
    nulls = parse(completion(**dict.fromkeys(names)))
    assert (plain.stream, plain.include_usage, plain.max_tokens) == (False, False, None)
    assert (nulls.stream, nulls.include_usage, nulls.max_tokens) == (False, False, None)
    assert bytes(nulls.fields["max_tokens"]) == b"null"


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, None),
        ({"max_tokens": 3}, 3),
        ({"max_completion_tokens": 4}, 4),
        ({"max_tokens": 3, "max_completion_tokens": 4}, 4),
        ({"max_tokens": 2**31 - 1}, 2**31 - 1),
        ({"max_tokens": 3, "max_completion_tokens": None}, 3),
    ],
)
def test_the_newer_bound_wins_on_the_chat_route(
    fields: dict[str, Any], expected: int | None
) -> None:
    assert parse(chat(**fields)).max_tokens == expected


def test_max_completion_tokens_means_nothing_on_the_other_route() -> None:
    assert parse(completion(max_completion_tokens=4)).max_tokens is None


@pytest.mark.parametrize(
    ("prompt", "chars", "tokens"),
    [
        ("hello", 5, None),
        ("", 0, None),
        ('a\nb\t"c"', 7, None),
        ("日本 é\U0001f600", 5, None),
        ([1, 2, 3], 0, 3),
        ([0], 0, 1),
        ([[5, 6]], 0, 2),
        (["hello"], 5, None),
        (["日本"], 2, None),
    ],
)
@pytest.mark.parametrize("dump", [compact, spaced, indented])
def test_prompts(
    dump: Callable[[object], bytes], prompt: object, chars: int, tokens: int | None
) -> None:
    document = completion(prompt=prompt)
    request = parse_request(Route.COMPLETIONS, dump(document), model="m")
    if isinstance(prompt, str) and "\U0001f600" in prompt:
        chars = len(prompt)
    assert (request.prompt_chars, request.prompt_tokens) == (chars, tokens)
    assert json.loads(bytes(request.fields["prompt"])) == prompt


@pytest.mark.parametrize(
    "prompt",
    [None, 5, True, {}, [], [[]], [-1], [1.5], [1, "a"], [None], [[1], 2], [["a"]], [[[1]]], [{}]],
)
def test_what_is_no_prompt(prompt: object) -> None:
    assert refusal(completion(prompt=prompt)).param == "prompt"


@pytest.mark.parametrize("prompt", [["a", "b"], [[1], [2]], [[1, 2], [3]]])
def test_one_prompt_per_request(prompt: object) -> None:
    error = refusal(completion(prompt=prompt))
    assert error.param == "prompt"
    assert "One prompt per request, got 2" in str(error)


def test_a_conversation_is_measured_by_its_text() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:," + "x" * 1000}}
    call = [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
    messages = [
        {"role": "system", "content": "12345"},
        {"role": "user", "content": [{"type": "text", "text": "é7"}, image]},
        {"role": "assistant", "content": None, "tool_calls": call},
        {"role": "tool", "content": 5},
        {"role": "tool", "content": ["odd"]},
        {"role": "tool"},
    ]
    tools = [{"type": "function", "function": {"name": "f"}}]
    assert parse(chat(messages=messages)).prompt_chars == 5 + 2 + len(compact(call))
    with_tools = parse(chat(messages=messages, tools=tools))
    assert with_tools.prompt_chars == 5 + 2 + len(compact(call)) + len(compact(tools))


@pytest.mark.parametrize("messages", [None, 123, "hi", {}, [], ["hi"], [[1]], [None]])
def test_what_is_no_conversation(messages: object) -> None:
    assert refusal(chat(messages=messages)).param == "messages"


def test_the_chat_route_needs_messages_and_the_other_a_prompt() -> None:
    with pytest.raises(InvalidRequest, match="'messages' is missing"):
        parse_request(Route.CHAT, compact(completion()), model="m")
    with pytest.raises(InvalidRequest, match="'prompt' is missing"):
        parse_request(Route.COMPLETIONS, compact(chat()), model="m")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"stream": "true"}, "stream"),
        ({"stream": 1}, "stream"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": False, "stream_options": {"x": 1}}, "stream_options"),
        ({"stream": True, "stream_options": True}, "stream_options"),
        (
            {"stream": True, "stream_options": {"include_usage": 1}},
            "stream_options.include_usage",
        ),
        ({"stream": True, "stream_options": {"deep": [[]] * 40}}, "stream_options"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -5}, "max_tokens"),
        ({"max_tokens": 2**31}, "max_tokens"),
        ({"max_tokens": 10**400}, "max_tokens"),
        ({"max_completion_tokens": 10**25}, "max_completion_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"max_tokens": "16"}, "max_tokens"),
        ({"max_completion_tokens": 0}, "max_completion_tokens"),
        ({"n": 2}, "n"),
        ({"n": 0}, "n"),
        ({"n": True}, "n"),
        ({"best_of": 3}, "best_of"),
        ({"use_beam_search": True}, "use_beam_search"),
        ({"use_beam_search": 1}, "use_beam_search"),
        ({"kv_transfer_params": {"do_remote_prefill": True}}, "kv_transfer_params"),
        ({"kv_transfer_params": {}}, "kv_transfer_params"),
        ({"ec_transfer_params": {"a": 1}}, "ec_transfer_params"),
        ({"vllm_xargs": {"kv_transfer_params": "x"}}, "vllm_xargs"),
        ({"vllm_xargs": "x"}, "vllm_xargs"),
        ({"prompt_embeds": "AAAA"}, "prompt_embeds"),
        ({"truncate_prompt_tokens": -1}, "truncate_prompt_tokens"),
        ({"echo": 1}, "echo"),
    ],
)
def test_refused_on_both_routes(fields: dict[str, Any], param: str) -> None:
    for document in (completion(**fields), chat(**fields)):
        error = refusal(document)
        assert error.param == param
        assert repr(param) in str(error)


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
@pytest.mark.parametrize("value", [-(10**4000), 10**4000])
def test_a_bound_of_thousands_of_digits_is_not_given_back_whole(name: str, value: int) -> None:
    error = refusal(completion(**{name: value}))
    assert error.param == name
    assert len(str(error)) < 200


@pytest.mark.parametrize("message", [{"content": ""}, {"content": [{"text": "x"}] * 30_000}, 7])
def test_endless_conversations_are_measured_without_a_look_at_each_message(message: Any) -> None:
    endless = [*([{"role": "user"}] * 20_001), message]
    told = parse(chat(messages=endless))
    assert told.prompt_chars == len(bytes(told.fields["messages"]))
    assert refusal(chat(messages={"a": endless})).param == "messages"


def test_a_long_conversation_is_measured_message_by_message() -> None:
    messages = [{"role": "user", "content": "x" * 10_000}] * 10_000
    assert parse(chat(messages=messages)).prompt_chars == 100_000_000


def test_an_escaped_name_is_the_same_name() -> None:
    body = rb'{"model":"m","prompt":"x","kv_transfer\u005fparams":{"a":1}}'
    with pytest.raises(InvalidRequest) as caught:
        parse_request(Route.COMPLETIONS, body, model="m")
    assert caught.value.param == "kv_transfer_params"


def test_echo_passes_where_it_asks_for_no_log_probabilities() -> None:
    assert parse(completion(echo=True, logprobs=None)).prompt_chars == 5
    assert refusal(completion(echo=True, logprobs=0)).param == "echo"
    assert refusal(chat(echo=True)).param == "echo"


def test_harmless_forms_of_what_is_refused_pass() -> None:
    harmless = {
        "n": 1,
        "best_of": 1,
        "use_beam_search": False,
        "vllm_xargs": {"a": 1},
        "truncate_prompt_tokens": 8,
        "echo": False,
        "stream_options": {},
    }
    assert parse(completion(**harmless)).prompt_chars == 5
    assert parse(chat(**harmless)).prompt_chars == 5


@pytest.mark.parametrize("model", [5, True, ["m"], {"m": 1}])
def test_a_model_is_a_string(model: object) -> None:
    assert refusal(completion(model=model)).param == "model"


def test_a_missing_model_is_told_which_there_is() -> None:
    for document in ({"prompt": "x"}, completion(model=None)):
        error = refusal(document)
        assert error.param == "model"
        assert "'m'" in str(error)


def test_another_model_is_not_found_and_both_are_named() -> None:
    with pytest.raises(UnknownModel, match=r"'gpt'.*'m'") as caught:
        parse(completion(model="gpt"))
    assert (caught.value.status, caught.value.param) == (404, "model")
    with pytest.raises(UnknownModel) as long:
        parse(completion(model="x" * 10_000))
    assert len(str(long.value)) < 250


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "empty"),
        (b" \r\n", "empty"),
        (b"{", "not valid JSON"),
        (b'{"model":"m"', "not valid JSON"),
        (b"[]", "must be a JSON object"),
        (b'"x"', "must be a JSON object"),
        (b"7", "must be a JSON object"),
        (b"null", "must be a JSON object"),
        (b'{"model":"m","prompt":"x"} x', "not valid JSON"),
        (b'{"model":"m","prompt":"x"}{}', "not valid JSON"),
        (b'{"model":"m","prompt":"x","t":NaN}', "not valid JSON"),
        (b'{"model":"m","prompt":"x","t":[Infinity]}', "not valid JSON"),
        (b'{"model":"m","prompt":"x",}', "not valid JSON"),
        (b'{"model":"m","prompt":"\xff"}', "not valid UTF-8"),
        (b'{"model":"m","prompt":"\xed\xa0\x80"}', "not valid UTF-8"),
        (rb'{"model":"m","prompt":"\ud800 lone"}', "not valid JSON"),
        (b"model=m&prompt=x", "not valid JSON"),
        ('{"model":"m"}'.encode("utf-16"), "not valid UTF-8"),
    ],
)
def test_what_is_no_json_object(body: bytes, says: str) -> None:
    with pytest.raises(InvalidRequest, match=says):
        parse_request(Route.COMPLETIONS, body, model="m")


def test_a_byte_order_mark_is_skipped() -> None:
    body = b"\xef\xbb\xbf" + compact(completion())
    assert parse_request(Route.COMPLETIONS, body, model="m").prompt_chars == 5


@pytest.mark.parametrize("depth", [100_000, sys.getrecursionlimit()])
@pytest.mark.parametrize("name", ["x", "messages", "stream_options", "prompt", "model", "tools"])
def test_depth(depth: int, name: str) -> None:
    nested = b"[" * depth + b"]" * depth
    body = b'{"%b":%b,"stream":true}' % (name.encode(), nested)
    with pytest.raises(InvalidRequest, match="nested too deeply"):
        parse_request(Route.CHAT, body, model="m")


def test_depth_just_below_the_limit_is_no_accident_either() -> None:
    for depth in range(sys.getrecursionlimit() - 120, sys.getrecursionlimit()):
        nested = b"[" * depth + b"]" * depth
        for name in (b"messages", b"tools", b"vllm_xargs"):
            body = b'{"model":"m","%b":%b}' % (name, nested)
            with pytest.raises(InvalidRequest):
                parse_request(Route.CHAT, body, model="m")


@pytest.mark.parametrize(
    "body",
    [
        b'{"model":"m","prompt":"x","prompt":"y"}',
        b'{"model":"m","prompt":"x","prompt":"x"}',
        b'{"prompt":"x", "model":"m", "prompt":"y"}',
        b'{"model":"m","prompt":"x","pro\\u006dpt":"y"}',
        b'{"model":"m","prompt":{"a":1,"model":"m"},"prompt":{"a":1}}',
        b'{ "model" : "m" , "prompt" : 1 , "prompt" : 12 }',
        b'{ "model" : "m" , "prompt" : 12 , "prompt" : 1 }',
    ],
)
def test_a_repeated_field_is_named(body: bytes) -> None:
    with pytest.raises(InvalidRequest, match="'prompt' occurs twice") as caught:
        parse_request(Route.COMPLETIONS, body, model="m")
    assert caught.value.param == "prompt"


def test_repeated_names_inside_a_value_are_the_engines_business() -> None:
    body = b'{"model":"m","prompt":"x","logit_bias":{"1":2,"1":3}}'
    request = parse_request(Route.COMPLETIONS, body, model="m")
    assert bytes(request.fields["logit_bias"]) == b'{"1":2,"1":3}'


@settings(deadline=None)
@given(
    pairs=st.lists(
        st.tuples(
            st.sampled_from(["a", "b", "é", 'q"', "\\", "model"]),
            st.sampled_from([1, 12, "m", 'x,"a":1', {"a": 1, "b": [2]}, None, ""]),
        ),
        max_size=6,
    ),
    space=st.sampled_from(["", " ", "\n\t"]),
    ascii_only=st.booleans(),
)
def test_repeats_are_found_in_any_layout(
    pairs: list[tuple[str, object]], space: str, ascii_only: bool
) -> None:
    def text(value: object) -> str:
        return json.dumps(value, ensure_ascii=ascii_only)

    inner = f"{space},{space}".join(f"{text(k)}{space}:{space}{text(v)}" for k, v in pairs)
    body = f"{space}{{{space}{inner}{space}}}{space}".encode()
    keys = [key for key, _ in pairs]
    with pytest.raises((InvalidRequest, UnknownModel)) as caught:
        parse_request(Route.COMPLETIONS, body, model="m")
    assert ("occurs twice" in str(caught.value)) == (len(set(keys)) < len(keys))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=8,
)
NAMES = [
    "prompt", "messages", "stream", "stream_options", "max_tokens", "max_completion_tokens", "n",
    "best_of", "kv_transfer_params", "vllm_xargs", "use_beam_search", "echo", "logprobs", "tools",
    "truncate_prompt_tokens", "prompt_embeds",
]  # fmt: skip


@settings(deadline=None)
@given(fields=st.dictionaries(st.sampled_from(NAMES), JSON), route=st.sampled_from(Route))
def test_any_object_is_a_request_or_a_client_error(fields: dict[str, Any], route: Route) -> None:
    body = compact({"model": "m", **fields})
    try:
        request = parse_request(route, body, model="m")
    except InvalidRequest as error:
        named = error.param or "model"
    else:
        named = "model"
        kept = {key: json.loads(bytes(raw)) for key, raw in request.fields.items()}
        assert kept == {"model": "m", **fields}
    assert named.split(".")[0] in {"model", *NAMES}


@settings(deadline=None)
@given(body=st.binary(max_size=60) | st.text(max_size=60).map(str.encode))
def test_any_bytes_are_a_request_or_a_client_error(body: bytes) -> None:
    for route in Route:
        with contextlib.suppress(InvalidRequest, UnknownModel):
            parse_request(route, body, model="m")


@settings(deadline=None)
@given(st.data())
def test_a_damaged_request_is_a_request_or_a_client_error(data: st.DataObject) -> None:
    body = bytearray(compact(chat(stream=True, stream_options={"include_usage": True}, n=1)))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(body) - 1))
        body[at : at + 1] = data.draw(st.binary(max_size=2))
        if not body:
            break
    with contextlib.suppress(InvalidRequest, UnknownModel):
        parse_request(Route.CHAT, bytes(body), model="m")


def test_models() -> None:
    assert msgspec.json.decode(models_body("m", 1700000000)) == {
        "object": "list",
        "data": [{"id": "m", "object": "model", "created": 1700000000, "owned_by": "narwhal"}],
    }
