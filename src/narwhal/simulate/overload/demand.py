"""Who asks for what: prompts and answers with heavy tails, drawn from a seed."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import attrs
import msgspec

from narwhal.emulator import text_of, tokenize

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator

# Log-normal, the usual shape of both: most are short, and a few hold much of the work.
PROMPT_MEDIAN, PROMPT_SIGMA = 500.0, 1.0
PROMPT_LEAST, PROMPT_MOST = 32, 8000
ANSWER_MEDIAN, ANSWER_SIGMA = 20.0, 1.0
ANSWER_LEAST, ANSWER_MOST = 2, 400
# Nobody knows how long an answer will be. Clients allow a power of two that is enough, or more.
GENEROSITY = (1, 2, 4)

# A completion's prompt has one special token, in front.
_SPECIAL = 1
_WORDS = text_of(PROMPT_MOST)


@attrs.frozen(kw_only=True)
class Demand:
    """One request. All in tokens, counted as engines count them."""

    prompt: int
    answer: int
    """What it will be answered with; the end-of-text token counts."""
    cap: int
    """Its `max_tokens`, at least `answer`."""

    def body(self, model: str) -> bytes:
        """The request as a client would write it, a streamed completion."""
        return msgspec.json.encode(
            {
                "model": model,
                "prompt": _prompt_text(self.prompt, self.answer),
                "max_tokens": self.cap,
                "stream": True,
            }
        )


def draw_demand(rng: random.Random) -> Iterator[Demand]:
    """Requests without end. Prompts and answers are drawn independently of each other."""
    while True:
        prompt = _log_normal(rng, PROMPT_MEDIAN, PROMPT_SIGMA, PROMPT_LEAST, PROMPT_MOST)
        answer = _log_normal(rng, ANSWER_MEDIAN, ANSWER_SIGMA, ANSWER_LEAST, ANSWER_MOST)
        enough: int = 1 << (answer - 1).bit_length()
        yield Demand(prompt=prompt, answer=answer, cap=enough * rng.choice(GENEROSITY))


def _log_normal(rng: random.Random, median: float, sigma: float, least: int, most: int) -> int:
    return max(least, min(most, round(rng.lognormvariate(math.log(median), sigma))))


def _prompt_text(tokens: int, answer: int) -> str:
    """A prompt of that many tokens, to which an emulated engine gives that long an answer."""
    wish = f"out=length:{answer}"
    left = tokens - _SPECIAL - len(tokenize(wish))
    # Each of the words is four characters with its space, and one token.
    return f"{wish} {_WORDS[: 4 * left - 1]}"
