"""What the parts of one answer share, streamed or not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs

from narwhal.model import Route

if TYPE_CHECKING:
    from collections.abc import Sequence

    from narwhal.emulator.plan import Plan
    from narwhal.emulator.requests import EngineRequest, Prompt

_OBJECTS = {Route.COMPLETIONS: "text_completion", Route.CHAT: "chat.completion"}
VENDOR_TOP = {"vendor_revision": 3}
"""In the style "vendor": on every answer and chunk."""
VENDOR_CHOICE = {"vendor_score": 0.5}
"""In the style "vendor": on every choice."""


@attrs.define(eq=False)
class Choice:
    """One answer of a request, and how much of it was shown."""

    index: int
    prompt: Prompt
    plan: Plan
    shown: int = 0
    offset: int = 0
    """Characters shown, for logprobs."""

    @property
    def whole(self) -> bool:
        """Whether all of it was shown."""
        return self.shown >= self.plan.length

    @property
    def echo(self) -> str:
        """What an echoing answer starts with: the prompt's text, nothing for token ids."""
        return self.prompt.text or ""


@attrs.define(eq=False, kw_only=True)
class Envelope:
    """What all parts of one answer share, and which parts a fault leaves out."""

    request_id: str
    created: int
    model: str
    fingerprint: str
    request: EngineRequest
    finish: bool = True
    usage: bool = True
    huge: int = 0
    """Bytes of text for the next token, in the place of its own."""

    @property
    def chat(self) -> bool:
        """Whether it is a chat."""
        return self.request.route is Route.CHAT

    @property
    def vendor(self) -> bool:
        """Whether vendor fields were asked for."""
        return self.request.style.vendor

    def head(self, suffix: str = "") -> dict[str, Any]:
        """The first fields of an answer or chunk."""
        return {
            "id": self.request_id,
            "object": _OBJECTS[self.request.route] + suffix,
            "created": self.created,
            "model": self.model,
        }

    def counts(self, choices: Sequence[Choice]) -> dict[str, int]:
        """Token counts so far: each prompt counts once, whatever its number of samples."""
        prompt = sum(len(prompt.ids) for prompt in self.request.prompts)
        completion = sum(choice.shown for choice in choices)
        return {
            "prompt_tokens": prompt,
            "total_tokens": prompt + completion,
            "completion_tokens": completion,
        }

    def finish_of(self, choice: Choice) -> str | None:
        """The finish reason, once the choice is shown as a whole."""
        return choice.plan.finish_reason if choice.whole and self.finish else None
