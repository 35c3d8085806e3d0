"""Prefill work that was sent to one engine and is not done yet, in predicted seconds."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

from narwhal.fleet.pace import PREFILL_MEMORY, PREFILL_PRIOR, Pace


class Backlog:
    """An engine prefills one prompt after another, in the order in which it got them.

    So of the first one in line only what is left of it counts, and it began when it was sent, or
    when the one before it was done. A prefill that takes longer than predicted counts nothing
    more, but what stands behind it does in full: it cannot have begun.

    What prefills turn out to take, by the same order, is the engine's pace; by it the predictions
    are corrected.
    """

    def __init__(self) -> None:
        self.pace = Pace(memory=PREFILL_MEMORY, prior=PREFILL_PRIOR)
        self._seconds: OrderedDict[object, float] = OrderedDict()
        self._total = 0.0
        self._began = 0.0

    def __len__(self) -> int:
        return len(self._seconds)

    def add(self, key: object, seconds: float, now: float) -> None:
        """A prefill that is predicted to take `seconds` was sent."""
        if not self._seconds:
            self._began, self._total = now, 0.0
        self._seconds[key] = seconds
        self._total += seconds

    def remove(self, key: object, now: float, *, done: bool = False) -> None:
        """It was given up, or is `done`: only that says how fast the engine is.

        Whichever is done has taken the time since the one before it was: two that are sent at
        once may be done in either order.
        """
        first = next(iter(self._seconds)) == key
        seconds = self._seconds.pop(key)
        self._total -= seconds
        if done:
            self.pace.observe(seconds, now - self._began)
        if first or done:
            self._began = now

    def forget_pace(self) -> None:
        """Another process: its pace is not known."""
        self.pace = Pace(memory=PREFILL_MEMORY, prior=PREFILL_PRIOR)

    def remaining_s(self, now: float) -> float:
        """Predicted seconds until an engine that keeps its pace is idle."""
        if not self._seconds:
            return 0.0
        ratio = self.pace.ratio
        first = ratio * next(iter(self._seconds.values()))
        done = min(first, max(0.0, now - self._began))
        return max(0.0, ratio * self._total - done)


def filled_to(backlogs: Sequence[float], line_s: float) -> float:
    """When the first engine is free for whoever comes after a line of `line_s` seconds of work.

    The line is spread over engines like water, to where there is least: as prefills are not
    divided, nobody waits longer than this while each goes to an engine that is free. The least
    backlog, if there is no line. Raises `ValueError` without engines.
    """
    if not backlogs:
        raise ValueError("no engines to fill")
    total, *higher = sorted(backlogs)
    total += line_s
    for engines, backlog in enumerate(higher, 1):
        if total <= engines * backlog:
            return total / engines
        total += backlog
    return total / len(backlogs)
