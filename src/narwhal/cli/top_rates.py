"""What changed from one look at a router to the next, as rates. Pure."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from narwhal.cli.top_state import State

# Long enough that a rate of a few a second does not flicker, short enough to see a change.
_WINDOW_S = 10.0


@attrs.frozen(kw_only=True)
class Rates:
    """Per second, over the last seconds."""

    received: float
    terminals: Mapping[str, float]
    tokens: float
    limits: Mapping[str, int]
    """Limits that fired in that time: how often."""
    seconds: float


class History:
    """The states of the last seconds, of one start of the router."""

    def __init__(self) -> None:
        self._seen: deque[State] = deque()

    def add(self, state: State) -> None:
        """One more; those of an earlier start, and all but one of those that are too old, go."""
        seen = self._seen
        if seen and (
            state.uptime_s < seen[-1].uptime_s
            or state.requests.received < seen[-1].requests.received
        ):
            seen.clear()
        seen.append(state)
        while len(seen) > 2 and state.uptime_s - seen[1].uptime_s >= _WINDOW_S:  # noqa: PLR2004 - two make a rate
            seen.popleft()

    @property
    def rates(self) -> Rates | None:
        """None until there are two states; time is the router's own."""
        if len(self._seen) < 2:  # noqa: PLR2004 - two make a rate
            return None
        first, last = self._seen[0], self._seen[-1]
        seconds = last.uptime_s - first.uptime_s
        if seconds <= 0:
            return None
        before, now = first.requests, last.requests
        return Rates(
            received=(now.received - before.received) / seconds,
            terminals={
                name: (count - before.terminals.get(name, 0)) / seconds
                for name, count in now.terminals.items()
            },
            tokens=(last.tokens.completion - first.tokens.completion) / seconds,
            limits={
                name: fired
                for name, count in last.limits_fired.items()
                if (fired := count - first.limits_fired.get(name, 0))
            },
            seconds=seconds,
        )


def median_and_most(values: Iterable[float | None]) -> tuple[float, float] | None:
    """Of those that are known; None if none is."""
    known = sorted(value for value in values if value is not None)
    return (known[(len(known) - 1) // 2], known[-1]) if known else None
