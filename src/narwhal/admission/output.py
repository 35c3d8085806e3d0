"""How long answers turn out to be, of requests that allow a certain length."""

from __future__ import annotations

import math

# Weight of the newest answer: some tens of them make a new habit known.
ALPHA = 0.05
UNCAPPED_TOKENS = 512
"""What is expected of a request without a cap before any such was answered. Short of what models
may say, long for what they mostly do."""
MOST_TOKENS = 1 << 20


class OutputHistory:
    """Expected output: the client's cap, discounted by what requests of its size delivered.

    Sizes are powers of two of the cap. An answer that ended early makes the next ones of that
    size cheaper, one that used its cap makes them dearer; nothing is ever expected beyond the
    cap, nor below one token. Without a cap, the mean length of such answers is expected.
    """

    def __init__(self) -> None:
        self._share: dict[int, float] = {}
        self._uncapped = float(UNCAPPED_TOKENS)

    def expected(self, cap: int | None) -> int:
        """Output tokens to expect of a request that allows `cap`, at least 1."""
        if cap is None:
            return max(1, round(self._uncapped))
        return max(1, min(cap, math.ceil(cap * self._share.get(_bucket(cap), 1.0))))

    def delivered(self, cap: int | None, tokens: int) -> None:
        """A request that allowed `cap` was answered in full, with `tokens` tokens."""
        if cap is None:
            tokens = min(tokens, MOST_TOKENS)
            self._uncapped += ALPHA * (tokens - self._uncapped)
        elif cap > 0:
            bucket = _bucket(cap)
            share = min(1.0, tokens / cap)
            before = self._share.get(bucket, 1.0)
            self._share[bucket] = before + ALPHA * (share - before)


def _bucket(cap: int) -> int:
    """At most 20 or so, whatever clients ask for."""
    return min(cap, MOST_TOKENS).bit_length()
