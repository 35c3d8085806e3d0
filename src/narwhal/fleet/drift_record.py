"""One engine's windows, and what follows from each: probation, eviction, recovery."""

from __future__ import annotations

import math
from collections import deque
from enum import StrEnum
from statistics import median
from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from narwhal.config.recovery import Health

# A default window has 30 passes. Where passes are much denser than that, the newest 256 tell the
# median as well as all of them, and memory does not depend on how often the caller looks.
MOST_RESIDUALS = 256
# The baseline is a median over so many healthy windows, a quarter of an hour by default: 15 odd
# ones among them do not show. An odd number, so that it is the residual of one of them.
BASELINE_WINDOWS = 31


class FindingKind(StrEnum):
    """What became of an engine."""

    PROBATION = "probation"
    """It is to be chosen last from now on."""
    EVICT = "evict"
    """It should be taken out of service. Nothing changes here if the caller refuses."""
    RECOVERED = "recovered"
    """Its probation is over."""


@attrs.frozen(kw_only=True)
class Finding:
    """A verdict on one engine, with the numbers that led to it."""

    iid: str
    kind: FindingKind
    median: float
    """Median residual of the window that settled it."""
    baseline: float
    """The engine's own when it is healthy, as it stood before that window."""
    peers: float | None
    """Median of the other engines' medians in that window; `None` if none could be judged."""
    windows: int
    """Windows in a row that were like it: good ones if it recovered, else bad ones."""
    compared: int
    """How many of those could be compared with other engines'."""

    @property
    def text(self) -> str:
        """What was seen, for people."""
        each = "window" if self.windows == 1 else "windows in a row"
        return (
            f"{self.windows} {each} at {self.median:.2f} times its profile; "
            f"{self.baseline:.2f} is usual for it"
        )


@attrs.define(eq=False)
class Record:
    """One engine: the residuals of the window that goes on, and what its earlier ones said."""

    iid: str
    health: Health
    window: deque[float] = attrs.field(init=False)
    probation: bool = attrs.field(init=False, default=False)
    _bad: bool = attrs.field(init=False, default=False)
    """What the last judged window was; `_row` of them were."""
    _row: int = attrs.field(init=False, default=0)
    _compared: int = attrs.field(init=False, default=0)
    """How many of `_row` had peers."""
    _healthy: deque[float] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.window = deque(maxlen=max(MOST_RESIDUALS, self.health.min_samples))
        self._healthy = deque([1.0] * BASELINE_WINDOWS, maxlen=BASELINE_WINDOWS)

    @property
    def baseline(self) -> float:
        """The residual that it shows when it is well."""
        return median(self._healthy)

    def judge(self, middle: float, peers: float | None) -> tuple[Finding, ...]:
        """What follows from one more window of the median `middle`, the others' being `peers`."""
        baseline = self.baseline
        slow = middle > self.health.drift_band * baseline
        bad = slow and (peers is None or middle > self.health.relative_band * peers)
        self._learn(middle)
        self._count(bad=bad, compared=peers is not None)
        return tuple(
            Finding(
                iid=self.iid,
                kind=kind,
                median=middle,
                baseline=baseline,
                peers=peers,
                windows=self._row,
                compared=self._compared,
            )
            for kind in (self._worse(compared=peers is not None) if bad else self._better())
        )

    def _learn(self, middle: float) -> None:
        """Take note of the window if the engine was well in it."""
        # Within the band of its profile it is never bad. Beyond that it may be good, if all are
        # as slow, but was not well; and on probation it may not be well yet. A profile that is
        # somewhat too fast is made up for, but what is nearer to the band than to the profile, by
        # ratio, teaches no more than the middle of the two. And an engine that was faster than
        # its profile is held to the profile, as `drift_band` says.
        if not self.probation and middle <= self.health.drift_band:
            self._healthy.append(min(max(middle, 1.0), math.sqrt(self.health.drift_band)))

    def _count(self, *, bad: bool, compared: bool) -> None:
        if bad is not self._bad:
            self._bad, self._row, self._compared = bad, 0, 0
        self._row += 1
        self._compared += compared

    def _worse(self, *, compared: bool) -> list[FindingKind]:
        """What a bad window brings."""
        health, found = self.health, []
        if not self.probation and self._row >= health.probation_windows:
            self.probation = True
            found.append(FindingKind.PROBATION)
        # One that is to go is on probation, whatever the order of the two settings.
        enough = max(health.evict_windows, health.probation_windows)
        if compared and self._compared >= enough:
            found.append(FindingKind.EVICT)
        return found

    def _better(self) -> list[FindingKind]:
        """What a good window brings."""
        if not self.probation or self._row < self.health.recovery_windows:
            return []
        self.probation = False
        return [FindingKind.RECOVERED]
