"""Traces in other shapes: cut, smoothed, paced, laid over each other, with bursts in them.

Every function is pure. It takes arrivals in the order of time and returns them so; none changes how
much a request asks for.
"""

from __future__ import annotations

from bisect import bisect_left
from heapq import merge
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    import random
    from collections.abc import Iterable, Sequence

    from narwhal.simulate.replay.arrivals import Arrival

# The least that gaps are divided by: those of requests that came at one moment are all 0.
_LEAST = 1e-9


def _when(arrival: Arrival) -> float:
    return arrival.at


def between(
    arrivals: Sequence[Arrival], start: float, seconds: float | None
) -> tuple[Arrival, ...]:
    """What came from `start` on and less than `seconds` later, with `start` as the new 0.

    `None` goes to the end.
    """
    first = bisect_left(arrivals, start, key=_when)
    last = None if seconds is None else bisect_left(arrivals, start + seconds, key=_when)
    return tuple(attrs.evolve(each, at=each.at - start) for each in arrivals[first:last])


def gaps_of(arrivals: Sequence[Arrival], *, smooth: int = 0) -> tuple[float, ...]:
    """The time from each arrival to the next, and 0 for the last.

    With `smooth`, each is divided by the mean of the gaps around it: `smooth // 2` before it,
    itself and as many after it, fewer at the ends. This takes away the slow rise and fall of a
    trace, and leaves what happens within seconds. The unit is then the mean gap, not the second.
    """
    gaps = [max(0.0, after.at - before.at) for before, after in pairwise(arrivals)] + [0.0]
    if not smooth:
        return tuple(gaps)
    half, sums = smooth // 2, [0.0, *accumulate(gaps)]
    ends = [(max(0, i - half), min(len(gaps), i + half + 1)) for i in range(len(gaps))]
    means = [max(_LEAST, (sums[high] - sums[low]) / (high - low)) for low, high in ends]
    return tuple(gap / mean for gap, mean in zip(gaps, means, strict=True))


def paced(
    arrivals: Sequence[Arrival], *, rate: float | None, scale: float = 1.0, smooth: int = 0
) -> tuple[Arrival, ...]:
    """The whole trace at `rate` requests per second on average, times `scale`.

    `None` is the trace's own mean rate. One whose requests all came at one moment has none, and
    stays as it is.
    """
    own = mean_rate(arrivals)
    if own is None:
        return tuple(arrivals)
    wanted = scale * (own if rate is None else rate)
    return _fitted(
        arrivals,
        gaps_of(arrivals, smooth=smooth),
        start=arrivals[0].at * own / wanted,
        seconds=len(arrivals) / wanted,
    )


def phase(
    arrivals: Sequence[Arrival],
    gaps: Sequence[float],
    *,
    rate: float,
    seconds: float,
    skip: int,
    start: float,
) -> tuple[Arrival, ...]:
    """As many consecutive requests as `rate` gives in `seconds`, one at least, fitted into them.

    They begin with request `skip` (from 0) at time `start`. Where the trace ends it begins again.
    `gaps` are those of `gaps_of`; they are stretched so that the phase is full.
    """
    count = max(1, round(rate * seconds))
    places = [(skip + i) % len(arrivals) for i in range(count)]
    return _fitted(
        [arrivals[place] for place in places],
        [gaps[place] for place in places],
        start=start,
        seconds=seconds,
    )


def merged(traces: Iterable[Sequence[Arrival]]) -> tuple[Arrival, ...]:
    """All at once, by time; of one moment, in the order of the traces."""
    return tuple(merge(*traces, key=_when))


def with_burst(
    arrivals: Sequence[Arrival], *, start: float, seconds: float, factor: float, rng: random.Random
) -> tuple[Arrival, ...]:
    """The same with `factor` times as many requests from `start` on, for `seconds`.

    Above 1, requests of that time come again, each as often as any other but for one that chance
    adds, at times that are drawn evenly. Below 1, each stays with that chance. Nothing else moves.
    """
    first = bisect_left(arrivals, start, key=_when)
    last = bisect_left(arrivals, start + seconds, key=_when)
    within = arrivals[first:last]
    if factor < 1:
        kept = [each for each in within if rng.random() < factor]
        return (*arrivals[:first], *kept, *arrivals[last:])
    more = [
        attrs.evolve(each, at=start + rng.random() * seconds)
        for each in within
        for _ in range(int(factor) - 1 + (rng.random() < factor % 1))
    ]
    inside = merged([within, sorted(more, key=_when)])
    return (*arrivals[:first], *inside, *arrivals[last:])


def mean_rate(arrivals: Sequence[Arrival]) -> float | None:
    """Requests per second over the whole trace; `None` if it takes no time."""
    seconds = arrivals[-1].at - arrivals[0].at if arrivals else 0.0
    return len(arrivals) / seconds if seconds > 0 else None


def _fitted(
    arrivals: Sequence[Arrival], gaps: Sequence[float], *, start: float, seconds: float
) -> tuple[Arrival, ...]:
    """The arrivals with these gaps between them, stretched so that all gaps sum to `seconds`."""
    stretch = seconds / max(_LEAST, sum(gaps))
    times = accumulate(gaps[:-1], initial=0.0)
    return tuple(
        attrs.evolve(each, at=start + at * stretch)
        for each, at in zip(arrivals, times, strict=True)
    )
