"""How long an answer would have been that nobody saw the end of."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

UNKNOWN = 256
"""Tokens of an answer without a cap, where nothing at all was answered."""


class Outputs:
    """Outputs of completed requests, dealt out to requests that were not completed.

    Each goes to one with the same `max_tokens`, in turn from the first to the last and again. So
    the outputs that are dealt out are spread as those that were seen, and the same journal gives
    the same ones. Where none with that cap was completed, caps that are the same to the next
    power of two count, and then all there are, cut at the cap. With nothing completed it is the
    cap itself.
    """

    def __init__(self) -> None:
        self._seen: dict[object, list[int]] = {}
        self._dealt: dict[object, int] = {}

    @classmethod
    def of(cls, completed: Iterable[tuple[int | None, int]]) -> Outputs:
        """Take (cap, output) of every completed request. All in tokens."""
        outputs = cls()
        for cap, output in completed:
            for key in _keys(cap):
                outputs._seen.setdefault(key, []).append(max(1, output))
        return outputs

    def draw(self, cap: int | None) -> int:
        """The output for the next request with that cap; at least 1, at most the cap."""
        most = None if cap is None else max(1, cap)
        for key in _keys(cap):
            if seen := self._seen.get(key):
                output = self._next(key, seen)
                return output if most is None else min(output, most)
        return UNKNOWN if most is None else most

    def _next(self, key: object, seen: Sequence[int]) -> int:
        turn = self._dealt.get(key, 0)
        self._dealt[key] = turn + 1
        return seen[turn % len(seen)]


def _keys(cap: int | None) -> tuple[object, ...]:
    """Which requests are comparable: those alike first."""
    return (("cap", cap), ("about", None if cap is None else (cap - 1).bit_length()), "all")
