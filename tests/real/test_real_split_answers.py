"""Answers through the router, beside those of one engine alone."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from real_engines import Engines, wait_until
from real_router import CHAT, COMPLETIONS, Router, chat, completion, read_stream

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
    "chat, named tool": (CHAT, chat("In Rome?", tools=[TOOL], tool_choice=NAMED, max_tokens=64)),
    "chat, required tool": (
        CHAT,
        chat("In Oslo?", tools=[TOOL], tool_choice="required", max_tokens=64),
    ),
    "chat, tools on offer": (CHAT, chat("Hello", tools=[TOOL])),
}
_OWN = {"id", "created", "system_fingerprint", "kv_transfer_params"}


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


@pytest.mark.parametrize("name", ASKS)
def test_whole_answers(name: str, router: Router, split: Engines) -> None:
    """A whole answer equals that of one engine alone: every field, in the same order."""
    path, body = ASKS[name]
    body = fresh(path, body)
    ours, theirs = router.post(path, body), split["alone"].post(path, body)
    assert (ours.status_code, theirs.status_code) == (200, 200), (ours.text, theirs.text)
    mine, its = ours.json(), theirs.json()
    assert list(mine) == list(its)
    assert comparable(mine) == comparable(its)
    assert mine["kv_transfer_params"] is None
