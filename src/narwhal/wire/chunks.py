"""Single events of a completion stream, parsed: is it a token, an error, a count of tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import attrs
import msgspec

from narwhal.model import ResponseTooLarge, Route, StreamFailed
from narwhal.wire.errors import parse_engine_error
from narwhal.wire.fields import MOST_TOKENS

if TYPE_CHECKING:
    from typing import TypeGuard

DONE: Final = b"[DONE]"
"""The data of the event that ends a stream that went well."""

Chunk = dict[str, Any]

_chunk = msgspec.json.Decoder(Chunk)


@attrs.frozen
class Usage:
    """Tokens as the engine counted them."""

    prompt_tokens: int
    completion_tokens: int


def parse_chunk(data: bytes) -> Chunk:
    """The object in an event's data; `StreamFailed` if it is not one."""
    try:
        return _chunk.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise malformed(f"not a JSON object: {error}") from None


def find_error(chunk: Chunk, data: bytes) -> StreamFailed | None:
    """The error that an event reports instead of output; its `body` is the event's data.

    The message names the engine's own code and type but not its words, which may name anything.
    `parse_engine_error(200, error.body)` has them all, and the status that fits.
    """
    if chunk.get("error") in (None, False, "") and chunk.get("object") != "error":
        return None
    said = parse_engine_error(200, data)
    kind = f"{said.status} {said.type}" if said.type else str(said.status)
    return StreamFailed(
        f"the engine reported an error in its stream: {kind}", code="stream_error", body=data
    )


def carries_token(route: Route, chunk: Chunk) -> bool:
    """Whether a chunk is a sign of generation, so that the first such is the first token.

    An empty text is one: it is half a character. What announces the role and nothing else is
    not, and neither are usage and metadata. A chunk that says why generation ended is one.
    """
    choices = chunk.get("choices")
    if not isinstance(choices, list):
        return False
    return any(isinstance(choice, dict) and _is_generated(route, choice) for choice in choices)


def _is_generated(route: Route, choice: dict[str, Any]) -> bool:
    if choice.get("finish_reason") is not None or choice.get("token_ids"):
        return True
    if route is Route.COMPLETIONS:
        return isinstance(choice.get("text"), str)
    delta = choice.get("delta")
    if not isinstance(delta, dict):
        return False
    if not delta.get("role"):
        return True
    return any(value for key, value in delta.items() if key != "role")


def is_usage_only(chunk: Chunk) -> bool:
    """Whether this is the event that `include_usage` adds: a count, and no choices."""
    return isinstance(chunk.get("usage"), dict) and not chunk.get("choices")


def read_usage(chunk: Chunk) -> Usage | None:
    """The usage in a chunk, if it counts prompt and completion, in numbers that can be."""
    usage = chunk.get("usage")
    if not isinstance(usage, dict):
        return None
    prompt, completion = usage.get("prompt_tokens"), usage.get("completion_tokens")
    return Usage(prompt, completion) if _is_count(prompt) and _is_count(completion) else None


def _is_count(value: object) -> TypeGuard[int]:
    return type(value) is int and 0 <= value <= MOST_TOKENS


def malformed(why: str) -> StreamFailed:
    """For an event that is no chunk of a completion."""
    return StreamFailed(f"the engine sent a malformed event: {why}", code="stream_malformed")


def unfinished(held: int) -> StreamFailed:
    """For a stream that ended without its `[DONE]`."""
    tail = f", {held} bytes into an event" if held else ""
    return StreamFailed(f"the engine's stream ended without [DONE]{tail}", code="stream_cut")


def empty() -> StreamFailed:
    """For a stream that ended well and had no token in it."""
    return StreamFailed("the engine's stream has [DONE] but no token", code="stream_empty")


def too_large(limit: int) -> ResponseTooLarge:
    """For more bytes in memory than `serving.max_response_bytes`."""
    return ResponseTooLarge(
        f"The answer needs more than {limit} bytes of memory (serving.max_response_bytes); "
        "ask for less output or fewer log-probabilities, or raise the setting."
    )
