"""The bodies of the legs, against what a real vLLM 0.32 takes and refuses."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from narwhal.model import EngineProtocolError, Route
from narwhal.wire.handoff import Handoff, parse_handoff
from narwhal.wire.openai import CompletionRequest, parse_request
from narwhal.wire.vllm import (
    TokenIds,
    decode_body,
    forces_tool,
    parse_prefill,
    parse_token_ids,
    parse_tokenize,
    prefill_body,
    release_body,
    returns_ids,
    tokenize_body,
)

DESCRIPTOR = (
    b'{"do_remote_prefill": true, "do_remote_decode":false,"remote_block_ids":[[7,8]],'
    b'"remote_engine_id":"0c5d","remote_request_id":"cmpl-abc-0-8ae989f7",'
    b'"remote_host":"127.0.0.1","remote_port":18601,"tp_size":1,"remote_num_tokens":198,'
    b'"remote_blocks_expiry_time":null,"transfer_mode":"pull","remote_prefill_cached_tokens":0}'
)
HANDOFF = parse_handoff(DESCRIPTOR)
FOR_PREFILL = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}


def request(**fields: Any) -> CompletionRequest:
    document: dict[str, Any] = {"model": "m", **fields}
    if "messages" not in fields:
        document.setdefault("prompt", "hello")
    route = Route.CHAT if "messages" in fields else Route.COMPLETIONS
    return parse_request(route, json.dumps(document).encode(), model="m")


def chat(**fields: Any) -> CompletionRequest:
    return request(messages=[{"role": "user", "content": "hi"}], **fields)


def prefill(made: CompletionRequest) -> dict[str, Any]:
    document = json.loads(prefill_body(made))
    assert isinstance(document, dict)
    return document


def decode(made: CompletionRequest, handoff: Handoff | None = HANDOFF) -> dict[str, Any]:
    document = json.loads(decode_body(made, handoff))
    assert isinstance(document, dict)
    return document


def test_a_prefill_leg() -> None:
    assert prefill(request(temperature=0, seed=3)) == {
        "model": "m",
        "temperature": 0,
        "seed": 3,
        "prompt": "hello",
        "stream": False,
        "max_tokens": 1,
        "ignore_eos": True,
        "kv_transfer_params": FOR_PREFILL,
    }


@pytest.mark.parametrize("make", [request, chat])
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"max_tokens": None},
        {"max_tokens": 50},
        {"max_completion_tokens": None},
        {"max_completion_tokens": 50},
        {"max_tokens": 2, "max_completion_tokens": 3},
        {"max_tokens": None, "max_completion_tokens": None},
    ],
)
def test_a_prefill_may_make_exactly_one_token_and_a_decode_what_the_client_said(
    make: Any, fields: dict[str, Any]
) -> None:
    made = make(**fields)
    seen = prefill(made)
    assert seen["max_tokens"] == 1
    assert ("max_completion_tokens" in seen) == ("max_completion_tokens" in fields)
    assert seen.get("max_completion_tokens", 1) == 1
    bounds = {key: value for key, value in decode(made).items() if key.startswith("max_")}
    assert bounds == fields


def test_nothing_can_stop_the_prefills_token_or_make_the_engine_refuse_it() -> None:
    made = request(
        stream=True,
        stream_options={"include_usage": True},
        min_tokens=100,
        max_tokens=200,
        stop=["a"],
        stop_token_ids=[5],
        include_stop_str_in_output=True,
        ignore_eos=False,
        return_token_ids=True,
        echo=True,
        request_id="mine",
        top_k=3,
    )
    assert prefill(made) == {
        "model": "m",
        "stream": False,
        "max_tokens": 1,
        "ignore_eos": True,
        "top_k": 3,
        "prompt": "hello",
        "kv_transfer_params": FOR_PREFILL,
    }


def test_a_decode_leg_is_the_clients_body_and_the_handoff() -> None:
    fields = {
        "max_tokens": None,
        "min_tokens": 2,
        "stop": ["x"],
        "ignore_eos": False,
        "temperature": 0.5,
        "vendor": {"a": [1]},
        "stream": True,
        "echo": True,
        "kv_transfer_params": None,
    }
    made = request(**fields)
    assert decode(made) == {
        **fields,
        "model": "m",
        "prompt": "hello",
        "stream_options": {"include_usage": True},
        "kv_transfer_params": json.loads(DESCRIPTOR),
    }
    assert DESCRIPTOR in decode_body(made, HANDOFF)


def test_a_plain_leg_has_no_transfer_parameters_at_all() -> None:
    for made in (request(stream=True), request(kv_transfer_params=None)):
        assert decode(made, None) == {
            "model": "m",
            "prompt": "hello",
            "stream": True,
            "stream_options": {"include_usage": True},
        }


@pytest.mark.parametrize(
    ("stream", "options", "expected"),
    [
        (False, None, {"include_usage": True}),
        (False, {}, {"include_usage": True}),
        (True, None, {"include_usage": True}),
        (True, {"include_usage": False}, {"include_usage": True}),
        (True, {"x": [1]}, {"x": [1], "include_usage": True}),
        # Without usage the client would not see these either, with the router's asking it would.
        (True, {"continuous_usage_stats": True}, {"include_usage": True}),
        (
            True,
            {"include_usage": True, "continuous_usage_stats": True},
            {"include_usage": True, "continuous_usage_stats": True},
        ),
    ],
)
def test_usage_is_asked_for_within_the_clients_options(
    stream: bool, options: object, expected: object
) -> None:
    made = request(stream=stream, stream_options=options)
    assert decode(made)["stream_options"] == expected
    assert decode(made)["stream"] is True


def test_the_prompts_log_probabilities_are_the_prefills_to_give() -> None:
    made = request(prompt_logprobs=2)
    assert prefill(made)["prompt_logprobs"] == 2
    assert "prompt_logprobs" not in decode(made)
    assert decode(made, None)["prompt_logprobs"] == 2


def test_streamed_log_probabilities_of_the_prompt_are_the_engines_to_refuse() -> None:
    assert decode(request(prompt_logprobs=2, stream=True))["prompt_logprobs"] == 2
    # Which it does not do for 0: that one reached the decoder, and killed it.
    assert "prompt_logprobs" not in decode(request(prompt_logprobs=0, stream=True))


@pytest.mark.parametrize("value", ["1", "0.5", "-1", "1e400", "true", '"0"', "[0]", "{}"])
def test_what_is_no_zero_is_the_engines_to_judge(value: str) -> None:
    body = b'{"model":"m","prompt":"x","stream":true,"prompt_logprobs":%b}' % value.encode()
    made = parse_request(Route.COMPLETIONS, body, model="m")
    assert b'"prompt_logprobs":%b' % value.encode() in decode_body(made, HANDOFF)


@pytest.mark.parametrize("zero", ["0", "-0", "0.0", "0.00", "-0e5", "0E-3", "1e-999", "false"])
def test_a_zero_is_one_however_it_is_written(zero: str) -> None:
    body = b'{"model":"m","prompt":"x","stream":true,"prompt_logprobs":%b}' % zero.encode()
    made = parse_request(Route.COMPLETIONS, body, model="m")
    assert "prompt_logprobs" not in decode(made)


def test_a_clients_backend_id_never_reaches_an_engine() -> None:
    made = request(request_id="x")
    assert "request_id" not in prefill(made)
    assert "request_id" not in decode(made)
    assert "request_id" not in decode(made, None)


SLICES = st.sampled_from(
    [b'"caf\xc3\xa9 \\u00e9\\n\\/ \xf0\x9f\x98\x80"', b"[1,  2,\n3]", b'[ "x" ]', b"[[4, 5]]"]
)


@settings(deadline=None)
@given(
    prompt=SLICES, names=st.lists(st.text(max_size=5).map("z{}".format), unique=True, max_size=4)
)
def test_both_legs_carry_the_prompt_as_the_client_wrote_it(prompt: bytes, names: list[str]) -> None:
    extra = b"".join(b"%b : {}, " % json.dumps(name).encode() for name in names)
    body = b'{%b"model":"m", "prompt" : %b }' % (extra, prompt)
    made = parse_request(Route.COMPLETIONS, body, model="m")
    for leg in (prefill_body(made), decode_body(made, HANDOFF), decode_body(made, None)):
        assert b'"prompt":' + prompt in leg
        assert json.loads(leg).keys() >= set(names)


@settings(deadline=None)
@given(
    fields=st.dictionaries(
        st.sampled_from(["stream", "ignore_eos", "stop", "zz", "max_tokens", "min_tokens"]),
        st.sampled_from([None, 1, 2]),
    )
)
def test_a_field_is_written_once(fields: dict[str, Any]) -> None:
    fields.pop("stream", None)
    made = request(**fields)

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        assert len(dict(pairs)) == len(pairs)
        return dict(pairs)

    for leg in (prefill_body(made), decode_body(made, HANDOFF), decode_body(made, None)):
        json.loads(leg, object_pairs_hook=once)


def test_a_release_leg_asks_for_nothing_of_a_prompt_that_is_not_the_clients() -> None:
    assert json.loads(release_body('m"', HANDOFF)) == {
        "model": 'm"',
        "prompt": [0],
        "max_tokens": 1,
        "stream": False,
        "kv_transfer_params": json.loads(DESCRIPTOR),
    }


def test_tokenize_a_prompt() -> None:
    assert json.loads(tokenize_body(request(prompt="a\u00e9", temperature=0))) == {
        "model": "m",
        "prompt": "a\u00e9",
    }
    made = request(prompt=["one"], add_special_tokens=False)
    assert json.loads(tokenize_body(made)) == {
        "model": "m",
        "prompt": "one",
        "add_special_tokens": False,
    }


def test_tokenize_a_conversation_with_all_that_shapes_it() -> None:
    shape = {"tools": [{"type": "function"}], "chat_template_kwargs": {"thinking": True}}
    made = chat(**shape, temperature=0, max_tokens=5, stream=True)
    assert json.loads(tokenize_body(made)) == {
        "model": "m",
        "messages": [{"role": "user", "content": "hi"}],
        **shape,
    }


def test_a_count() -> None:
    body = b'{"count":7,"max_model_len":2048,"tokens":[1,2],"token_strs":null}'
    assert parse_tokenize(body) == 7


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{}",
        b'{"count":null}',
        b'{"count":1.5}',
        b'{"count":-1}',
        b'{"count":2147483648}',
        b"<html>",
    ],
)
def test_no_count(body: bytes) -> None:
    with pytest.raises(EngineProtocolError, match="tokenize answer"):
        parse_tokenize(body)


def test_token_ids() -> None:
    body = b'{"count":2,"max_model_len":2048,"tokens":[1,2],"token_strs":null}'
    assert parse_token_ids(body) == TokenIds(tokens=(1, 2), max_model_len=2048)
    assert parse_token_ids(b'{"tokens":[]}') == TokenIds(tokens=())


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{}", b'{"tokens":null}', b'{"tokens":["a"]}', b'{"tokens":[1.5]}']
)
def test_no_token_ids(body: bytes) -> None:
    with pytest.raises(EngineProtocolError, match="tokenize answer"):
        parse_token_ids(body)


# A prefill's answer


def answer(**changes: Any) -> bytes:
    document = {
        "id": "cmpl-secret",
        "object": "text_completion",
        "created": 1,
        "model": "m",
        "choices": [
            {
                "index": 0,
                "text": " secret",
                "logprobs": None,
                "finish_reason": "length",
                "stop_reason": None,
                "token_ids": None,
                "prompt_logprobs": None,
            }
        ],
        "service_tier": None,
        "usage": {
            "prompt_tokens": 198,
            "total_tokens": 199,
            "completion_tokens": 1,
            "prompt_tokens_details": None,
        },
        "kv_transfer_params": json.loads(DESCRIPTOR),
        "metrics": {"secret": 1},
        **changes,
    }
    return json.dumps(document).encode()


def test_a_prefill_answer() -> None:
    read = parse_prefill(answer())
    assert read.prompt_tokens == 198
    assert read.handoff.remote_engine_id == "0c5d"
    assert json.loads(read.handoff.raw) == json.loads(DESCRIPTOR)


def test_the_template_has_the_answers_keys_in_order_and_none_of_its_values() -> None:
    template = parse_prefill(answer()).template
    assert list(template) == list(json.loads(answer()))
    assert template["choices"] == {
        "index": None,
        "text": None,
        "logprobs": None,
        "finish_reason": None,
        "stop_reason": None,
        "token_ids": None,
        "prompt_logprobs": None,
    }
    assert template["usage"] == dict.fromkeys(
        ["prompt_tokens", "total_tokens", "completion_tokens", "prompt_tokens_details"]
    )
    assert "secret" not in repr(template)
    assert template["kv_transfer_params"] is None


def test_a_chat_template_keeps_what_is_empty_as_it_is() -> None:
    message: dict[str, Any] = {
        "role": "assistant",
        "content": "",
        "refusal": None,
        "tool_calls": [],
        "x": {},
    }
    template = parse_prefill(answer(choices=[{"index": 0, "message": message}])).template
    assert template["choices"]["message"] == {
        "role": None,
        "content": "",
        "refusal": None,
        "tool_calls": [],
        "x": {},
    }


def test_the_prompts_log_probabilities_are_taken_over() -> None:
    values = [None, {"5": {"logprob": -0.5, "rank": 1, "decoded_token": "a"}}]
    inside = parse_prefill(answer(choices=[{"index": 0, "prompt_logprobs": values}])).template
    assert json.loads(bytes(inside["choices"]["prompt_logprobs"])) == values
    outside = parse_prefill(answer(prompt_logprobs=values)).template
    assert json.loads(bytes(outside["prompt_logprobs"])) == values


@pytest.mark.parametrize("choices", [None, [], [None], ["x"], {}, 5, [{"message": 5}], [{}]])
@pytest.mark.parametrize("usage", [None, 5, {}, {"prompt_tokens": True}, {"prompt_tokens": "x"}])
def test_only_the_handoff_is_indispensable(choices: object, usage: object) -> None:
    read = parse_prefill(answer(choices=choices, usage=usage))
    assert read.prompt_tokens is None
    assert read.handoff.blocks == 2


@pytest.mark.parametrize("body", [b"", b"[]", b"null", b"{", b'{"a":"\xff"}', b"[" * 100_000])
def test_a_prefill_answer_that_is_none(body: bytes) -> None:
    with pytest.raises(EngineProtocolError, match="prefill answer"):
        parse_prefill(body)


def test_handoff_fields() -> None:
    assert (HANDOFF.remote_host, HANDOFF.remote_port) == ("127.0.0.1", 18601)
    assert (HANDOFF.remote_request_id, HANDOFF.remote_num_tokens) == ("cmpl-abc-0-8ae989f7", 198)
    assert HANDOFF.blocks == 2
    assert HANDOFF.raw == DESCRIPTOR
    assert msgspec.json.decode(HANDOFF.raw)["tp_size"] == 1


TOOLS = [{"type": "function", "function": {"name": "f"}}]


@pytest.mark.parametrize(
    ("fields", "forced"),
    [
        ({}, False),
        ({"tools": TOOLS}, False),
        ({"tools": TOOLS, "tool_choice": None}, False),
        ({"tools": TOOLS, "tool_choice": "auto"}, False),
        ({"tools": TOOLS, "tool_choice": "required"}, True),
        ({"tools": TOOLS, "tool_choice": TOOLS[0]}, True),
        ({"tools": None, "tool_choice": "required"}, False),
    ],
)
def test_whether_a_tool_has_to_be_called(fields: dict[str, Any], forced: bool) -> None:
    assert forces_tool(chat(**fields)) is forced
    assert not forces_tool(request(**fields))


def test_whether_token_ids_are_asked_for() -> None:
    asked = (True, 1, False, 0, None)
    answers = [returns_ids(request(return_token_ids=value)) for value in asked]
    assert answers == [True, True, False, False, False]
    assert not returns_ids(request())
