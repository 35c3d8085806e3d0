"""When to try again: only before visible output, only what can end differently, only in time."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

import attrs

from narwhal.model import FailureClass

if TYPE_CHECKING:
    from random import Random

    from narwhal.model import Failure
    from narwhal.retry.credits import Credits

# The statuses that the specification names as retryable, and what each says of the engine.
_OVERLOAD = frozenset({408, 429, 503})
_TRANSIENT = frozenset({408, 429, 500, 502, 503, 504})
_CLIENT_ERROR = range(400, 500)


def classify_status(status: int) -> tuple[FailureClass, bool]:
    """What an engine's error status says of the engine, and whether another try may help."""
    if status in _OVERLOAD:
        return FailureClass.OVERLOAD, True
    if status in _CLIENT_ERROR:
        return FailureClass.NEUTRAL, False
    return FailureClass.INFERENCE_STATUS, status in _TRANSIENT


class Why(StrEnum):
    """Why there is no further attempt."""

    VISIBLE_OUTPUT = "visible_output"
    PERMANENT = "permanent"
    ATTEMPTS = "attempts"
    NO_CREDIT = "no_credit"
    DEADLINE = "deadline"


@attrs.frozen
class RetryIn:
    """Try again after `delay` seconds; one credit has been taken for it."""

    delay: float


@attrs.frozen
class NoRetry:
    """The failure stands."""

    why: Why


@attrs.frozen(kw_only=True)
class RetryPolicy:
    """The settings `serving.max_attempts`, `retry_base_s` and `retry_cap_s`."""

    max_attempts: int
    base_s: float
    cap_s: float

    def decide(
        self,
        failure: Failure,
        *,
        attempt: int,
        retry_credits: Credits,
        now: float,
        deadline: float,
        rng: Random,
        floor_s: float = 0.0,
    ) -> RetryIn | NoRetry:
        """Decide what follows the failure of attempt number `attempt` (the first is 1).

        Full jitter: the delay is uniform between zero and `min(cap, base * 2^(attempt - 1))`,
        and at least `floor_s` (an engine's own Retry-After where no other engine is left). A
        delay that would not end before `deadline` is not begun. The credit is taken here.
        """
        if failure.visible:
            return NoRetry(Why.VISIBLE_OUTPUT)
        if not failure.transient:
            return NoRetry(Why.PERMANENT)
        if attempt >= self.max_attempts:
            return NoRetry(Why.ATTEMPTS)
        ceiling = min(self.cap_s, self.base_s * 2.0 ** (attempt - 1))
        delay = max(rng.uniform(0.0, ceiling), floor_s)
        if now + delay >= deadline:
            return NoRetry(Why.DEADLINE)
        if not retry_credits.take_nowait():
            return NoRetry(Why.NO_CREDIT)
        return RetryIn(delay)
