"""What an engine is asked, and what of its answer is compared: on real engines and emulated ones.

What is compared is the form of an answer: which keys it has, in which order, what is null, and what
kind of value the others are. Texts and numbers are of the model, and no two have the same.
"""

from __future__ import annotations

import itertools
import json
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import attrs
import httpx
from real_engines import MODEL, PATIENCE_S, Counters, wait_until
from real_router import CHAT, COMPLETIONS, Leaver, Streamed, chat, completion, read_stream

PREFILL_LEG = {"do_remote_decode": True, "do_remote_prefill": False}
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "enum": ["Rome", "Oslo"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
NAMED = {"type": "function", "function": {"name": "weather"}}
HERMES = r'<tool_call>\n\{"name": "weather", "arguments": \{"city": "Rome"\}\}\n</tool_call>'
USAGE = {"stream_options": {"include_usage": True}}
CONTINUOUS = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}
COUNTERS = (
    "vllm:prompt_tokens_by_source_total{source=external_kv_transfer}",
    "vllm:prompt_tokens_by_source_total{source=local_compute}",
    "vllm:external_prefix_cache_hits_total",
    "vllm:nixl_bytes_transferred_count",
    "vllm:nixl_num_failed_transfers_total",
    "vllm:nixl_num_kv_expired_reqs_total",
    "vllm:nixl_num_notifications_after_expiry_total",
    "vllm:request_success_total",
)
# Their values are words of the dialect, not of the model.
_LITERAL = {"object", "type", "param", "code", "finish_reason", "stop_reason", "role", "owned_by"}


@attrs.frozen
class Pair:
    """A producer and a consumer, both of them real or both emulated."""

    producer: str
    consumer: str

    def counters(self, url: str) -> Counters:
        """That engine's metrics."""
        return Counters(httpx.get(f"{url}/metrics", timeout=PATIENCE_S).text)

    def pinned(self) -> bool:
        """Whether the producer holds blocks."""
        return self.counters(self.producer)["vllm:kv_cache_usage_perc"] > 0

    def wait_free(self) -> None:
        """Wait until it holds none: long before any lease."""
        wait_until(lambda: not self.pinned(), "the producer is free", 10)

    def prefill(self, prompt: str) -> dict[str, Any]:
        """A prefill leg's handoff."""
        body = completion(prompt, max_tokens=1, kv_transfer_params=PREFILL_LEG)
        answer = post(self.producer, COMPLETIONS, body)
        params: dict[str, Any] = answer.json()["kv_transfer_params"]
        return params


def post(url: str, path: str, body: object) -> httpx.Response:
    """One request."""
    return httpx.post(url + path, json=body, timeout=PATIENCE_S)


def fresh(words: str = "assert") -> str:
    """A prompt that no cache knows, of two of a real engine's blocks."""
    return f"{uuid.uuid4()} " + f"{words} " * 160


# Forms


def form(value: Any, key: str = "") -> Any:
    """What is left of a JSON value when texts and numbers are taken out."""
    if value is None or isinstance(value, bool) or (key in _LITERAL and value != MODEL):
        return value
    if isinstance(value, int | float):
        return "number"
    if isinstance(value, str):
        return "text"
    if key == "bytes":
        return "bytes"
    if isinstance(value, list):
        forms = [form(item, key) for item in value]
        return [each for n, each in enumerate(forms) if each not in forms[:n]]
    if key == "top_logprobs" and "token" not in value:
        return "by token"
    if key == "delta" and not value:
        return {"content": "text"}  # a token that is a part of a character has none
    return {name: form(item, name) for name, item in value.items()}


def form_of_answer(answer: httpx.Response) -> Any:
    """Status, kind and form of a whole answer."""
    kind = answer.headers.get("content-type")
    document = form(answer.json()) if answer.content and "json" in (kind or "") else None
    return [answer.status_code, kind, document]


def form_of_stream(stream: Streamed) -> Any:
    """Status and forms of the events; a form that repeats itself is there once."""
    events = [each if each == "[DONE]" else form(json.loads(each)) for each in stream.events]
    return [stream.status, *(each for each, _ in itertools.groupby(events))]


# Cases

Case = Callable[[Pair], Any]


def _ask(path: str, body: dict[str, Any]) -> Case:
    def whole(pair: Pair) -> Any:
        return form_of_answer(post(pair.consumer, path, body))

    return whole


def _stream(path: str, body: dict[str, Any]) -> Case:
    def stream(pair: Pair) -> Any:
        return form_of_stream(read_stream(pair.consumer, path, body))

    return stream


def _get(path: str) -> Case:
    def get(pair: Pair) -> Any:
        return form_of_answer(httpx.get(pair.consumer + path, timeout=PATIENCE_S))

    return get


def _answers() -> Iterator[tuple[str, Case]]:
    text, talk = completion("def f(", ignore_eos=True), chat("Hello", ignore_eos=True)
    asked: dict[str, tuple[str, dict[str, Any]]] = {
        "completion": (COMPLETIONS, text),
        "completion, one token": (COMPLETIONS, text | {"max_tokens": 1}),
        "completion, token ids": (COMPLETIONS, text | {"prompt": [300, 301, 302]}),
        "completion, a list of one": (COMPLETIONS, text | {"prompt": ["def f("]}),
        "completion, logprobs": (COMPLETIONS, text | {"logprobs": 2}),
        "completion, returned ids": (COMPLETIONS, text | {"return_token_ids": True}),
        "completion, echo": (COMPLETIONS, text | {"echo": True}),
        "chat": (CHAT, talk),
        "chat, logprobs": (CHAT, talk | {"logprobs": True, "top_logprobs": 2}),
        "chat, returned ids": (CHAT, talk | {"return_token_ids": True}),
        "chat, tools on offer": (CHAT, talk | {"tools": [TOOL], "tool_choice": "none"}),
        "chat, required tool": (
            CHAT,
            chat("In Oslo?", max_tokens=64, tools=[TOOL], tool_choice="required"),
        ),
        "chat, named tool": (
            CHAT,
            chat("In Oslo?", max_tokens=64, tools=[TOOL], tool_choice=NAMED),
        ),
        # A model of random weights calls a tool if it can write nothing else; an emulated one if
        # it is told to by a word of the prompt.
        "chat, tool called by itself": (
            CHAT,
            chat(
                "So? out=tools",
                max_tokens=100,
                tools=[TOOL],
                structured_outputs={"regex": HERMES},
            ),
        ),
    }
    for name, (path, body) in asked.items():
        yield name, _ask(path, body)
        yield f"{name}, streamed", _stream(path, body)
        yield f"{name}, streamed with usage", _stream(path, body | USAGE)
    yield "completion, usage all along", _stream(COMPLETIONS, text | CONTINUOUS)
    yield "chat, usage all along", _stream(CHAT, talk | CONTINUOUS)


def _refusals() -> Iterator[tuple[str, Case]]:
    refused: dict[str, dict[str, Any]] = {
        "another model": {"model": "other"},
        "no tokens": {"max_tokens": 0},
        "too many tokens": {"max_tokens": 100_000},
        "too long a prompt": {"prompt": "word " * 6000},
        "a token out of the vocabulary": {"prompt": [5, 999_999_999]},
        "more at least than at most": {"min_tokens": 9, "max_tokens": 3},
        "greedy and two": {"n": 2},
        "options of a stream": USAGE,
        "no number": {"max_tokens": "many"},
        "no prompt": {"prompt": None},
        "too many logprobs": {"logprobs": 1000},
    }
    for name, fields in refused.items():
        yield f"refused: {name}", _ask(COMPLETIONS, completion("x") | fields)
        if fields is not USAGE:
            yield f"refused, streamed: {name}", _stream(COMPLETIONS, completion("x") | fields)
    yield "refused: no messages", _ask(CHAT, {"model": MODEL})
    yield "refused: no such route", _ask("/v1/nothing", {})
    yield "refused: another method", _get(COMPLETIONS)


def _pages() -> Iterator[tuple[str, Case]]:
    for path in ("/health", "/version", "/v1/models"):
        yield f"page: {path}", _get(path)
    yield "page: /tokenize", _ask("/tokenize", {"model": MODEL, "prompt": "def f("})
    messages = [{"role": "user", "content": "Hello"}]
    yield "page: /tokenize of messages", _ask("/tokenize", {"model": MODEL, "messages": messages})
    yield "page: /detokenize", _ask("/detokenize", {"model": MODEL, "tokens": [300, 301]})


# Legs


def _prefill(path: str, body: dict[str, Any]) -> Case:
    def prefill(pair: Pair) -> Any:
        leg = body | {"max_tokens": 1, "kv_transfer_params": PREFILL_LEG}
        answer = post(pair.producer, path, leg)
        params = answer.json()["kv_transfer_params"]
        _release(pair, params)
        return [form_of_answer(answer), {"do": params["do_remote_prefill"]}]

    return prefill


def _release(pair: Pair, params: dict[str, Any], max_tokens: int = 1) -> httpx.Response:
    """As the router does it."""
    body = {"model": MODEL, "prompt": [0], "max_tokens": max_tokens, "kv_transfer_params": params}
    answer = post(pair.consumer, COMPLETIONS, body)
    pair.wait_free()
    return answer


def released(pair: Pair) -> Any:
    """A release leg frees the producer, even if it is all that these two engines ever did."""
    params = pair.prefill(fresh())
    held = pair.pinned()
    return [held, form_of_answer(_release(pair, params))]


def handed_over(pair: Pair) -> Any:
    """A whole handoff: what both engines count, as a share of the prompt where it is tokens."""
    prompt = fresh()
    urls = (pair.producer, pair.consumer)
    params = pair.prefill(prompt)
    before = [pair.counters(url) for url in urls]
    answer = post(pair.consumer, COMPLETIONS, completion(prompt, kv_transfer_params=params))
    tokens = answer.json()["usage"]["prompt_tokens"]
    pulled = COUNTERS[0]
    wait_until(lambda: pair.counters(urls[1])[pulled] > before[1][pulled], "it is counted", 10)
    pair.wait_free()
    after = [pair.counters(url) for url in urls]
    counted = [
        {name: now[name] - then[name] for name in COUNTERS}
        for now, then in zip(after, before, strict=True)
    ]
    shares = [
        {name: "the prompt" if value == tokens else value for name, value in each.items()}
        for each in counted
    ]
    return [form_of_answer(answer), dict(zip(("producer", "consumer"), shares, strict=True))]


def refused_with_a_handoff(pair: Pair) -> Any:
    """A decode leg that is refused frees the producer, once the engines know each other."""
    params = pair.prefill(fresh())
    return form_of_answer(_release(pair, params, max_tokens=0))


def refused_model_with_a_handoff(pair: Pair) -> Any:
    """So does one of another model."""
    params = pair.prefill(fresh())
    body = completion("x", kv_transfer_params=params) | {"model": "other"}
    answer = post(pair.consumer, COMPLETIONS, body)
    pair.wait_free()
    return form_of_answer(answer)


def refused_by_the_producer(pair: Pair) -> Any:
    """A producer takes no word from itself: what it holds it goes on holding."""
    params = pair.prefill(fresh())
    body = {"model": MODEL, "prompt": [0], "max_tokens": 0, "kv_transfer_params": params}
    answer = post(pair.producer, COMPLETIONS, body)
    wait_until(lambda: pair.counters(pair.producer)["vllm:num_requests_running"] == 0, "it rests")
    held = pair.pinned()
    _release(pair, params)
    return [form_of_answer(answer), held]


def used_twice(pair: Pair) -> Any:
    """The second decode with the same handoff is right: the decoder has the prompt itself."""
    prompt = fresh()
    params = pair.prefill(prompt)
    body = completion(prompt, kv_transfer_params=params)
    texts = [post(pair.consumer, COMPLETIONS, body).json()["choices"][0]["text"] for _ in range(2)]
    pair.wait_free()
    return texts[0] == texts[1]


def of_nobody(pair: Pair) -> Any:
    """A handoff of an engine that nobody knows: the load fails, streamed or not."""
    prompt = fresh()
    params = pair.prefill(prompt)
    wrong = params | {"remote_engine_id": str(uuid.uuid4())}
    body = completion(prompt, kv_transfer_params=wrong)
    whole = post(pair.consumer, COMPLETIONS, body)
    stream = read_stream(pair.consumer, COMPLETIONS, body)
    talk = read_stream(pair.consumer, CHAT, chat("x", kv_transfer_params=wrong))
    _release(pair, params)
    return [form_of_answer(whole), form_of_stream(stream), form_of_stream(talk)]


def streamed_prefill(pair: Pair) -> Any:
    """A prefill leg that is streamed says nothing of its handoff."""
    leg = completion("x", max_tokens=1, kv_transfer_params=PREFILL_LEG)
    return form_of_stream(read_stream(pair.producer, COMPLETIONS, leg))


def client_gone(pair: Pair) -> Any:
    """A client that leaves ends its request, streamed or not."""

    def running() -> float:
        return pair.counters(pair.consumer)["vllm:num_requests_running"]

    for stream in (False, True):
        body = completion(fresh("try"), max_tokens=1200, ignore_eos=True, stream=stream)
        client = Leaver(pair.consumer, COMPLETIONS, body)
        wait_until(lambda: running() == 1, "it runs", 20)
        client.leave()
        wait_until(lambda: running() == 0, "it is gone", 10)
    return "gone"


CASES: dict[str, Case] = {
    # First, so that the engines have not shaken hands yet.
    "leg: released at the first contact": released,
    **dict(_answers()),
    **dict(_refusals()),
    **dict(_pages()),
    "leg: prefill": _prefill(COMPLETIONS, completion(fresh())),
    "leg: prefill of a chat": _prefill(CHAT, chat(fresh())),
    "leg: a whole handoff": handed_over,
    "leg: refused": refused_with_a_handoff,
    "leg: refused for its model": refused_model_with_a_handoff,
    "leg: released at the producer": refused_by_the_producer,
    "leg: used twice": used_twice,
    "leg: of nobody": of_nobody,
    "a client that leaves": client_gone,
    # Last, since what it pins stays pinned until its lease ends.
    "leg: prefill, streamed": streamed_prefill,
}
