"""Request bodies as an engine's API takes them, and the refusals it answers with."""

from __future__ import annotations

import json
import re
from typing import Any, TypeVar

import attrs
import msgspec

Body = TypeVar("Body", bound=msgspec.Struct)


@attrs.frozen(kw_only=True)
class Refusal:
    """An error answer. Its body is `{"error": {"message", "type", "param", "code"}}`."""

    message: str
    status: int = 400
    error_type: str = "BadRequestError"
    param: str | None = None
    late: bool = False
    """Found when a stream has its status 200 already: there it is an event."""

    @property
    def body(self) -> bytes:
        """The JSON body, compact."""
        return error_body(self.message, self.error_type, self.param, self.status)

    @property
    def event(self) -> bytes:
        """Its form inside a stream; unlike any other event it is not compact."""
        error = {
            "message": self.message,
            "type": self.error_type,
            "param": self.param,
            "code": self.status,
        }
        return b"data: %b\n\n" % json.dumps({"error": error}).encode()


def error_body(message: str, error_type: str, param: str | None, code: int) -> bytes:
    """An error body in the dialect's shape, compact."""
    error = {"message": message, "type": error_type, "param": param, "code": code}
    return msgspec.json.encode({"error": error})


BUSY = Refusal(
    status=503,
    error_type="Service Unavailable",
    message="The engine is currently busy and cannot accept new requests. "
    "Please try again later or on a different instance.",
)
FAILED = Refusal(status=500, error_type="InternalServerError", message="Internal server error")
DEAD = Refusal(
    status=500,
    error_type="InternalServerError",
    message="EngineCore encountered an issue. See stack trace (above) for the root cause.",
)


class StreamOptions(msgspec.Struct):
    """`stream_options`."""

    include_usage: bool | None = False
    continuous_usage_stats: bool | None = False


class Part(msgspec.Struct):
    """One part of a message's content; parts without text count for nothing."""

    type: str
    text: str = ""


class Message(msgspec.Struct):
    """A chat message."""

    role: str
    content: str | list[Part] | None = None

    @property
    def text(self) -> str:
        """All text of the content."""
        if isinstance(self.content, list):
            return "".join(part.text for part in self.content)
        return self.content or ""


class _Shared(msgspec.Struct, kw_only=True):
    """What both routes take. Fields nobody reads are accepted, as by a real engine."""

    model: str | None = None
    max_tokens: int | None = None
    min_tokens: int | None = 0
    n: int | None = 1
    temperature: float | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool | None = False
    ignore_eos: bool | None = False
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    return_token_ids: bool | None = None
    kv_transfer_params: dict[str, Any] | None = None


class CompletionBody(_Shared, kw_only=True):
    """The body of /v1/completions."""

    prompt: str | list[int | str | list[int]] | None = None
    echo: bool | None = False
    logprobs: int | None = None


class Function(msgspec.Struct):
    """The function of a tool, or the one that `tool_choice` names."""

    name: str


class Tool(msgspec.Struct):
    """A tool on offer, or the one that `tool_choice` names."""

    function: Function
    type: str = "function"


class ChatBody(_Shared, kw_only=True):
    """The body of /v1/chat/completions."""

    messages: list[Message]
    max_completion_tokens: int | None = None
    logprobs: bool | None = False
    top_logprobs: int | None = 0
    tools: list[Tool] | None = None
    tool_choice: str | Tool | None = None


class TokenizeBody(msgspec.Struct, kw_only=True):
    """The body of /tokenize, with a prompt or with messages."""

    model: str | None = None
    prompt: str | None = None
    messages: list[Message] | None = None
    add_special_tokens: bool = True
    return_token_strs: bool | None = False


class DetokenizeBody(msgspec.Struct, kw_only=True):
    """The body of /detokenize."""

    tokens: list[int]
    model: str | None = None


_WHERE = re.compile(r" - at `\$(.*)`$")
_MISSING = re.compile(r"missing required field `(\w+)`")


def decode(raw: bytes, kind: type[Body], content_type: str) -> Body | Refusal:
    """The body as `kind`, or the schema error a real engine would answer."""
    media_type = content_type.partition(";")[0].strip().lower()
    if media_type != "application/json":
        return _schema("Unsupported Media Type: Only 'application/json' is allowed", None)
    try:
        return msgspec.json.decode(raw, type=kind)
    except msgspec.ValidationError as error:
        return _schema(*_located(str(error)))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return _schema(f"JSON decode error: {error}", "body")


def _located(text: str) -> tuple[str, str]:
    """The message of a validation error without its path, and the path as `body.x.0.y`."""
    path = ""
    if where := _WHERE.search(text):
        path = where[1].replace("[", ".").replace("]", "")
        text = text[: where.start()]
    if missing := _MISSING.search(text):
        return "Field required", f"body{path}.{missing[1]}"
    return text, f"body{path}"


def _schema(message: str, param: str | None) -> Refusal:
    where = tuple((param or "body").split("."))
    detail = {"loc": where, "msg": message}
    return Refusal(
        message=f"1 validation error:\n  {detail}", error_type="Bad Request", param=param
    )
