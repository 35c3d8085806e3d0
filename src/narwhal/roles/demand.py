"""What was offered lately: arrivals and their work, in buckets of time, refused ones included."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from narwhal.profiles import Profile

BUCKETS = 120
"""Of the window: a second each by default. An estimate is off by one at the most."""

# Where the size of an engine's memory is not known: so many times the tokens of the largest batch
# that was measured are no one request's.
_FAR_BEYOND = 16


@attrs.frozen(kw_only=True)
class Estimate:
    """Demand over one horizon, per second. Unsized offers count as the mean of the sized ones."""

    span_s: float = 0.0
    """How much of the horizon there was yet."""
    arrivals: int = 0
    unsized: int = 0
    """Arrivals of unknown size, among `arrivals`."""
    overflow: int = 0
    """Arrivals beyond what was measured, among `arrivals`."""
    prefill: float = 0.0
    """Prefill seconds a second: engines that do nothing else."""
    service_s: float = 0.0
    """Mean seconds of a prefill."""
    tokens: float = 0.0
    """Output tokens a second."""
    context: float = 0.0
    """KV tokens of a decoding request, on average over all output tokens."""

    @property
    def complete(self) -> bool:
        """Whether the size of everything is known, and within what was measured."""
        return self.arrivals > 0 and not self.unsized and not self.overflow


@attrs.define
class _Bucket:
    begins: float
    arrivals: int = 0
    unsized: int = 0
    overflow: int = 0
    prefill_s: float = 0.0
    tokens: float = 0.0
    held: float = 0.0
    """Output tokens times the KV tokens held meanwhile."""


class DemandHistory:
    """The offers of the last `window_s` seconds, in at most `BUCKETS` + 1 buckets.

    Every offer counts once, whatever became of it; a retry is no offer. Prices are those of
    `profile`, the mean over the configured engines; without one only arrivals are known.
    """

    def __init__(self, window_s: float, profile: Profile | None) -> None:
        self._window_s = window_s
        self._width = window_s / BUCKETS
        self._profile = profile
        self._buckets: deque[_Bucket] = deque()
        self._begun: float | None = None

    def begin(self, now: float) -> None:
        """The time from which on there would have been offers."""
        if self._begun is None:
            self._begun = now

    def offered(self, prompt_tokens: int, output_tokens: int, now: float) -> None:
        """A request of known size: `output_tokens` is what is expected of it.

        One that no engine can hold is work for no split, whatever it asks for: it counts as if
        its size were not known. Or else a client that asks for a billion tokens, and gets none,
        would have every engine decode.
        """
        if self._profile is not None and not _holds(self._profile, prompt_tokens + output_tokens):
            self.unsized(now)
            return
        bucket = self._bucket(now)
        bucket.arrivals += 1
        bucket.tokens += output_tokens
        bucket.held += output_tokens * (prompt_tokens + output_tokens / 2)
        if self._profile is not None:
            bucket.prefill_s += prefill_price(self._profile, prompt_tokens)
            bucket.overflow += not self._profile.fits_prefill(prompt_tokens)

    def unsized(self, now: float) -> None:
        """A request that was turned away before anybody knew its size."""
        bucket = self._bucket(now)
        bucket.arrivals += 1
        bucket.unsized += 1

    def over(self, horizon_s: float, now: float) -> Estimate:
        """The demand of the last `horizon_s` seconds."""
        self._forget(now)
        since = now - horizon_s
        begun = now if self._begun is None else self._begun
        span = min(horizon_s, now - begun)
        buckets = [each for each in self._buckets if each.begins + self._width > since]
        arrivals = sum(each.arrivals for each in buckets)
        unsized = sum(each.unsized for each in buckets)
        overflow = sum(each.overflow for each in buckets)
        sized = arrivals - unsized
        if not sized or span <= 0.0:
            return Estimate(span_s=span, arrivals=arrivals, unsized=unsized)
        # The oldest bucket may have begun before the horizon.
        span = max(span, min(now - buckets[0].begins, horizon_s + self._width))
        scale = arrivals / sized
        prefill_s = sum(each.prefill_s for each in buckets)
        tokens = sum(each.tokens for each in buckets)
        return Estimate(
            span_s=span,
            arrivals=arrivals,
            unsized=unsized,
            overflow=overflow,
            prefill=prefill_s * scale / span,
            service_s=prefill_s / sized,
            tokens=tokens * scale / span,
            context=sum(each.held for each in buckets) / tokens if tokens else 0.0,
        )

    def _bucket(self, now: float) -> _Bucket:
        self.begin(now)
        last = self._buckets[-1] if self._buckets else None
        if last is None or now >= last.begins + self._width:
            self._forget(now)
            last = _Bucket(now)
            self._buckets.append(last)
        return last

    def _forget(self, now: float) -> None:
        while self._buckets and self._buckets[0].begins + self._width <= now - self._window_s:
            self._buckets.popleft()


def _holds(profile: Profile, tokens: int) -> bool:
    """Whether one engine can hold a request of so many tokens, as far as anything is known."""
    measured = profile.decode.kv_tokens
    if profile.kv_capacity_tokens is not None or measured is None:
        return profile.fits_memory(tokens)
    return tokens <= _FAR_BEYOND * measured.high


def prefill_price(profile: Profile, tokens: int) -> float:
    """Seconds of a prefill; beyond what was measured never less than in proportion to that."""
    seconds = profile.prefill_seconds(tokens)
    measured = profile.prefill.tokens
    if measured is None or tokens <= measured.high:
        return seconds
    return max(seconds, profile.prefill_seconds(measured.high) * tokens / measured.high)
