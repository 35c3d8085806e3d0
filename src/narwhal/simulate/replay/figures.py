"""What replays come to: shares, times and counts, whole and by windows of time."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING

import attrs

from narwhal.model import Terminal

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from narwhal.simulate.replay.results import Result, Served

# Of these, the first with which a replay has no more than `_MOST_WINDOWS` windows is taken.
_WIDTHS_S = (1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0)
_MOST_WINDOWS = 45


@attrs.frozen(kw_only=True)
class Share:
    """How many of the offered requests had their answer in time."""

    offered: int
    attained: int

    @property
    def fraction(self) -> float | None:
        """`attained` of `offered`; None if nothing was offered."""
        return self.attained / self.offered if self.offered else None


@attrs.frozen(kw_only=True)
class Times:
    """Seconds that half of the requests, and 99 of 100, were no slower than; None without any."""

    p50: float | None
    p99: float | None


@attrs.frozen(kw_only=True)
class Figures:
    """One arm, all its seeds together."""

    arm: str
    seeds: tuple[int, ...]
    all: Share
    kinds: Mapping[str, Share]
    """By the kind of request, in alphabetical order."""
    by_seed: Mapping[int, Share]
    refused: Mapping[str, int]
    """Not admitted, by code."""
    failed: Mapping[str, int]
    """Admitted and not completed, by code."""
    ttft: Times
    """To the first token at the client, of all requests that had one."""
    tpot: Times
    """Between tokens, of all requests with a whole answer of more than one token."""
    moves: int
    decisions: Mapping[str, int]
    """Passes of the controller, by `rule/gate`."""
    virtual_s: float
    real_s: float

    @property
    def worst_kind(self) -> float | None:
        """The least share of a kind: what an arm that serves one at another's cost comes to."""
        shares = [each.fraction for each in self.kinds.values() if each.fraction is not None]
        return min(shares, default=None)


@attrs.frozen(kw_only=True)
class Window:
    """The requests that came within a stretch of time, whenever they ended."""

    at: float
    """When it begins, in seconds since the replay did."""
    all: Share
    kinds: Mapping[str, Share]
    """Kinds of which nothing came are left out."""
    refused: Mapping[str, int]
    """Not admitted, by code."""


def figures_of(arm: str, results: Sequence[Result]) -> Figures:
    """Sum up the replays of one arm, one for each seed."""
    served = [request for result in results for request in result.requests]
    decisions: Counter[str] = Counter()
    for result in results:
        decisions.update(result.decisions)
    return Figures(
        arm=arm,
        seeds=tuple(result.seed for result in results),
        all=_share(served),
        kinds=_by_kind(served),
        by_seed={result.seed: _share(result.requests) for result in results},
        refused=_refused(served),
        failed=_codes(each for each in served if _is_failed(each)),
        ttft=_times(each.first_token_s for each in served),
        tpot=_times(each.tpot_s for each in served if each.arrival.output > 1),
        moves=sum(len(result.moves) for result in results),
        decisions=dict(sorted(decisions.items())),
        virtual_s=sum(result.virtual_s for result in results),
        real_s=sum(result.real_s for result in results),
    )


def windows_of(result: Result, width_s: float) -> tuple[Window, ...]:
    """Every window of `width_s` seconds from 0 to the last arrival, also those without any."""
    slots: dict[int, list[Served]] = {}
    for each in result.requests:
        slots.setdefault(int(each.arrival.at // width_s), []).append(each)
    return tuple(_window(n * width_s, slots.get(n, [])) for n in range(max(slots, default=-1) + 1))


def width_for(results: Iterable[Result]) -> float:
    """A window's length in seconds, round, with which the longest replay can be drawn."""
    ends = (result.requests[-1].arrival.at for result in results if result.requests)
    seconds = max(ends, default=0.0)
    fitting = (width for width in _WIDTHS_S if seconds <= _MOST_WINDOWS * width)
    return next(fitting, _WIDTHS_S[-1] * math.ceil(seconds / _WIDTHS_S[-1] / _MOST_WINDOWS))


def percentile(values: Iterable[float], share: float) -> float | None:
    """The least of `values` that `share` of them, from above 0 to 1, are not above."""
    ordered = sorted(values)
    # Rounded, as 0.99 * 100 is a little more than 99 in floating point.
    return ordered[max(0, math.ceil(round(share * len(ordered), 9)) - 1)] if ordered else None


def _window(at: float, served: Sequence[Served]) -> Window:
    return Window(at=at, all=_share(served), kinds=_by_kind(served), refused=_refused(served))


def _share(served: Sequence[Served]) -> Share:
    return Share(offered=len(served), attained=sum(each.attained for each in served))


def _by_kind(served: Iterable[Served]) -> dict[str, Share]:
    kinds: dict[str, list[Served]] = {}
    for each in served:
        kinds.setdefault(each.arrival.kind, []).append(each)
    return {kind: _share(kinds[kind]) for kind in sorted(kinds)}


def _refused(served: Iterable[Served]) -> dict[str, int]:
    return _codes(each for each in served if each.terminal.turned_away)


def _is_failed(each: Served) -> bool:
    return each.terminal is not Terminal.COMPLETED and not each.terminal.turned_away


def _codes(served: Iterable[Served]) -> dict[str, int]:
    return dict(sorted(Counter(each.code or str(each.terminal) for each in served).items()))


def _times(values: Iterable[float | None]) -> Times:
    known = [value for value in values if value is not None]
    return Times(p50=percentile(known, 0.5), p99=percentile(known, 0.99))
