"""Prefill work that was sent to one engine and is not done yet, in predicted seconds."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


class Backlog:
    """An engine prefills one prompt after another, in the order in which it got them.

    So of the first one in line only what is left of it counts, and it began when it was sent, or
    when the one before it was done. A prefill that takes longer than predicted counts nothing
    more, but what stands behind it does in full: it cannot have begun.
    """

    def __init__(self) -> None:
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

    def remove(self, key: object, now: float) -> None:
        """It is done, or was given up."""
        first = next(iter(self._seconds)) == key
        self._total -= self._seconds.pop(key)
        if first:
            self._began = now

    def remaining_s(self, now: float) -> float:
        """Predicted seconds until an engine that keeps to the predictions is idle."""
        if not self._seconds:
            return 0.0
        first = next(iter(self._seconds.values()))
        done = min(first, max(0.0, now - self._began))
        return max(0.0, self._total - done)


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
