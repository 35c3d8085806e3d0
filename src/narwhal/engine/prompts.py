"""Prompts to measure with: of exact lengths, and none like another from its first token on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from narwhal.model import Route
from narwhal.wire import openai

if TYPE_CHECKING:
    from collections.abc import Sequence
    from random import Random

    from narwhal.wire.openai import CompletionRequest

# A token costs an engine the same whichever it is, so a few hundred are enough to choose from. The
# first of a prompt's blocks differs from those of all others with all but certainty.
FEWEST_IDS = 32


class Prompts:
    """Makes requests whose prompts are random token ids of an engine's vocabulary.

    Token ids have the length that is asked for to the token. No two prompts begin alike, not
    even in two runs if `rng` is not seeded alike, so that no prefix cache knows one.
    """

    def __init__(self, model: str, ids: Sequence[int], rng: Random) -> None:
        self._model = model
        self._ids = tuple(sorted(set(ids)))
        self._rng = rng

    def body(self, tokens: int, *, output_tokens: int = 1, stream: bool = False) -> bytes:
        """A completion of exactly `output_tokens` tokens after a prompt of `tokens` tokens."""
        body = {
            "model": self._model,
            "prompt": self._rng.choices(self._ids, k=tokens),
            "max_tokens": output_tokens,
            "ignore_eos": True,
            "temperature": 0,
            "stream": stream,
        }
        return msgspec.json.encode(body)

    def request(self, tokens: int, *, output_tokens: int) -> CompletionRequest:
        """The same, streamed, as the router reads it: two legs can be made of it."""
        body = self.body(tokens, output_tokens=output_tokens, stream=True)
        return openai.parse_request(Route.COMPLETIONS, body, model=self._model)


def text_request(model: str, text: str) -> CompletionRequest:
    """A request with that text for a prompt, to be counted."""
    body = msgspec.json.encode({"model": model, "prompt": text})
    return openai.parse_request(Route.COMPLETIONS, body, model=model)
