"""Streams as a real vLLM 0.32 sends them, and ways of cutting them up."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st

if TYPE_CHECKING:
    from collections.abc import Iterable

DONE = b"data: [DONE]\n\n"
ERROR: dict[str, Any] = {
    "error": {
        "message": "Internal server error",
        "type": "InternalServerError",
        "param": None,
        "code": 500,
    }
}
USAGE = {"prompt_tokens": 7, "total_tokens": 10, "completion_tokens": 3}


def event(document: object, *, spaced: bool = False) -> bytes:
    separators = (", ", ": ") if spaced else (",", ":")
    return f"data: {json.dumps(document, ensure_ascii=False, separators=separators)}\n\n".encode()


def head(kind: str) -> dict[str, Any]:
    return {"id": "cmpl-1", "object": kind, "created": 1700000000, "model": "m"}


def completion_chunk(text: str, finish: str | None = None, **fields: Any) -> dict[str, Any]:
    choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": finish, **fields}
    return {**head("text_completion"), "choices": [choice]}


def chat_chunk(
    delta: dict[str, Any], finish: str | None = None, index: int = 0, **fields: Any
) -> dict[str, Any]:
    choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish, **fields}
    return {**head("chat.completion.chunk"), "choices": [choice]}


def usage_chunk(kind: str = "text_completion") -> dict[str, Any]:
    return {**head(kind), "choices": [], "usage": USAGE, "system_fingerprint": "vllm-0.32.0"}


ROLE = chat_chunk({"role": "assistant", "content": ""})


def completion_stream(*texts: str) -> list[bytes]:
    chunks = [completion_chunk(text) for text in texts[:-1]]
    chunks.append(completion_chunk(texts[-1], "length", stop_reason=None))
    return [event(chunk) for chunk in chunks]


@st.composite
def cut(draw: st.DrawFn, data: bytes) -> list[bytes]:
    """Pieces of `data`: of one small size, at random, or where events end as reads often do."""
    places = draw(st.sampled_from(["steps", "anywhere", "between events", "every event"]))
    if places == "steps":
        size = draw(st.integers(1, 40))
        return [data[at : at + size] for at in range(0, len(data), size)]
    ends = [match.end() for match in re.finditer(rb"\r\n\r\n|\n\n|\r\r", data)]
    if places == "every event":
        cuts = ends
    elif places == "between events" and ends:
        cuts = sorted(draw(st.lists(st.sampled_from(ends), max_size=8)))
    else:
        cuts = sorted(draw(st.lists(st.integers(0, len(data)), max_size=8)))
    return [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]


def with_line_ends(events: Iterable[bytes], line_end: bytes) -> bytes:
    return b"".join(events).replace(b"\n", line_end)
