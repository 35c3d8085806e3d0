"""Answers through the router, beside those of one engine alone."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import groupby
from typing import Any

import pytest
from real_cases import form
from real_engines import Engines, RealEngine, wait_until
from real_router import CHAT, COMPLETIONS, Router, Streamed, chat, completion, read_stream

pytestmark = [pytest.mark.real, pytest.mark.sockets]

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
# A model of random weights would never write this of its own accord.
HERMES = r'<tool_call>\n\{"name": "weather", "arguments": \{"city": "Rome"\}\}\n</tool_call>'
# Tokens that take part of a character each, so that chunks without text come in between.
WIDE = "日本語 🎉🐋 한국어 👩‍👩‍👧 é ß ñ กำ "

ASKS: dict[str, tuple[str, dict[str, Any]]] = {
    "completion": (COMPLETIONS, completion("Once upon a time", max_tokens=24)),
    "long prompt": (COMPLETIONS, completion("def connect(self, host): " * 60)),
    "one token": (COMPLETIONS, completion("import socket", max_tokens=1)),
    "token ids": (COMPLETIONS, completion([7, 300, 301, 302, 17, 500, 611])),
    "one prompt in a list": (COMPLETIONS, completion(["class Lock:"])),
    "wide characters": (COMPLETIONS, completion(WIDE * 4, max_tokens=48)),
    "logprobs": (COMPLETIONS, completion("return self._state", logprobs=3)),
    "echo": (COMPLETIONS, completion("async def main", echo=True)),
    "returned ids": (COMPLETIONS, completion("for key in", return_token_ids=True)),
    "seed": (COMPLETIONS, completion("raise ValueError", temperature=0.9, seed=11)),
    "minimum": (COMPLETIONS, completion("while True:", min_tokens=8, max_tokens=12)),
    "chat": (CHAT, chat("Why is the sea salty?", max_tokens=24)),
    "chat, new bound": (CHAT, chat("Say it", max_completion_tokens=5, max_tokens=None)),
    "chat, wide": (CHAT, chat(WIDE * 3, max_tokens=48)),
    "chat, logprobs": (CHAT, chat("Count", logprobs=True, top_logprobs=2)),
    "chat, returned ids": (CHAT, chat("Count on", return_token_ids=True)),
    "chat, tools on offer": (CHAT, chat("Hello", tools=[TOOL])),
    "chat, tool called by itself": (
        CHAT,
        chat("So?", tools=[TOOL], structured_outputs={"regex": HERMES}, max_tokens=100),
    ),
}
# Prompts upon which this model ends its call soon.
REQUIRED = ("In Oslo?", "In Rome?", "Or where?")
_OWN = {"id", "created", "system_fingerprint", "kv_transfer_params"}
_PULLED = "vllm:prompt_tokens_by_source_total{source=external_kv_transfer}"
_COMPUTED = "vllm:prompt_tokens_by_source_total{source=local_compute}"
_TRANSFERS = "vllm:nixl_bytes_transferred_count"


@pytest.fixture(scope="module")
def router(stage: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Router]:
    engines = stage.use("split")
    roles = {engines["p0"]: "prefill", engines["d0"]: "decode"}
    with Router(tmp_path_factory.mktemp("router"), roles) as router:
        yield router


def fresh(path: str, body: dict[str, Any]) -> dict[str, Any]:
    """The same question with a beginning that no cache has seen."""
    tag = uuid.uuid4().hex
    if path == CHAT:
        (message,) = body["messages"]
        return body | {"messages": [message | {"content": f"{tag} {message['content']}"}]}
    match body["prompt"]:
        case str(text):
            return body | {"prompt": f"{tag} {text}"}
        case [str(text)]:
            return body | {"prompt": [f"{tag} {text}"]}
        case ids:
            return body | {"prompt": [*(300 + byte for byte in bytes.fromhex(tag)), *ids]}


def comparable(answer: dict[str, Any]) -> dict[str, Any]:
    """Without what is another for every answer, or of an engine's own set-up.

    `id` and `created` are of the one request. The fingerprint is a digest of the engine's whole
    configuration, connector and ports among it. The ids of tool calls are drawn at random.
    """
    kept = {key: value for key, value in answer.items() if key not in _OWN}
    for choice in kept["choices"]:
        for call in (choice.get("message") or choice.get("delta") or {}).get("tool_calls") or ():
            call.pop("id", None)
    return kept


def folded(stream: Streamed) -> list[tuple[Any, dict[str, str], dict[str, list[float]]]]:
    """A stream's events, those of the same form put together: form, texts and numbers by field.

    An engine that is ahead of its reader puts several tokens into one event. Each field's values
    are in the order of tokens then; those of two fields come in another order than one by one.
    """
    out = []
    for kind, chunks in groupby(map(comparable, stream.chunks), form):
        texts: dict[str, str] = {}
        numbers: dict[str, list[float]] = {}
        for field, leaf in (each for chunk in chunks for each in _leaves(chunk)):
            if isinstance(leaf, str):
                texts[field] = texts.get(field, "") + leaf
            else:
                numbers.setdefault(field, []).append(leaf)
        out.append((kind, texts, numbers))
    return out


def _leaves(value: Any, field: str = "") -> Iterator[tuple[str, str | float]]:
    """What a model says, with the names that lead there; not what each event says again."""
    if isinstance(value, dict):
        for name, item in value.items():
            yield from _leaves(item, f"{field}.{name}")
    elif isinstance(value, list):
        for item in value:
            yield from _leaves(item, field)
    elif value is not None and field.rpartition(".")[2] not in {"index", "object", "model", "type"}:
        yield field, value


@contextmanager
def one_handoff(decoder: RealEngine) -> Iterator[dict[str, Any]]:
    """One request: its whole prompt has to come from the producer. The block fills in `usage`."""
    before, asked = decoder.counters(), dict[str, Any]()
    yield asked

    def pulled() -> bool:
        now = decoder.counters()
        return bool(now[_PULLED] - before[_PULLED] == asked["usage"]["prompt_tokens"])

    wait_until(pulled, "the decoder counts every token of the prompt as pulled", 10)
    after = decoder.counters()
    assert after[_TRANSFERS] - before[_TRANSFERS] == 1
    assert after[_COMPUTED] == before[_COMPUTED]


@pytest.mark.parametrize("name", ASKS)
def test_whole_answers(name: str, router: Router, split: Engines) -> None:
    """A whole answer equals that of one engine alone, in every field; its KV cache was moved."""
    path, body = ASKS[name]
    body = fresh(path, body)
    with one_handoff(split["d0"]) as asked:
        ours = router.post(path, body)
        assert ours.status_code == 200, ours.text
        mine = ours.json()
        asked["usage"] = mine["usage"]
    theirs = split["alone"].post(path, body)
    its = theirs.json()
    assert list(mine) == list(its)
    assert comparable(mine) == comparable(its)
    assert mine["kv_transfer_params"] is None


@pytest.mark.parametrize("name", ASKS)
def test_streamed_answers(name: str, router: Router, split: Engines) -> None:
    """A stream equals that of one engine alone, in every field; its KV cache was moved."""
    path, body = ASKS[name]
    body = fresh(path, body) | {"stream_options": {"include_usage": True}}
    with one_handoff(split["d0"]) as asked:
        ours = read_stream(router.url, path, body)
        asked["usage"] = ours.chunks[-1]["usage"]
    theirs = read_stream(split["alone"].url, path, body)
    assert ours.done
    assert theirs.done
    assert folded(ours) == folded(theirs)


def test_a_stream_without_usage(router: Router, split: Engines) -> None:
    """A client that did not ask for usage gets no event of it, and the others unchanged."""
    body = completion(f"{uuid.uuid4()} yield", max_tokens=6)
    ours = read_stream(router.url, COMPLETIONS, body)
    theirs = read_stream(split["alone"].url, COMPLETIONS, body)
    assert folded(ours) == folded(theirs)
    assert not any("usage" in chunk and chunk["usage"] for chunk in ours.chunks)


@pytest.mark.parametrize("included", [False, True])
def test_stop_strings(included: bool, router: Router, split: Engines) -> None:
    """A stop string ends an answer where it ends that of one engine, streamed or not."""
    body = completion(f"{uuid.uuid4()} assert", max_tokens=32)
    text = split["alone"].post(COMPLETIONS, body).json()["choices"][0]["text"]
    body |= {"stop": [text[len(text) // 2 :][:3]], "include_stop_str_in_output": included}
    its = split["alone"].post(COMPLETIONS, body).json()
    assert its["choices"][0]["finish_reason"] == "stop"
    assert comparable(router.post(COMPLETIONS, body).json()) == comparable(its)
    streamed = read_stream(router.url, COMPLETIONS, body)
    assert streamed.done
    assert streamed.text == its["choices"][0]["text"]


def required(prompt: str, choice: object = "required") -> dict[str, Any]:
    return chat(prompt, tools=[TOOL], tool_choice=choice, max_tokens=64)


@pytest.mark.parametrize("choice", ["required", NAMED], ids=["required", "named"])
def test_a_required_tool(choice: object, router: Router, split: Engines) -> None:
    """A call that was required, or of a tool that was named, is what one engine makes of it."""
    for prompt in REQUIRED:
        body = required(prompt, choice)
        its = split["alone"].post(CHAT, body).json()
        assert its["choices"][0]["finish_reason"] != "length"
        assert comparable(router.post(CHAT, body).json()) == comparable(its)
        ours, theirs = (read_stream(each, CHAT, body) for each in (router.url, split["alone"].url))
        assert folded(ours) == folded(theirs)


def test_a_required_tool_cut_short(router: Router, split: Engines) -> None:
    """A required call that `max_tokens` cuts is a call, as in the engine's streams; by itself the
    engine writes it out as text."""
    body = required(REQUIRED[0]) | {"max_tokens": 24}
    (mine,) = router.post(CHAT, body).json()["choices"]
    (its,) = split["alone"].post(CHAT, body).json()["choices"]
    assert "tool_calls" not in its["message"]
    assert its["message"]["content"]
    assert (mine["message"]["content"], mine["finish_reason"]) == ("", "length")
    (call,) = mine["message"]["tool_calls"]
    stream = read_stream(split["alone"].url, CHAT, body)
    deltas = [chunk["choices"][0]["delta"] for chunk in stream.chunks]
    calls = [each["function"] for delta in deltas for each in delta.get("tool_calls", ())]
    assert call["function"]["arguments"] == "".join(each.get("arguments", "") for each in calls)


def test_eight_at_once(router: Router, split: Engines, note: Callable[..., None]) -> None:
    """Eight requests at once, streamed and not, get their own answers and no other's."""
    tag = uuid.uuid4()
    asked = [completion(f"{n} {tag} " + "class Stream: " * n * 8) for n in range(8)]
    with ThreadPoolExecutor(8) as pool:
        whole = list(pool.map(lambda body: router.post(COMPLETIONS, body).json(), asked))
        streams = list(pool.map(lambda body: read_stream(router.url, COMPLETIONS, body), asked))
    alone = [split["alone"].post(COMPLETIONS, body).json() for body in asked]
    expected = [answer["choices"][0]["text"] for answer in alone]
    assert [answer["choices"][0]["text"] for answer in whole] == expected
    assert [streamed.text for streamed in streams] == expected
    assert len(set(expected)) == len(expected)
    done = [row for row in router.rows() if row["terminal"] == "completed"]
    times = sorted(row["attempts"][0]["handoff_age_s"] for row in done)
    note(requests=len(done), median_handoff_age_s=round(times[len(times) // 2], 3))


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": ["one", "two"]}, "prompt"),
        ({"n": 2, "temperature": 1}, "n"),
        ({"best_of": 2}, "best_of"),
        ({"kv_transfer_params": {"do_remote_decode": True}}, "kv_transfer_params"),
    ],
)
def test_what_two_legs_cannot_carry(fields: dict[str, Any], param: str, router: Router) -> None:
    """Several prompts, several answers and foreign handoffs are refused before any engine."""
    answer = router.post(COMPLETIONS, completion("x") | fields)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param


@pytest.mark.parametrize(
    "fields",
    [
        {"max_tokens": 100_000},
        {"prompt": "word " * 4000},
        {"prompt": [1, 2, 999_999]},
        {"temperature": -1},
        {"logprobs": 1000},
        {"stop": 5},
        {"min_tokens": 9, "max_tokens": 3},
    ],
    ids=json.dumps,
)
@pytest.mark.parametrize("stream", [False, True])
def test_what_the_engine_refuses(
    fields: dict[str, Any], stream: bool, router: Router, split: Engines
) -> None:
    """What an engine refuses is refused with its own status and error, and leaves nothing."""
    body = completion("x") | fields
    theirs = split["alone"].post(COMPLETIONS, body)
    assert theirs.status_code == 400
    if stream:
        # The status is 200 where the prefill, of one token, was not refused: serving.stream_commit.
        ours = read_stream(router.url, COMPLETIONS, body)
        assert not ours.done
        status, error = ours.status, ours.error
    else:
        answer = router.post(COMPLETIONS, body)
        status, error = answer.status_code, answer.json()["error"]
    assert status in ((200, 400) if stream else (400,))
    assert error is not None
    said = theirs.json()["error"]
    assert {key: error[key] for key in said} == said
    wait_until(lambda: split["p0"].pinned == 0, "the producer holds nothing", 10)
