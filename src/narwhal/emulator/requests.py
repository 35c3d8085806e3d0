"""What a completion request asks for, checked the way a real engine checks it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import attrs

from narwhal.emulator.bodies import ChatBody, CompletionBody, Refusal, TokenizeBody, decode
from narwhal.emulator.core import Leg
from narwhal.emulator.fault_text import parse_fault
from narwhal.emulator.plan import Style, Wish
from narwhal.emulator.tokens import BOS, CONTENT, ROLE, TURN, tokenize
from narwhal.model import Route

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from narwhal.emulator.bodies import Message
    from narwhal.emulator.faults import Fault
    from narwhal.emulator.settings import EngineSettings

FAULT_HEADER = "x-emulator-fault"
STYLE_HEADER = "x-emulator-output"
_WORDS = re.compile(r"(?:^|\s)(fault|out)=(\S+)")


@attrs.frozen(kw_only=True)
class Prompt:
    """One prompt of a request."""

    ids: tuple[int, ...]
    text: str | None
    """None for a prompt that came as token ids."""


@attrs.frozen(kw_only=True)
class EngineRequest:
    """A completion request that can be run."""

    route: Route
    leg: Leg
    prompts: tuple[Prompt, ...]
    samples: int
    wish: tuple[Wish, ...]
    """One for each prompt: how long an answer may be depends on its length."""
    stream: bool
    include_usage: bool
    continuous_usage: bool
    return_token_ids: bool
    forces_tool: bool
    """Whether the model had no choice but to call a tool."""
    echo: bool
    logprobs: int | None
    """How many alternatives to list for each token; None: no logprobs."""
    descriptor: dict[str, Any] | None
    """`kv_transfer_params`, for a decode leg."""
    style: Style


@attrs.frozen
class Rejected:
    """A request that cannot be run. If it named a KV cache, the producer is told to free it."""

    refusal: Refusal
    descriptor: dict[str, Any] | None = None


@attrs.frozen
class Directives:
    """What the test wants of a request: said in headers, or in words of the prompt.

    The words travel through routers that drop headers, and through both legs.
    """

    fault: Fault | None = None
    style: Style | None = None


def header_directives(headers: Mapping[str, str]) -> Directives | Refusal:
    """Directives in headers."""
    words = (("fault", headers.get(FAULT_HEADER)), ("out", headers.get(STYLE_HEADER)))
    return _directives((kind, text) for kind, text in words if text is not None)


def prompt_directives(texts: Iterable[str]) -> Directives | Refusal:
    """Directives among the words of a prompt: `fault=...`, `out=...`."""
    found: list[tuple[str, str]] = []
    for text in texts:
        if "fault=" in text or "out=" in text:  # far cheaper than the expression
            found += _WORDS.findall(text)
    return _directives(found)


def _directives(words: Iterable[tuple[str, str]]) -> Directives | Refusal:
    directives = Directives()
    for kind, text in words:
        if kind == "fault":
            try:
                directives = attrs.evolve(directives, fault=parse_fault(text))
            except ValueError as error:
                return Refusal(message=str(error), param=FAULT_HEADER)
        else:
            style = Style.parse(text)
            if style is None:
                return Refusal(message=f"out={text}: not a style of answer", param=STYLE_HEADER)
            directives = attrs.evolve(directives, style=style)
    return directives


def leg_of(params: Mapping[str, Any] | None, settings: EngineSettings) -> Leg:
    """Which leg a request's `kv_transfer_params` make it."""
    if params and settings.connector:
        if params.get("do_remote_prefill") is True:
            return Leg.DECODE
        if params.get("do_remote_decode") is True:
            return Leg.PREFILL
    return Leg.WHOLE


def chat_ids(messages: Iterable[Message]) -> list[int]:
    """Token ids of a conversation under the chat template."""
    ids = [BOS]
    for message in messages:
        ids += (TURN, ROLE, *tokenize(message.role), CONTENT, *tokenize(message.text))
    ids += (TURN, ROLE, *tokenize("assistant"), CONTENT)
    return ids


def read_body(route: Route, raw: bytes, content_type: str) -> CompletionBody | ChatBody | Refusal:
    """The first look at a body: its schema, nothing about its values."""
    if route is Route.CHAT:
        return decode(raw, ChatBody, content_type)
    return decode(raw, CompletionBody, content_type)


def texts_of(body: CompletionBody | ChatBody | TokenizeBody) -> list[str]:
    """The prompt's text, in pieces; nothing for token ids."""
    messages = None if isinstance(body, CompletionBody) else body.messages
    if messages is not None:
        return [message.text for message in messages]
    prompt = None if isinstance(body, ChatBody) else body.prompt
    if isinstance(prompt, list):
        if set(map(type, prompt)) == {int}:  # the usual list, and a long one
            return []
        return [item for item in prompt if isinstance(item, str)]
    return [] if prompt is None else [prompt]


def unknown_model(model: str | None, settings: EngineSettings) -> Refusal | None:
    """The 404 for any model but the engine's own; a request without a model gets that one."""
    if model is None or model == settings.model:
        return None
    return Refusal(
        status=404,
        error_type="NotFoundError",
        message=f"The model `{model}` does not exist.",
        param="model",
    )


def read_tokenize(
    raw: bytes, content_type: str, settings: EngineSettings
) -> TokenizeBody | Refusal:
    """The body of a count request, checked."""
    body = decode(raw, TokenizeBody, content_type)
    if isinstance(body, Refusal):
        return body
    if body.messages is None and body.prompt is None:
        return Refusal(message="Field required", error_type="Bad Request", param="body.prompt")
    return unknown_model(body.model, settings) or body


def tokenize_ids(body: TokenizeBody) -> list[int]:
    """The ids /tokenize answers with: as many as the same prompt's `usage.prompt_tokens`."""
    if body.messages is not None:
        return chat_ids(body.messages)
    return [BOS] * body.add_special_tokens + tokenize(body.prompt or "")
