"""The client's side: requests read, models listed, errors told, in the shapes of the OpenAI API."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import msgspec

from narwhal.model import InvalidRequest, Route, UnknownModel
from narwhal.wire.errors import error_body, error_event
from narwhal.wire.fields import (
    MOST_TOKENS,
    first_byte,
    is_null,
    parse_object,
    read_boolean,
    read_integer,
    read_object,
    shorten,
    text_length,
)
from narwhal.wire.splitting import refuse_unsplittable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from narwhal.wire.fields import Fields

__all__ = [
    "CompletionRequest",
    "error_body",
    "error_event",
    "model_body",
    "models_body",
    "parse_request",
]


@attrs.frozen(kw_only=True)
class CompletionRequest:
    """A request that two legs can serve, as far as the router reads it.

    `fields` is the whole of it: every top-level field in the client's order, as the client's
    own bytes. Fields that the router does not know stay in it untouched, for the engines.
    """

    route: Route
    model: str
    stream: bool
    include_usage: bool
    """Whether the client itself asked for the event that carries `usage`."""
    max_tokens: int | None
    """The client's bound on output tokens (the chat route's newer name wins); `None`: none set."""
    prompt_chars: int
    """Characters of prompt text, tools included, for an estimate of its tokens."""
    prompt_tokens: int | None
    """The prompt's tokens, where the prompt came as token ids; then `prompt_chars` is 0."""
    fields: Mapping[str, msgspec.Raw]


class _Part(msgspec.Struct):
    """One part of a message's content; images and sound have no `text`."""

    text: msgspec.Raw = msgspec.Raw()


class _Message(msgspec.Struct):
    """A message, as far as it counts towards the length of the prompt."""

    content: msgspec.Raw = msgspec.Raw()
    tool_calls: msgspec.Raw = msgspec.Raw()


_string = msgspec.json.Decoder(str)
_values = msgspec.json.Decoder(list[msgspec.Raw])
_messages = msgspec.json.Decoder(list[_Message])
_parts = msgspec.json.Decoder(list[_Part])

# The decode leg's body is made from these options once more, where less of the stack may be left
# than now: what can be read here must be readable there.
_MAX_OPTION_BRACKETS = 32

# Looking at 1.4 million messages, which 4 MiB can hold, was measured to take a second, in which
# nobody else is served. 64 KiB take 15 ms at the worst; beyond, nobody's conversation has so many.
_LONG_BYTES = 65_536
_MOST_OBJECTS = 20_000

_PROMPT_KINDS = "'prompt' must be a string or a non-empty list of token ids."
_MESSAGE_KINDS = "'messages' must be a non-empty list of message objects."


def parse_request(route: Route, body: bytes, *, model: str) -> CompletionRequest:
    """Read a completion request for a fleet that serves `model`.

    Only what the router acts on is checked; everything else is the engines' to judge. Raises
    `UnknownModel` for another model, `InvalidRequest` for anything else that is wrong, with the
    field in `param`. No body makes it raise anything else.
    """
    try:
        return _parse(route, body, model)
    except RecursionError:
        raise InvalidRequest("The request body is nested too deeply.") from None


def _parse(route: Route, body: bytes, model: str) -> CompletionRequest:
    fields = parse_object(body)
    _check_model(fields, model)
    refuse_unsplittable(route, fields)
    stream = read_boolean(fields, "stream")
    if route is Route.CHAT:
        chars, tokens = _measure_messages(fields), None
    else:
        chars, tokens = _measure_prompt(fields)
    return CompletionRequest(
        route=route,
        model=model,
        stream=stream,
        include_usage=_read_include_usage(fields, stream=stream),
        max_tokens=_read_max_tokens(route, fields),
        prompt_chars=chars,
        prompt_tokens=tokens,
        fields=fields,
    )


def models_body(model: str, created: int) -> bytes:
    """The answer to GET /v1/models; `created` is in seconds since the epoch."""
    return msgspec.json.encode({"object": "list", "data": [_entry(model, created)]})


def model_body(asked: str, model: str, created: int) -> bytes:
    """The answer to GET /v1/models/{asked}; raises `UnknownModel` if that is not `model`."""
    _check_same(asked, model)
    return msgspec.json.encode(_entry(model, created))


def _entry(model: str, created: int) -> dict[str, object]:
    return {"id": model, "object": "model", "created": created, "owned_by": "narwhal"}


def _check_model(fields: Fields, model: str) -> None:
    value = fields.get("model")
    if value is None or is_null(value):
        raise InvalidRequest(f"'model' is missing; this fleet serves {model!r}.", param="model")
    try:
        asked = _string.decode(value)
    except msgspec.ValidationError:
        raise InvalidRequest("'model' must be a string.", param="model") from None
    _check_same(asked, model)


def _check_same(asked: str, model: str) -> None:
    if asked != model:
        raise UnknownModel(
            f"The model {shorten(asked)!r} does not exist here; this fleet serves {model!r}.",
            param="model",
        )


def _read_include_usage(fields: Fields, *, stream: bool) -> bool:
    options = read_object(fields, "stream_options")
    if not options:  # an empty object asks for nothing, and engines let it pass
        return False
    if not stream:
        raise InvalidRequest(
            "'stream_options' is only allowed with 'stream': true.", param="stream_options"
        )
    text = bytes(fields["stream_options"])
    if text.count(b"{") + text.count(b"[") > _MAX_OPTION_BRACKETS:
        raise InvalidRequest("'stream_options' takes flags.", param="stream_options")
    return read_boolean(options, "include_usage", param="stream_options.include_usage")


def _read_max_tokens(route: Route, fields: Fields) -> int | None:
    for name in ("max_tokens", "max_completion_tokens"):
        bound = read_integer(fields, name)
        if bound is not None and not 1 <= bound <= MOST_TOKENS:
            limit = "at least 1" if bound < 1 else f"at most {MOST_TOKENS}"
            got = shorten(str(bound))
            raise InvalidRequest(f"{name!r} must be {limit}, got {got}.", param=name)
    if route is Route.CHAT:
        newer = read_integer(fields, "max_completion_tokens")
        if newer is not None:
            return newer
    return read_integer(fields, "max_tokens")


def _measure_prompt(fields: Fields) -> tuple[int, int | None]:
    """Characters and tokens of the one prompt; one prompt in a list of its own is as good."""
    value = fields.get("prompt")
    if value is None or is_null(value):
        raise InvalidRequest("'prompt' is missing.", param="prompt")
    kind = first_byte(value)
    if kind == b'"':
        return text_length(value), None
    if kind != b"[":
        raise InvalidRequest(_PROMPT_KINDS, param="prompt")
    tokens = _count_token_ids(value)
    if tokens:
        return 0, tokens
    prompts = _values.decode(value)
    if len(prompts) > 1 and first_byte(prompts[0]) in (b'"', b"["):
        raise InvalidRequest(
            f"One prompt per request, got {len(prompts)}; send a request for each.",
            param="prompt",
        )
    if len(prompts) == 1 and first_byte(prompts[0]) == b'"':
        return text_length(prompts[0]), None
    if len(prompts) == 1 and (tokens := _count_token_ids(prompts[0])):
        return 0, tokens
    raise InvalidRequest(_PROMPT_KINDS, param="prompt")


def _count_token_ids(value: msgspec.Raw) -> int:
    """The length of a flat list of integers that are not negative, 0 if it is not one.

    The text is JSON already: if nothing but digits, commas and space stands between one pair of
    brackets, it cannot be anything else. A quarter of the time that decoding the numbers takes.
    """
    text = bytes(value)
    rest = text.translate(None, b"0123456789, \t\r\n")
    if rest != b"[]" or not text[1:-1].strip(b" \t\r\n"):
        return 0
    return text.count(b",") + 1


def _measure_messages(fields: Fields) -> int:
    """Characters of all text in the conversation, and of the tools that go into the prompt."""
    value = fields.get("messages")
    if value is None or is_null(value):
        raise InvalidRequest("'messages' is missing.", param="messages")
    tools = fields.get("tools")
    chars = 0 if tools is None else _json_length(tools)
    if _is_endless(value):
        return chars + _json_length(value)
    try:
        messages = _messages.decode(value)
    except msgspec.ValidationError:
        raise InvalidRequest(_MESSAGE_KINDS, param="messages") from None
    if not messages:
        raise InvalidRequest(_MESSAGE_KINDS, param="messages")
    for message in messages:
        chars += _content_length(message.content) + _json_length(message.tool_calls)
    return chars


def _is_endless(messages: msgspec.Raw) -> bool:
    """Whether there are too many to look at each.

    They are the engines' to judge then, and the size of the JSON has to do for that of the text.
    """
    if len(memoryview(messages)) <= _LONG_BYTES or first_byte(messages) != b"[":
        return False
    return bytes(messages).count(b"{") > _MOST_OBJECTS


def _content_length(content: msgspec.Raw) -> int:
    kind = first_byte(content)
    if kind == b'"':
        return text_length(content)
    if kind != b"[":
        return 0
    try:
        parts = _parts.decode(content)
    except msgspec.ValidationError:  # the engine knows what else a part can be
        return 0
    return sum(text_length(part.text) for part in parts if first_byte(part.text) == b'"')


def _json_length(value: msgspec.Raw) -> int:
    """What a template writes of a value that is not text: about its JSON."""
    return 0 if is_null(value) else len(memoryview(value))
