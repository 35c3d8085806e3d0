"""The checks a real engine makes on a request's values, and what they let through."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from narwhal.emulator.bodies import ChatBody, CompletionBody, Refusal, Tool
from narwhal.emulator.core import Leg
from narwhal.emulator.plan import Wish
from narwhal.emulator.requests import (
    EngineRequest,
    Prompt,
    Rejected,
    chat_ids,
    leg_of,
    unknown_model,
)
from narwhal.emulator.tokens import BOS, VOCABULARY, tokenize
from narwhal.model import Route

if TYPE_CHECKING:
    from collections.abc import Iterable

    from narwhal.emulator.plan import Style
    from narwhal.emulator.settings import EngineSettings

MAX_LOGPROBS = 20
DEFAULT_TOOL = "lookup"


def check(
    body: CompletionBody | ChatBody, settings: EngineSettings, style: Style
) -> EngineRequest | Rejected:
    """Everything a real engine checks once the schema is right, in about its order."""
    leg = leg_of(body.kv_transfer_params, settings)
    descriptor = body.kv_transfer_params if leg is Leg.DECODE else None
    checked = _Check(body, settings, style)
    refusal = checked.refusal()
    if refusal is not None:
        return Rejected(refusal, descriptor)
    options = body.stream_options
    chat = isinstance(body, ChatBody)
    return EngineRequest(
        route=Route.CHAT if chat else Route.COMPLETIONS,
        leg=leg,
        prompts=tuple(checked.prompts),
        samples=body.n or 1,
        wish=tuple(checked.wish(prompt) for prompt in checked.prompts),
        stream=bool(body.stream),
        include_usage=bool(options and options.include_usage),
        continuous_usage=bool(options and options.include_usage and options.continuous_usage_stats),
        return_token_ids=bool(body.return_token_ids),
        forces_tool=isinstance(body, ChatBody) and body.tool_choice not in (None, "auto", "none"),
        echo=isinstance(body, CompletionBody) and bool(body.echo),
        logprobs=checked.logprobs(),
        descriptor=descriptor,
        style=style,
    )


class _Check:
    """The checks of one request."""

    def __init__(
        self, body: CompletionBody | ChatBody, settings: EngineSettings, style: Style
    ) -> None:
        self._body = body
        self._settings = settings
        self._style = style
        self.prompts = list(self._prompts())

    def refusal(self) -> Refusal | None:
        """The first thing that is wrong with the request."""
        return unknown_model(self._body.model, self._settings) or self._fields() or self._lengths()

    def logprobs(self) -> int | None:
        body = self._body
        if isinstance(body, CompletionBody):
            return body.logprobs
        return (body.top_logprobs or 0) if body.logprobs else None

    def wish(self, prompt: Prompt) -> Wish:
        body, style = self._body, self._style
        room = self._settings.max_model_len - len(prompt.ids)
        limit, natural = self._limit(), style.length
        if self._settings.length_in_prompt and prompt.text is None:
            natural = prompt.ids[0]
        if limit is None:
            limit = room
            if body.ignore_eos:
                limit = min(room, self._settings.answer_tokens)
            elif natural is None:
                natural = self._settings.answer_tokens
        return Wish(
            limit=limit,
            natural=None if body.ignore_eos else natural,
            min_tokens=body.min_tokens or 0,
            stop=self._stop(),
            include_stop=bool(body.include_stop_str_in_output),
            stop_token_ids=frozenset(body.stop_token_ids or ()),
            style=style if isinstance(body, ChatBody) else _without_chat_parts(style),
            tools=self._tools(),
            named=self._names_tool(),
        )

    def _names_tool(self) -> bool:
        return isinstance(self._body, ChatBody) and isinstance(self._body.tool_choice, Tool)

    def _prompts(self) -> Iterable[Prompt]:
        body = self._body
        if isinstance(body, ChatBody):
            yield Prompt(ids=tuple(chat_ids(body.messages)), text=None)
            return
        given = body.prompt
        if isinstance(given, str):
            given = [given]
        # By the set of their types: prompts have many thousands of ids.
        if given and set(map(type, given)) == {int}:
            given = [given]  # type: ignore[list-item]  # all are ints: one prompt as token ids
        for item in given or ():
            if isinstance(item, str):
                yield Prompt(ids=(BOS, *tokenize(item)), text=item)
            elif isinstance(item, list):
                yield Prompt(ids=tuple(item), text=None)

    def _limit(self) -> int | None:
        body = self._body
        if isinstance(body, ChatBody) and body.max_completion_tokens is not None:
            return body.max_completion_tokens
        return body.max_tokens

    def _stop(self) -> tuple[str, ...]:
        stop = self._body.stop
        if isinstance(stop, str):
            stop = [stop]
        return tuple(text for text in stop or () if text)

    def _tools(self) -> tuple[str, ...]:
        body = self._body
        if not isinstance(body, ChatBody):
            return ()
        names = [tool.function.name for tool in body.tools or ()]
        if names and not isinstance(body.tool_choice, str) and body.tool_choice is not None:
            return (body.tool_choice.function.name,)
        calls = self._style.tools or int(bool(names) and body.tool_choice == "required")
        names = names or [DEFAULT_TOOL]
        return tuple(names[call % len(names)] for call in range(calls))

    def _fields(self) -> Refusal | None:
        body, limit = self._body, self._limit()
        if body.stream_options is not None and not body.stream:
            return Refusal(
                message="Stream options can only be defined when `stream=True`.",
                param="stream_options",
            )
        if limit is not None and limit < 1:
            return Refusal(
                message=f"max_tokens must be at least 1, got {limit}.", param="max_tokens"
            )
        if limit is not None and (body.min_tokens or 0) > limit:
            return Refusal(
                message=f"min_tokens must be less than or equal to max_tokens={limit}, "
                f"got {body.min_tokens}.",
            )
        if (body.min_tokens or 0) < 0:
            return Refusal(
                message=f"min_tokens must be greater than or equal to 0, got {body.min_tokens}.",
                param="min_tokens",
            )
        return self._sampling()

    def _sampling(self) -> Refusal | None:
        body, logprobs = self._body, self.logprobs()
        samples = 1 if body.n is None else body.n
        if samples < 1:
            return Refusal(message=f"n must be at least 1, got {samples}.", param="n")
        if samples > 1 and body.temperature == 0:
            return Refusal(message=f"n must be 1 when using greedy sampling, got {samples}.")
        if logprobs is not None and not 0 <= logprobs <= MAX_LOGPROBS:
            return Refusal(
                message=f"Requested sample logprobs of {logprobs}, which is greater than max "
                f"allowed: {MAX_LOGPROBS}",
                param="logprobs",
                late=True,
            )
        return None

    def _lengths(self) -> Refusal | None:
        if not self.prompts:
            return Refusal(
                message="Either prompt or prompt_embeds must be provided and non-empty.",
                param="prompt",
            )
        for prompt in self.prompts:
            refusal = self._length(prompt)
            if refusal is not None:
                return refusal
        return None

    def _length(self, prompt: Prompt) -> Refusal | None:
        limit, most, size = self._limit(), self._settings.max_model_len, len(prompt.ids)
        if not size:
            return Refusal(message="The decoder prompt cannot be empty", param="prompt")
        if not 0 <= min(prompt.ids) <= max(prompt.ids) < VOCABULARY:
            token = next(token for token in prompt.ids if not 0 <= token < VOCABULARY)
            return Refusal(message=f"Token id {token} is out of vocabulary", late=True)
        if size >= most:
            return Refusal(
                message=f"This model's maximum context length is {most} tokens. However, your "
                f"request has {size} input tokens. Please reduce the length of the input "
                "messages.",
                param="input_tokens",
            )
        if limit is not None and size + limit > most:
            return Refusal(
                message=f"'max_tokens' or 'max_completion_tokens' is too large: {limit}. This "
                f"model's maximum context length is {most} tokens and your request has {size} "
                f"input tokens ({limit} > {most} - {size}).",
                param="max_tokens",
            )
        return None


def _without_chat_parts(style: Style) -> Style:
    return attrs.evolve(style, reasoning=0, refusal=False, tools=0)
