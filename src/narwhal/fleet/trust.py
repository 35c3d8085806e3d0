"""How far each engine is trusted with the next leg, from how its last legs went.

This is a preference, not a verdict: a distrusted engine is used when nothing better is
eligible, so the last engine of a role is never shut out. Its purpose is that a dead or hanging
engine, which looks attractively idle to a least-loaded rule, costs the requests it was holding
and then one trial now and again instead of every request that comes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from narwhal.model import FailureClass, Phase

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

# Pauses between trials of an engine that keeps failing: 1, 2, 4, ... 30 s. The first is long
# against a request's own back-off (0.1 s by default), the last short against the minutes that
# an engine takes to load a model, so a returned engine is back in use soon.
FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 30.0
# 408, 429 and 503 say "busy", not "broken": step aside briefly, and never for longer each time.
BUSY_PAUSE_S = 0.25

_SILENT = frozenset({FailureClass.NEUTRAL, FailureClass.LOCAL})


@attrs.define
class _Standing:
    failures: int = 0
    """Consecutive failures that say the engine is broken; busy answers do not count."""
    avoid_until: float = float("-inf")
    """The end of the pause after a failure, or of the time that a trial is given."""
    busy_until: float = float("-inf")
    trial: bool = False
    """A leg was sent there although the last ones failed, and has not reported yet."""

    @property
    def doubtful_until(self) -> float:
        return max(self.avoid_until, self.busy_until)


class Trust:
    """Standing of every engine in every phase.

    A failed connection counts against all phases of the engine, any other failure only
    against the phase it happened in: an engine that cannot prefill may decode well.
    """

    PHASES = (Phase.TOKENIZE, Phase.PREFILL, Phase.DECODE)

    def __init__(self) -> None:
        # Of those against whom something is held: mostly nobody, and each leg asks several times.
        self._doubts: dict[tuple[str, Phase], _Standing] = {}

    def failed(
        self,
        iid: str,
        phase: Phase,
        failure: FailureClass,
        now: float,
        *,
        retry_after: float | None = None,
    ) -> None:
        """Take note of a failed leg. `retry_after` is the engine's own wish, in seconds."""
        if failure in _SILENT:
            return
        phases = self.PHASES if failure is FailureClass.CONNECTION else (phase,)
        for each in phases:
            standing = self._doubts.setdefault((iid, each), _Standing())
            if failure is FailureClass.OVERLOAD:
                pause = min(max(BUSY_PAUSE_S, retry_after or 0.0), LONGEST_PAUSE_S)
                standing.busy_until = max(standing.busy_until, now + pause)
            else:
                # An engine that dies takes all its legs along: that is one event, not a streak.
                # That it was busy before is another matter, and hides no failure.
                if standing.trial or now >= standing.avoid_until:
                    standing.failures += 1
                standing.trial = False
                pause = _pause(standing.failures)
                standing.avoid_until = max(standing.avoid_until, now + pause)

    def succeeded(self, iid: str, phase: Phase) -> None:
        """Take note of a leg of `phase` that went well: nothing is held against it any more."""
        self._doubts.pop((iid, phase), None)

    def placed(self, iid: str, phase: Phase, now: float) -> None:
        """Take note that a leg goes to `iid`: if it is a trial, the others wait for its result."""
        standing = self._doubts.get((iid, phase))
        if standing is not None and standing.failures and now >= standing.doubtful_until:
            standing.avoid_until = now + _pause(standing.failures)
            standing.trial = True

    def doubtful(self, iid: str, phase: Phase, now: float) -> bool:
        """Whether another engine should be preferred for a leg of `phase` at `now`."""
        standing = self._doubts.get((iid, phase))
        return standing is not None and now < standing.doubtful_until

    def doubts(self, phase: Phase, now: float) -> Collection[str]:
        """The engines for which `doubtful` is true; what is asked before every leg."""
        if not self._doubts:
            return ()
        return {
            iid
            for (iid, of), standing in self._doubts.items()
            if of is phase and now < standing.doubtful_until
        }

    def forget(self, iid: str) -> None:
        """Another process, or one that was seen to generate: nothing is held against it."""
        for phase in self.PHASES:
            self._doubts.pop((iid, phase), None)

    def changes_at(self, iids: Iterable[str], phase: Phase, now: float) -> float:
        """When a doubt of one of these engines ends next; `inf` if none does."""
        doubts = [self._doubts.get((iid, phase)) for iid in iids]
        times = [doubt.doubtful_until for doubt in doubts if doubt is not None]
        return min((time for time in times if time > now), default=float("inf"))

    def describe(self, iid: str, now: float) -> str:
        """One word or a few for people: `trusted`, or the phases in which it is avoided."""
        avoided = [phase for phase in self.PHASES if self.doubtful(iid, phase, now)]
        return f"avoided for {', '.join(avoided)}" if avoided else "trusted"

    def failures(self, iid: str, phase: Phase) -> int:
        """Consecutive failures of `phase` on `iid`."""
        standing = self._doubts.get((iid, phase))
        return 0 if standing is None else standing.failures


def _pause(failures: int) -> float:
    return min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** (min(failures, 16) - 1))
