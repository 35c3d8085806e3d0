"""A batch of streams: the time in which all of them decode together, and the interval in it. Pure.

Before the last stream has its first token, prefills run beside the decoding, and after the first
one has ended the batch is smaller. Neither says anything of the interval of the whole batch.
"""

from __future__ import annotations

from statistics import fmean, median
from typing import TYPE_CHECKING

import attrs

from narwhal.profiles import DecodeSample

if TYPE_CHECKING:
    from collections.abc import Sequence


@attrs.frozen
class _Mark:
    at: float
    tokens: int


@attrs.define
class _Stream:
    first: _Mark | None = None
    """Where the batch was first whole."""
    last: _Mark | None = None


class Cohort:
    """Notes the tokens of `requests` streams with prompts of `prompt_tokens` tokens each.

    `wanted` is how many tokens each stream is to get while all of them decode.
    """

    def __init__(self, *, requests: int, prompt_tokens: int, wanted: int) -> None:
        self._prompt_tokens = prompt_tokens
        self._wanted = wanted
        self._streams = [_Stream() for _ in range(requests)]
        self._begun: set[int] = set()
        self._broken = False

    @property
    def complete(self) -> bool:
        """Whether every stream got its tokens while all decoded."""
        return all(_tokens(stream) >= self._wanted for stream in self._streams)

    def token(self, stream: int, tokens: int, now: float) -> None:
        """The stream has `tokens` tokens now; calls come in the order of time."""
        whole = len(self._begun) == len(self._streams)
        self._begun.add(stream)
        if self._broken or not whole:
            return  # the step that brought the last stream in was not the whole batch's yet
        mark, each = _Mark(now, tokens), self._streams[stream]
        each.first, each.last = each.first or mark, mark

    def ended(self) -> None:
        """One of the streams has no more tokens to give."""
        self._broken = True

    def sample(self) -> DecodeSample:
        """The mean interval of a stream, and the KV tokens of all, while the batch was whole.

        Of several streams, the median. To be asked when `complete`.
        """
        intervals, resident = [], 0.0
        for stream in self._streams:
            first, last = stream.first, stream.last
            assert first is not None, "asked before complete"  # noqa: S101 - invariant
            assert last is not None, "asked before complete"  # noqa: S101 - invariant
            intervals.append((last.at - first.at) / (last.tokens - first.tokens))
            # A step that gives a stream its token n+1 runs over its prompt and n tokens.
            resident += self._prompt_tokens + fmean((first.tokens, last.tokens - 1))
        return DecodeSample(
            requests=len(self._streams), kv_tokens=round(resident), interval_s=median(intervals)
        )


def _tokens(stream: _Stream) -> int:
    """Tokens that a stream got since the batch was whole."""
    if stream.first is None or stream.last is None:
        return 0
    return stream.last.tokens - stream.first.tokens


def first_and_interval(marks: Sequence[tuple[int, float]]) -> tuple[float, float]:
    """When a stream had its first token, and the mean interval of those after it.

    `marks` say how many tokens it had at which time, from the first read that brought any on. If
    that one brought several, the first token came as many intervals before.
    """
    (fewest, began), (most, ended) = marks[0], marks[-1]
    interval = (ended - began) / (most - fewest) if most > fewest else 0.0
    return began - (fewest - 1) * interval, interval
