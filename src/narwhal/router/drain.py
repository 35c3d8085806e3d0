"""When a seat can be expected to come free, from how long requests are served."""

from __future__ import annotations

import math

# Weight of the newest request in the mean.
_ALPHA = 0.1
_LONGEST_RETRY_AFTER_S = 60


class ServiceTime:
    """The mean time from admission to the end, over the last requests that completed."""

    def __init__(self) -> None:
        self._mean_s: float | None = None

    def served(self, seconds: float) -> None:
        """A request was served from admission to its end in `seconds`."""
        if self._mean_s is None:
            self._mean_s = seconds
        else:
            self._mean_s += _ALPHA * (seconds - self._mean_s)

    def drain_s(self, *, waiting: int, seats: int) -> int:
        """When a newcomer can expect a seat: whole seconds, at least 1.

        By Little's law seats come free at `seats / service time`, and everyone who waits goes
        first. 1 as long as nothing is known.
        """
        wait = (self._mean_s or 0.0) * (waiting + 1) / seats
        return max(1, min(_LONGEST_RETRY_AFTER_S, math.ceil(wait)))
