"""A whole answer out of a stream, for a client that did not ask for one.

The engines are always asked to stream, so that the time to the first token is known. What the
client gets is what the engine itself would have answered, field by field.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from narwhal.model import Route, StreamFailed
from narwhal.wire.chunks import (
    DONE,
    Usage,
    carries_token,
    empty,
    find_error,
    malformed,
    parse_chunk,
    read_usage,
    too_large,
    unfinished,
)
from narwhal.wire.merge import Absent, merge, settle
from narwhal.wire.sse import EventSplitter, event_data

if TYPE_CHECKING:
    from collections.abc import Mapping

    from narwhal.wire.chunks import Chunk

__all__ = ["Assembler", "Usage"]

_OBJECTS = {Route.CHAT: "chat.completion", Route.COMPLETIONS: "text_completion"}
# What every whole answer has, for a leg that had no prefill answer to learn the keys from.
_LEAST: dict[Route, dict[str, Any]] = {
    Route.CHAT: {
        "id": None,
        "object": None,
        "created": None,
        "model": None,
        "choices": {
            "index": None,
            "message": {"role": None, "content": None},
            "logprobs": None,
            "finish_reason": None,
        },
        "usage": {},
    },
    Route.COMPLETIONS: {
        "id": None,
        "object": None,
        "created": None,
        "model": None,
        "choices": {"index": None, "text": None, "logprobs": None, "finish_reason": None},
        "usage": {},
    },
}
# Never passed on: it is about engines, and whole answers of a decoder have null there.
_PRIVATE = "kv_transfer_params"
# The keys of an event that do not go to the top level of the answer as they are.
_NOT_TOP = frozenset({"choices", "usage", _PRIVATE})


class Assembler:
    """Merges the events of one decode leg into the answer of a request that does not stream.

    `template` gives the keys of this engine's whole answers and what they hold by default (see
    `PrefillAnswer.template`). No field of a stream is lost, known or not. `max_bytes` bounds
    what is kept: the choices' JSON, and events with keys around them that the first had not.

    Two things about a whole answer neither its stream nor the prefill tells, only the request:

    - `forced_tool`: a tool was named or required. Such an answer has empty content beside its
      calls; one that chose to call a tool has what the template says.
    - `returns_ids`: token ids were asked for. A stream that echoes its prompt has the prompt's ids
      unasked, and a whole answer has not.
    """

    __slots__ = (
        "_choices",
        "_forced_tool",
        "_kept",
        "_max_bytes",
        "_returns_ids",
        "_route",
        "_splitter",
        "_template",
        "_top",
        "_usage",
        "done",
        "error",
        "first_token",
        "tokens",
        "usage",
    )

    def __init__(
        self,
        *,
        route: Route,
        template: Mapping[str, Any] | None,
        max_bytes: int,
        forced_tool: bool = False,
        returns_ids: bool = True,
    ) -> None:
        self._route = route
        self._forced_tool = forced_tool
        self._returns_ids = returns_ids
        self._template = _LEAST[route] if template is None else template
        self._max_bytes = max_bytes
        self._splitter = EventSplitter()
        self._top: dict[str, Any] = {}
        self._choices: dict[int, dict[str, Any]] = {}
        self._usage: dict[str, Any] | None = None
        self._kept = 0
        self.first_token = False
        """Whether generated output was seen."""
        self.done = False
        """Whether the engine ended the stream as it should, with `[DONE]`."""
        self.error: StreamFailed | None = None
        """Why the stream failed, once it did."""
        self.tokens = 0
        """Events with generated output: tokens, as long as the engine sends one in each."""
        self.usage: Usage | None = None
        """The engine's own count, from the last event that had one."""

    def feed(self, data: bytes) -> bytes:
        """Take what one read brought; bytes after `[DONE]` are dropped. Nothing to forward: `b""`.

        Raises `StreamFailed` (and keeps it in `error`) for an error event, a malformed event,
        and `[DONE]` before any token; `ResponseTooLarge` for an answer over `max_bytes`.
        """
        if self.done or self.error is not None:
            return b""
        try:
            for event in self._splitter.feed(data):
                self._take(event)
                if self.done:
                    return b""
        except StreamFailed as error:
            self.error = error
            raise
        self._check_size(self._splitter.pending)
        return b""

    def finish(self) -> bytes:
        """The engine's body ended: return the answer.

        Raises `StreamFailed` if the stream failed, or ended without `[DONE]`. As with streams, an
        answer that has `[DONE]` needs no `finish_reason`.
        """
        if self.error is None and not self.done:
            self.error = unfinished(self._splitter.pending)
        if self.error is not None:
            raise self.error
        try:
            return msgspec.json.encode(self._answer())
        except RecursionError:
            self.error = malformed("nested too deeply")
            raise self.error from None

    # Events

    def _take(self, event: bytes) -> None:
        self._check_size(len(event))
        data = event_data(event)
        if data is None:
            return
        if data.strip() == DONE:
            if not self.first_token:
                raise empty()
            self.done = True
            return
        chunk = parse_chunk(data)
        if error := find_error(chunk, data):
            raise error
        self._count(chunk, len(data))
        try:
            self._merge(chunk)
        except RecursionError:  # where the parser's depth and the interpreter's are counted apart
            raise malformed("nested too deeply") from None

    def _count(self, chunk: Chunk, size: int) -> None:
        if not self.first_token:
            self.first_token = carries_token(self._route, chunk)
        self.usage = read_usage(chunk) or self.usage
        choices = chunk.get("choices")
        if choices:
            self.tokens += self.first_token
        if self._top and chunk.keys() - self._top.keys() - _NOT_TOP:
            self._kept += size  # it is kept whole; what the first event has, all others repeat
        elif choices:
            self._kept += len(msgspec.json.encode(choices))

    def _check_size(self, size: int) -> None:
        if self._kept + size > self._max_bytes:
            raise too_large(self._max_bytes)

    def _merge(self, chunk: Chunk) -> None:
        for key, value in chunk.items():
            if key == "choices":
                self._merge_choices(value)
            elif key == "usage":
                self._usage = value if isinstance(value, dict) else self._usage
            elif key != _PRIVATE and (value is not None or key not in self._top):
                self._top[key] = value

    def _merge_choices(self, choices: object) -> None:
        if choices is None:
            return
        if not isinstance(choices, list):
            raise malformed("choices is not a list")
        for choice in choices:
            index = choice.get("index", 0) if isinstance(choice, dict) else None
            if type(index) is not int:
                raise malformed("a choice is not an object with an index")
            merged = self._choices.setdefault(index, {})
            for key, value in choice.items():
                name = "message" if key == "delta" else key
                if name == "message" and not isinstance(value, dict | None):
                    raise malformed("a delta is not an object")
                if name == "prompt_token_ids" and not self._returns_ids:
                    continue
                merged[name] = merge(merged.get(name, Absent), value, name)

    # The answer

    def _answer(self) -> dict[str, Any]:
        template = self._template
        values: dict[str, Any] = {
            **self._top,
            "object": _OBJECTS[self._route],
            "choices": [self._choice(index) for index in sorted(self._choices)],
        }
        if self._usage is not None:
            values["usage"] = _fill(template.get("usage") or {}, self._usage)
        return _fill({**template, **({"usage": None} if "usage" in template else {})}, values)

    def _choice(self, index: int) -> dict[str, Any]:
        defaults: Mapping[str, Any] = self._template.get("choices") or {}
        values: dict[str, Any] = settle(self._choices[index]) | {"index": index}
        if self._route is Route.COMPLETIONS:
            values.setdefault("text", "")
        else:
            told = dict(defaults.get("message") or {})
            if self._forced_tool:
                told["content"] = ""
            values["message"] = _message(values.get("message") or {}, told)
        return _fill(defaults, values)


def _message(values: dict[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """The message that the merged deltas make."""
    values.setdefault("role", "assistant")
    calls = values.get("tool_calls")
    if isinstance(calls, list):
        values["tool_calls"] = [_call(call) if isinstance(call, dict) else call for call in calls]
    if not values.get("content"):
        # Every stream begins with empty content. A whole answer has it only if there is nothing
        # else, as the prefill's answer shows for this request.
        others = any(value for key, value in values.items() if key not in {"role", "content"})
        values["content"] = defaults.get("content") if others else ""
    return _fill(defaults, values)


def _call(streamed: dict[str, Any]) -> dict[str, Any]:
    """A tool call of a whole answer, from its merged fragments."""
    call = {key: value for key, value in streamed.items() if key != "index"}  # its place says it
    if isinstance(call.get("function"), dict):
        # A stream that is cut behind the name has none; clients read them from every call.
        call["function"] = {"arguments": "", **call["function"]}
    return call


def _fill(defaults: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """`values` in the order of `defaults`, which stand in for what is absent or null."""
    filled = dict(defaults)
    for key, value in values.items():
        if value is not None or key not in filled:
            filled[key] = value
    return filled
