"""What engines turn out to take, over what their profiles say."""

from __future__ import annotations

from math import inf
from statistics import fmean
from typing import TYPE_CHECKING

from narwhal.fleet import DECODE_MEMORY, DECODE_PRIOR, Caution, Pace, Steps
from narwhal.model import Phase, Role

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from narwhal.fleet import Ledger
    from narwhal.profiles import Profile


class Paces:
    """By what factor each engine takes longer than profiled, of late; without profiles, 1.

    Prefills are observed where they stand in line, in the ledger. Decodes are by what steps their
    engine would have taken meanwhile, which changes whenever a decode comes or goes.
    """

    def __init__(self, ledger: Ledger, profiles: Mapping[str, Profile] | None) -> None:
        self._caution = Caution()
        self._ledger = ledger
        self._profiles = profiles
        self._loads = {iid: ledger.load(iid, Phase.DECODE) for iid in ledger.iids}
        self._steps = {iid: Steps() for iid in ledger.iids}
        self._gaps = dict.fromkeys(ledger.iids, (0.0, 0.0))
        self._decodes = {iid: Pace(memory=DECODE_MEMORY, prior=DECODE_PRIOR) for iid in ledger.iids}
        if profiles is not None:
            ledger.before_decodes_change = self.steps

    def of(self, iid: str, phase: Phase) -> float:
        """By what factor work of `phase` on `iid` takes longer than profiled."""
        return self._decodes[iid].ratio if phase is Phase.DECODE else self._ledger.pace(iid)

    def mean(self, iids: Iterable[str], phase: Phase) -> float:
        """The mean over engines, of which there has to be one."""
        return fmean(self.of(iid, phase) for iid in iids)

    @property
    def caution(self) -> float:
        """The factor on work ahead with which nearly all projections hold; 1 or more."""
        return 1.0 + self._caution.share

    def projected(self, projected_s: float, taken_s: float, *, budget_s: float) -> None:
        """A TTFT that was projected to be `projected_s` was `taken_s`."""
        # A short wait is off by a large share for little reason, and matters to no verdict.
        if projected_s >= budget_s / 2:
            self._caution.observe(projected_s, taken_s)

    def steps(self, iid: str, now: float) -> float:
        """Decode steps that `iid` would have taken up to now by its profile, from some beginning.

        While it has no decodes it takes none.
        """
        if self._profiles is None:
            return 0.0
        interval, load = inf, self._loads[iid]
        if load.requests:
            interval = self._profiles[iid].decode.interval(load.requests, load.mean_tokens)
        return self._steps[iid].advance(now, interval)

    def fresh(self, iid: str, role: Role, seconds: float) -> tuple[float, float]:
        """What work of its role took on `iid` since the last call, `seconds` ago, and predicted.

        Both in one unit, whichever that is; 0 without profiles, or if nothing was done. What was
        not seen at work is known the less for it.
        """
        if self._profiles is None:
            return 0.0, 0.0
        prefill, decode = self._ledger.fresh_pace(iid), self._decodes[iid].fresh()
        if not prefill[1]:
            self._ledger.fade_pace(iid, seconds)
        if not decode[1]:
            self._decodes[iid].fade(seconds)
        return prefill if role is Role.PREFILL else decode

    def forget(self, iid: str) -> None:
        """Another process: its pace is not known."""
        self._decodes[iid] = Pace(memory=DECODE_MEMORY, prior=DECODE_PRIOR)
        self._ledger.forget_pace(iid)

    def decoded(self, iid: str, *, steps: float, tokens: int) -> None:
        """After its first one an answer got `tokens` tokens, in the time of so many `steps`."""
        if self._profiles is not None and tokens > 0:
            # In units of the time that a token was to take: one each, and what it has taken.
            self._decodes[iid].observe(tokens, steps)
            taken, gaps = self._gaps[iid]
            self._gaps[iid] = (taken + steps, gaps + tokens)

    def fresh_gaps(self, iid: str) -> tuple[float, float]:
        """Gaps between tokens of answers that ended since the last call.

        First how long they took, in units of what each was profiled to take, then their number.
        """
        fresh, self._gaps[iid] = self._gaps[iid], (0.0, 0.0)
        return fresh
