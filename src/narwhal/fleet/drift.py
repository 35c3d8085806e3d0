"""Whether engines that answer, but more slowly than they should, lose work to the others.

A residual is the interval between tokens that an engine showed over the one that its profile
predicts for the batch it had: 1 as predicted, 2 twice as long. Their medians over windows are
judged, of each engine against itself and against the others, because load that slows all of them
is no reason to prefer any. What the settings mean is said in `narwhal.config.recovery.Health`.
"""

from __future__ import annotations

import math
from statistics import median
from typing import TYPE_CHECKING

from narwhal.fleet.drift_record import Finding, Record

if TYPE_CHECKING:
    from collections.abc import Iterable

    from narwhal.config.recovery import Health


class Drift:
    """Which engines are slower than they should be, by windows of `window_s` seconds.

    Window k is [k `window_s`, (k + 1) `window_s`) of the caller's monotonic clock for every
    engine, so that windows of different engines are of the same time, and late passes shift none.
    It is judged if it has `min_samples` residuals, by their median m. It is bad if

    - m > `drift_band` x baseline, where the baseline is what the engine showed when it was well:
      the median of its last 31 m that were at most `drift_band`, off probation, each taken as at
      least 1 and at most sqrt(`drift_band`), and all as 1 to begin with; and
    - m > `relative_band` x the median of the other engines' m in the same window.

    Else it is good. `probation_windows` bad ones in a row put the engine on probation. From
    `evict_windows` on, but never before its probation, each bad one asks for its eviction.
    `recovery_windows` good ones in a row end the probation.

    A window with fewer residuals says nothing and breaks no row. An engine on probation is
    chosen last, so it may be silent for long: that makes it neither well nor worse, and an engine
    with little work must not escape by it. One that gets no work at all stays on probation until
    its caller lets it `try_again`.

    **Where nothing can be compared**, because no other engine was judged in that window, the
    engine's own band decides. That is enough for probation, which is a preference, but load and
    sickness look alike then: an eviction takes as many bad windows *that were compared* in the
    row, the last of them included. So an engine that is alone is never evicted. It can be put on
    probation, which says what was seen, and has no price (see `penalty_s`).

    Guarantees: an engine whose residuals are all at most `drift_band` is in no finding; engines
    that show the same at the same time are in none; the order of engines matters nowhere.
    """

    def __init__(self, iids: Iterable[str], health: Health) -> None:
        self._health = health
        self._records = {iid: Record(iid, health) for iid in iids}
        self._index = -math.inf
        self._found: dict[str, tuple[Finding, ...]] = {}

    def observe(self, iid: str, observed_s: float, predicted_s: float, now: float) -> None:
        """Take note of the interval between tokens that `iid` shows at `now`, in seconds.

        A monitor pass does so once at most for each engine that decodes. A prediction of 0, or an
        interval that is no positive number, says nothing.
        """
        self._advance(now)
        record = self._records[iid]
        residual = observed_s / predicted_s if predicted_s > 0 else math.nan
        if 0 < residual < math.inf:
            record.window.append(residual)

    def judge(self, now: float) -> tuple[Finding, ...]:
        """What the windows that ended by `now` have shown, by `iid`; each is told once.

        Called in every monitor pass, before or after its observations. Where several windows
        ended between two calls, the last one that was judged speaks for its engine.
        """
        self._advance(now)
        found, self._found = self._found, {}
        return tuple(finding for iid in sorted(found) for finding in found[iid])

    def reset(self, iid: str) -> None:
        """Forget all that `iid` has shown: it restarted, or was readmitted."""
        self._records[iid] = Record(iid, self._health)
        self._found.pop(iid, None)

    def try_again(self, iid: str) -> None:
        """End a probation in which the engine had no work, and so could show nothing.

        Its row goes on: with one more bad window it is on probation again, or to be evicted.
        """
        self._records[iid].probation = False

    def on_probation(self, iid: str) -> bool:
        """Whether `iid` should be chosen last."""
        return self._records[iid].probation

    def penalty_s(self, iid: str) -> float:
        """Seconds to add to the price of `iid`: `probation_penalty_s` on probation, else 0.

        It is 0 when all engines of the fleet are on probation, or the only one: with the same
        added to all none comes last, and admission would refuse what no other engine does faster.
        """
        if not self._records[iid].probation or all(
            each.probation for each in self._records.values()
        ):
            return 0.0
        return self._health.probation_penalty_s

    def baseline(self, iid: str) -> float:
        """The residual that is held to be normal for `iid`: 1 or more, and below `drift_band`."""
        return self._records[iid].baseline

    def _advance(self, now: float) -> None:
        index = math.floor(now / self._health.window_s)
        if index > self._index:
            self._index = index
            self._close()

    def _close(self) -> None:
        """Judge the window that ended, of all engines at once."""
        middles = {
            iid: median(record.window)
            for iid, record in self._records.items()
            if len(record.window) >= self._health.min_samples
        }
        for record in self._records.values():
            record.window.clear()
        for iid, middle in middles.items():
            others = [each for other, each in middles.items() if other != iid]
            self._found[iid] = self._records[iid].judge(middle, median(others) if others else None)
