"""What an engine says, against what was recorded from vLLM 0.32.0."""

from __future__ import annotations

import json
from itertools import chain
from typing import TYPE_CHECKING, Any

import pytest
from emulator_kit import CHAT, COMPLETIONS, PREFILL_LEG, ask_on, completion, run_world, settings

from narwhal.emulator import tokenize

if TYPE_CHECKING:
    from emulator_kit import World

# Keys in their order, as recorded.
COMPLETION_KEYS = [
    "id", "object", "created", "model", "choices", "service_tier", "system_fingerprint", "usage",
    "kv_transfer_params", "ec_transfer_params", "metrics",
]  # fmt: skip
CHOICE_KEYS = [
    "index", "text", "logprobs", "finish_reason", "stop_reason", "token_ids", "prompt_logprobs",
    "prompt_token_ids", "routed_experts",
]  # fmt: skip
HANDOFF_KEYS = [
    "do_remote_prefill", "do_remote_decode", "remote_block_ids", "remote_engine_id",
    "remote_request_id", "remote_host", "remote_port", "tp_size", "dcp_size", "pp_size",
    "remote_num_tokens", "remote_blocks_expiry_time", "transfer_mode",
    "remote_prefill_cached_tokens",
]  # fmt: skip


def chat(**body: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": "one two three"}]
    return {"model": "tiny", "messages": messages, "max_tokens": 3} | body


def test_routes_that_are_no_completions() -> None:
    async def test(world: World) -> None:
        health = await world.ask("/health")
        assert (health.status, health.body) == (200, b"")
        assert (await world.ask("/version")).body == b'{"version":"0.32.0"}'
        (card,) = (await world.ask("/v1/models")).json["data"]
        assert card["id"] == card["root"] == "tiny"
        assert card["max_model_len"] == 2048
        assert (await world.ask("/nothing")).body == b'{"detail":"Not Found"}'
        wrong = await world.ask(COMPLETIONS)
        assert (wrong.status, wrong.body) == (405, b'{"detail":"Method Not Allowed"}')

    run_world(test, settings(max_model_len=2048))


def test_every_answer_has_the_headers_of_the_real_server() -> None:
    async def test(world: World) -> None:
        whole = await world.complete()
        assert whole.headers["server"] == "uvicorn"
        assert whole.headers["vary"] == "Origin"
        assert whole.headers["content-type"] == "application/json"
        assert int(whole.headers["content-length"]) == len(whole.body)
        stream = await world.complete(stream=True)
        assert stream.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert stream.headers["transfer-encoding"] == "chunked"

    run_world(test)


def test_tokenize_agrees_with_usage() -> None:
    async def test(world: World) -> None:
        text = "some words, longer or shorter, and 日本語"
        counted = await world.ask("/tokenize", {"model": "tiny", "prompt": text})
        assert list(counted.json) == ["count", "max_model_len", "tokens", "token_strs"]
        assert counted.json["count"] == len(counted.json["tokens"])
        assert counted.json["token_strs"] is None
        answer = await world.complete(prompt=text)
        assert answer.json["usage"]["prompt_tokens"] == counted.json["count"]
        tokens = counted.json["tokens"][1:]  # without the one that begins every text
        assert (await world.ask("/detokenize", {"tokens": tokens})).json == {"prompt": text}
        messages = chat()["messages"]
        counted = await world.ask("/tokenize", {"model": "tiny", "messages": messages})
        answer = await world.ask(CHAT, chat())
        assert answer.json["usage"]["prompt_tokens"] == counted.json["count"]
        assert counted.json["count"] > len(tokenize("one two three"))

    run_world(test)


def test_a_completion() -> None:
    async def test(world: World) -> None:
        answer = (await world.complete()).json
        assert list(answer) == COMPLETION_KEYS
        (choice,) = answer["choices"]
        assert list(choice) == CHOICE_KEYS
        assert answer["id"].startswith("cmpl-")
        assert len(answer["id"]) == len("cmpl-") + 16
        assert answer["object"] == "text_completion"
        assert choice["finish_reason"] == "length"
        assert answer["kv_transfer_params"] is None
        usage = {"prompt_tokens": 5, "total_tokens": 9, "completion_tokens": 4}
        details = {"prompt_tokens_details": None, "completion_tokens_details": None}
        assert answer["usage"] == usage | details

    run_world(test)


def test_a_prefill_leg() -> None:
    async def test(world: World) -> None:
        headers = {"x-request-id": "abc-123"}
        leg = completion(max_tokens=1, kv_transfer_params=PREFILL_LEG)
        answer = (await world.ask(COMPLETIONS, leg, headers=headers)).json
        assert answer["id"] == "cmpl-abc-123"
        assert answer["usage"]["completion_tokens"] == 1
        handoff = answer["kv_transfer_params"]
        assert list(handoff) == HANDOFF_KEYS
        assert handoff["do_remote_prefill"] is True
        assert handoff["do_remote_decode"] is False
        assert handoff["remote_request_id"].startswith("cmpl-abc-123-0-")
        assert len(handoff["remote_request_id"]) == len("cmpl-abc-123-0-8ae989f7")
        assert handoff["remote_num_tokens"] == 5
        assert len(handoff["remote_block_ids"]) == 1
        assert handoff["transfer_mode"] == "pull"
        streamed = await world.complete(stream=True, max_tokens=1, kv_transfer_params=PREFILL_LEG)
        assert b"kv_transfer_params" not in streamed.body

    run_world(test)


def test_a_completion_stream_byte_for_byte() -> None:
    async def test(world: World) -> None:
        body = completion(max_tokens=2, stream=True, stream_options={"include_usage": True})
        answer = await world.ask(COMPLETIONS, body, headers={"x-request-id": "r"})
        words = [chunk["choices"][0]["text"] for chunk in answer.chunks if chunk["choices"]]
        head = b'data: {"id":"cmpl-r","object":"text_completion","created":1700000000,'
        head += b'"model":"tiny","choices":['
        rest = b'"stop_reason":null,"prompt_token_ids":null,"token_ids":null}]}\n\n'
        start = head + b'{"index":0,"text":"%b","logprobs":null,"finish_reason":'
        usage = b'"usage":{"prompt_tokens":5,"total_tokens":7,"completion_tokens":2},'
        assert answer.body == b"".join(
            (
                start % words[0].encode() + b"null," + rest,
                start % words[1].encode() + b'"length",' + rest,
                head + b"]," + usage + b'"system_fingerprint":"vllm-0.32.0"}\n\n',
                b"data: [DONE]\n\n",
            )
        )

    run_world(test)


def test_a_chat_stream_byte_for_byte() -> None:
    async def test(world: World) -> None:
        body = chat(max_tokens=2, stream=True)
        answer = await world.ask(CHAT, body, headers={"x-request-id": "r"})
        _, one, two = [chunk["choices"][0]["delta"]["content"] for chunk in answer.chunks]
        head = b'data: {"id":"chatcmpl-r","object":"chat.completion.chunk","created":1700000000,'
        head += b'"model":"tiny","choices":[{"index":0,"delta":'
        assert answer.body == b"".join(
            (
                head + b'{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}],'
                b'"prompt_token_ids":null,"prompt_text":null}\n\n',
                head + b'{"content":"%b"},"logprobs":null,"finish_reason":null,' % one.encode(),
                b'"token_ids":null}]}\n\n',
                head + b'{"content":"%b"},"logprobs":null,"finish_reason":"length",' % two.encode(),
                b'"stop_reason":null,"token_ids":null}],"system_fingerprint":"vllm-0.32.0"}\n\n',
                b"data: [DONE]\n\n",
            )
        )

    run_world(test)


def test_a_token_is_an_event_and_a_write_of_its_own() -> None:
    async def test(world: World) -> None:
        answer = await world.complete(max_tokens=5, stream=True)
        times = [round(at, 3) for at, _ in answer.reads]
        assert times == [0.005, 0.015, 0.025, 0.035, 0.045, 0.045]  # [DONE] is one, too
        assert all(data.count(b"data: ") == 1 for _, data in answer.reads)

    run_world(test)


def test_token_ids_on_request() -> None:
    async def test(world: World) -> None:
        whole = (await world.complete(return_token_ids=True)).json["choices"][0]
        stream = await world.complete(return_token_ids=True, stream=True)
        choices = [chunk["choices"][0] for chunk in stream.chunks]
        assert [c["prompt_token_ids"] for c in choices] == [whole["prompt_token_ids"]] + [None] * 3
        assert [c["token_ids"] for c in choices] == [[token] for token in whole["token_ids"]]
        said = (await world.ask(CHAT, chat(return_token_ids=True))).json
        stream = await world.ask(CHAT, chat(return_token_ids=True, stream=True))
        role, *content = stream.chunks
        assert role["prompt_token_ids"] == said["prompt_token_ids"]
        ids = [chunk["choices"][0]["token_ids"] for chunk in content]
        assert ids == [[token] for token in said["choices"][0]["token_ids"]]

    run_world(test)


def test_a_chats_token_ids_as_a_prompt_give_the_same_tokens() -> None:
    async def test(world: World) -> None:
        said = (await world.ask(CHAT, chat(return_token_ids=True))).json
        again = await world.complete(
            prompt=said["prompt_token_ids"], max_tokens=3, return_token_ids=True
        )
        assert again.json["choices"][0]["token_ids"] == said["choices"][0]["token_ids"]

    run_world(test)


def test_usage_on_every_chunk_on_request() -> None:
    async def test(world: World) -> None:
        options = {"include_usage": True, "continuous_usage_stats": True}
        stream = await world.ask(CHAT, chat(stream=True, stream_options=options))
        counts = [chunk["usage"]["completion_tokens"] for chunk in stream.chunks]
        assert counts == [0, 1, 2, 3, 3]
        assert stream.chunks[-1]["choices"] == []

    run_world(test)


MERGED = [
    {},
    {"logprobs": True, "top_logprobs": 3},
    {"content": "x out=reasoning:3,length:9", "max_tokens": 30},
    {"content": "x out=refusal,vendor"},
    {"content": "x out=tools:2,vendor", "max_tokens": 90},
    {"content": "x out=tools:2,whole", "max_tokens": 90},
    {"content": "x out=unicode", "max_tokens": 40, "n": 2},
    {"stop": ["a"], "max_tokens": 20},
    {"max_tokens": 60, "tools": [{"type": "function", "function": {"name": "find"}}],
     "tool_choice": "required"},
]  # fmt: skip


def merged(stream: list[dict[str, Any]], into: dict[int, dict[str, Any]]) -> None:
    """What a client that adds a chat's deltas up ends with."""
    for chunk in stream:
        for choice in chunk["choices"]:
            mine = into.setdefault(choice["index"], {"content": "", "tool_calls": []})
            mine["finish_reason"] = choice["finish_reason"]
            mine.setdefault("logprobs", []).extend((choice["logprobs"] or {}).get("content", ()))
            for name, value in choice["delta"].items():
                if name == "tool_calls":
                    for call in value:
                        _merge_call(mine["tool_calls"], call)
                elif name != "role" and value is not None:
                    mine[name] = mine.get(name, "") + value


def _merge_call(calls: list[dict[str, Any]], call: dict[str, Any]) -> None:
    if "id" in call:
        calls.append({k: v for k, v in call.items() if k != "index"})
        calls[-1]["function"] = {"arguments": "", **call["function"]}
    else:
        calls[call["index"]]["function"]["arguments"] += call["function"]["arguments"]


@pytest.mark.parametrize("body", MERGED)
def test_a_stream_adds_up_to_the_whole_answer(body: dict[str, Any]) -> None:
    async def test(world: World) -> None:
        given = dict(body)
        if content := given.pop("content", None):
            given["messages"] = [{"role": "user", "content": content}]
        whole = (await world.ask(CHAT, chat(**given))).json
        stream = await world.ask(CHAT, chat(stream=True, **given))
        assert stream.done
        into: dict[int, dict[str, Any]] = {}
        merged(stream.chunks, into)
        for choice in whole["choices"]:
            mine = into[choice["index"]]
            message = choice["message"]
            assert mine["content"] == (message["content"] or "")
            assert mine.get("reasoning") == message["reasoning"]
            assert mine.get("refusal") == message["refusal"]
            assert mine["tool_calls"] == message.get("tool_calls", [])
            assert mine.get("vendor_text") == message.get("vendor_text")
            assert mine["finish_reason"] == choice["finish_reason"]
            assert mine["logprobs"] == (choice["logprobs"] or {}).get("content", [])
            for call in mine["tool_calls"]:
                assert set(json.loads(call["function"]["arguments"])) == {"query"}
        streamed = set().union(*stream.chunks) - {"choices"}
        assert streamed <= set(whole)  # nothing is said in a stream alone
        if "vendor" in str(content):
            assert whole["vendor_revision"] == stream.chunks[-1]["vendor_revision"] == 3
            assert whole["choices"][0]["vendor_score"] == 0.5

    run_world(test)


def test_completions_with_logprobs_and_echo() -> None:
    async def test(world: World) -> None:
        asked: dict[str, Any] = {"logprobs": 2, "echo": True, "prompt": "begin"}
        whole = (await world.complete(**asked)).json["choices"][0]
        assert whole["text"].startswith("begin ")
        stream = await world.complete(stream=True, **asked)
        parts = [chunk["choices"][0] for chunk in stream.chunks]
        assert parts[0]["text"] == "begin"
        assert "".join(part["text"] for part in parts) == whole["text"]
        for name, values in whole["logprobs"].items():
            assert list(chain(*(part["logprobs"][name] for part in parts[1:]))) == values
        assert whole["logprobs"]["text_offset"] == [5, 9, 13, 17]
        assert all(len(top) == 2 for top in whole["logprobs"]["top_logprobs"])

    run_world(test)


def test_several_prompts_and_samples() -> None:
    async def test(world: World) -> None:
        answer = (await world.complete(prompt=["a b", "c d"], n=2, temperature=1)).json
        texts = [choice["text"] for choice in answer["choices"]]
        assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
        assert len(set(texts)) == 4
        assert answer["usage"]["completion_tokens"] == 16
        alone = (await world.complete(prompt="c d")).json["choices"][0]["text"]
        assert texts[2] == alone

    run_world(test)


def test_an_answer_without_a_limit_ends_by_itself() -> None:
    async def test(world: World) -> None:
        answer = (await world.complete(max_tokens=None)).json
        assert answer["usage"]["completion_tokens"] == 64
        assert answer["choices"][0]["finish_reason"] == "stop"
        on = (await world.complete(max_tokens=None, ignore_eos=True)).json
        assert on["usage"]["completion_tokens"] == 64
        assert on["choices"][0]["finish_reason"] == "length"
        long = (await world.complete(max_tokens=None, min_tokens=80)).json
        assert long["usage"]["completion_tokens"] == 80
        both = (await world.ask(CHAT, chat(max_tokens=5, max_completion_tokens=2))).json
        assert both["usage"]["completion_tokens"] == 2
        cut = await world.complete(prompt=[1] * 80, max_tokens=None)
        assert cut.json["usage"]["completion_tokens"] == 20

    run_world(test, settings(max_model_len=100))


BAD_REQUEST, VALUE, NOT_FOUND = "Bad Request", "BadRequestError", "NotFoundError"
REFUSED: list[tuple[dict[str, Any], int, str, str | None]] = [
    ({"max_tokens": 0}, 400, VALUE, "max_tokens"),
    ({"max_tokens": -1}, 400, VALUE, "max_tokens"),
    ({"max_tokens": 5000}, 400, VALUE, "max_tokens"),
    ({"prompt": [5] * 100}, 400, VALUE, "input_tokens"),
    ({"n": 2, "temperature": 0}, 400, VALUE, None),
    ({"prompt": [5, 999_999]}, 400, VALUE, None),
    ({"prompt": []}, 400, VALUE, "prompt"),
    ({"prompt": None}, 400, VALUE, "prompt"),
    ({"stream_options": {"include_usage": True}}, 400, VALUE, "stream_options"),
    ({"min_tokens": 5}, 400, VALUE, None),
    ({"logprobs": 21}, 400, VALUE, "logprobs"),
    ({"model": "nope"}, 404, NOT_FOUND, "model"),
    ({"model": "nope", "stream": True}, 404, NOT_FOUND, "model"),
    ({"max_tokens": "many"}, 400, BAD_REQUEST, "body.max_tokens"),
    ({"stop": [1]}, 400, BAD_REQUEST, "body.stop.0"),
    ({"prompt": "x fault=explode"}, 400, VALUE, "x-emulator-fault"),
    ({"prompt": "x out=nothing"}, 400, VALUE, "x-emulator-output"),
]


@pytest.mark.parametrize(("body", "status", "error_type", "param"), REFUSED)
def test_refusals(body: dict[str, Any], status: int, error_type: str, param: str | None) -> None:
    async def test(world: World) -> None:
        answer = await world.complete(**body)
        assert answer.status == status, answer.body
        assert answer.headers["content-type"] == "application/json"
        error = answer.json["error"]
        assert list(error) == ["message", "type", "param", "code"]
        assert (error["type"], error["param"], error["code"]) == (error_type, param, status)
        assert error["message"]
        assert world.fleet.idle

    run_world(test, settings(max_model_len=100))


@pytest.mark.parametrize(
    ("raw", "param"),
    [
        (b"", "body"),
        (b"{", "body"),
        (b"[]", "body"),
        (b'{"messages": 123}', "body.messages"),
        (b"{}", "body.messages"),
        (b'{"messages": []} x', "body"),
        (b'{"messages": ' + b"[" * 10_000, "body.messages.0"),
    ],
)
def test_bodies_with_the_wrong_schema(raw: bytes, param: str) -> None:
    async def test(world: World) -> None:
        answer = await world.ask(CHAT, raw)
        assert answer.status == 400
        error = answer.json["error"]
        assert (error["type"], error["code"]) == ("Bad Request", 400)
        assert error["message"].startswith("1 validation error:\n  {")
        assert error["param"] == param

    run_world(test)


def test_a_wrong_content_type() -> None:
    async def test(world: World) -> None:
        answer = await world.ask(COMPLETIONS, completion(), headers={"content-type": "text/plain"})
        assert (answer.status, answer.json["error"]["type"]) == (400, "Bad Request")

    run_world(test)


def test_a_busy_engine() -> None:
    async def test(world: World) -> None:
        first = await world.connect()
        await ask_on(first, COMPLETIONS, completion(stream=True))
        await first.stream.receive_some()
        busy = await world.complete(stream=True)
        assert busy.status == 503
        assert busy.json == {
            "error": {
                "message": "The engine is currently busy and cannot accept new requests. Please "
                "try again later or on a different instance.",
                "type": "Service Unavailable",
                "param": None,
                "code": 503,
            }
        }
        assert "retry-after" not in busy.headers
        assert (await world.ask("/health")).status == 200
        page = (await world.ask("/metrics")).body.decode()
        assert (
            'vllm:admission_rejections_total{engine="0",model_name="tiny",'
            'reason="max_num_queued_reqs"} 1.0\n'
        ) in page
        assert 'vllm:num_requests_running{engine="0",model_name="tiny"} 1.0\n' in page
        first.stream.close()

    run_world(test, settings(max_num_queued_reqs=1))


def test_a_key_is_asked_for_on_every_route() -> None:
    async def test(world: World) -> None:
        for path in ("/health", "/metrics", "/v1/models", "/version", "/elsewhere"):
            answer = await world.ask(path)
            assert (answer.status, answer.json) == (401, {"error": "Unauthorized"})
        right = {"authorization": "Bearer secret"}
        assert (await world.complete()).status == 401
        assert (await world.ask(COMPLETIONS, completion(), headers=right)).status == 200
        assert (await world.ask("/tokenize", {"prompt": "x"}, headers=right)).status == 200
        assert (await world.ask("/emulator/stats")).status == 200

    run_world(test, settings(api_key="secret"))


def test_an_engine_without_a_connector_ignores_transfer_params() -> None:
    async def test(world: World) -> None:
        answer = await world.complete(max_tokens=1, kv_transfer_params=PREFILL_LEG)
        assert (answer.status, answer.json["kv_transfer_params"]) == (200, None)
        assert world.fleet.idle

    run_world(test, settings(connector=False))


def test_metrics_tell_the_process_and_the_cache() -> None:
    async def test(world: World) -> None:
        await world.prefill()
        page = (await world.ask("/metrics")).body.decode()
        assert "\nprocess_start_time_seconds 1700000000.0\n" in page
        assert 'block_size="16"' in page
        assert 'num_gpu_blocks="64"' in page
        own = '{engine="0",model_name="tiny"}'
        assert f"vllm:kv_cache_usage_perc{own} {1 / 64}\n" in page
        assert f"vllm:prompt_tokens_total{own} 5.0\n" in page
        assert f"vllm:generation_tokens_total{own} 1.0\n" in page

    run_world(test, settings(kv_capacity_tokens=1024, max_model_len=1024))
