"""What legs, probes and operators say of the engines, put together: who gets new work.

Soft evidence (slow, failing or restarted engines) never takes the last engine of a role out of
service: a doubtful engine serves more than none. Hard evidence does: there is nothing to send to.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from narwhal.config import RestartPolicy
from narwhal.fleet.drift import Drift
from narwhal.fleet.drift_record import FindingKind
from narwhal.fleet.standing import TAKES_WORK, TO_BE_PROVED, EngineState, Event, Standings
from narwhal.fleet.streaks import Remedy, Streaks
from narwhal.model import FailureClass

if TYPE_CHECKING:
    from collections.abc import Mapping

    from narwhal.config import Recovery
    from narwhal.fleet.drift_record import Finding
    from narwhal.fleet.standing import Transition
    from narwhal.model import Phase, Role

_SOFT = frozenset({Event.SUSPECTED, Event.EVICTED, Event.RESTARTED})


@attrs.frozen(kw_only=True)
class Incarnation:
    """One process of an engine: another one has another start."""

    version: str
    process_start_s: float | None
    """Unix time; None if the engine does not say."""


class Health:
    """Every engine's standing, failures in a row, missed probes and process.

    Guarantee: a state changes by these methods alone, and each returns the changes it made, for
    whoever writes them down. Pure: `now` is the caller's clock, and nothing waits.

    `roles` is looked at whenever a role matters, so that engines may change theirs.
    """

    def __init__(self, roles: Mapping[str, Role], recovery: Recovery) -> None:
        self.standings = Standings(roles, quarantine_s=recovery.failure_quarantine_s)
        self.streaks = Streaks(roles, eject_after=recovery.eject_after)
        self.incarnations: dict[str, Incarnation] = {}
        """The process of each engine that has been asked for it."""
        self.drift = Drift(roles, recovery.health)
        """Engines that answer, but too slowly."""
        self.to_probe: set[str] = set()
        """Engines to be asked at the next opportunity whether they are well."""
        self._roles = roles
        self._recovery = recovery
        self._misses = dict.fromkeys(roles, 0)

    # Who gets work

    def takes_work(self, iid: str) -> bool:
        """Whether the engine may get new work."""
        return self.standings.state(iid) in TAKES_WORK

    def quarantined(self, iid: str, now: float) -> bool:
        """Whether another engine is to be preferred for the time being."""
        return self.standings.quarantined(iid, now)

    def in_service(self, role: Role) -> list[str]:
        """The engines of a role that take new work."""
        return [iid for iid, own in self._roles.items() if own is role and self.takes_work(iid)]

    def to_be_proved(self) -> list[str]:
        """Engines that come back as soon as they are seen to generate."""
        return [iid for iid in self._roles if self.standings.state(iid) in TO_BE_PROVED]

    def blocked(self) -> list[str]:
        """Engines that are not what `engine_contract` says."""
        state = self.standings.state
        return [iid for iid in self._roles if state(iid) is EngineState.BLOCKED]

    def is_last(self, iid: str) -> bool:
        """Whether no other engine of its role takes new work."""
        return not set(self.in_service(self._roles[iid])) - {iid}

    # Legs

    def failed(self, iid: str, phase: Phase, failure: FailureClass, now: float) -> list[Transition]:
        """A leg failed on the engine."""
        if not self.takes_work(iid):
            return []  # a leg from before: what it says is known
        changes = []
        if failure not in (FailureClass.NEUTRAL, FailureClass.LOCAL, FailureClass.OVERLOAD):
            changes += self._let(iid, Event.FAILED, now, f"a leg failed: {failure}")
        remedy = self.streaks.failed(iid, phase, failure)
        if remedy is None:
            return changes
        times = f"{self._recovery.eject_after} failures in a row: {failure}"
        if remedy is Remedy.EJECT:
            return changes + self._let(iid, Event.LOST, now, times)
        if failure is not FailureClass.OVERLOAD:
            changes += self._let(iid, Event.SUSPECTED, now, times)
        if self.takes_work(iid):
            self.to_probe.add(iid)
        return changes

    def succeeded(self, iid: str, phase: Phase) -> None:
        """A leg went well."""
        self.streaks.succeeded(iid, phase)
        self._misses[iid] = 0

    # Probes

    def missed(self, iid: str, now: float, why: str) -> list[Transition]:
        """A liveness probe was not answered, or not with "well"."""
        self._misses[iid] += 1
        if self._misses[iid] < self._recovery.liveness_misses:
            return []
        text = f"{self._misses[iid]} liveness probes in a row were missed: {why}"
        return self._let(iid, Event.LOST, now, text)

    def answered(self, iid: str) -> None:
        """A liveness probe was answered."""
        self._misses[iid] = 0

    def seen(self, iid: str, incarnation: Incarnation, now: float) -> tuple[bool, list[Transition]]:
        """The engine says which process it is: whether that is another one, and what follows."""
        before = self.incarnations.get(iid)
        self.incarnations[iid] = incarnation
        if before is None or before == incarnation:
            return False, []
        self._forget(iid)
        held = [iid]
        if self._recovery.engine_restart_policy is RestartPolicy.WHOLE_WAVE:
            held += [other for other in self._roles if other != iid]
        changes = []
        for each in held:
            changes += self._let(each, Event.RESTARTED, now, f"{iid} is another process now")
        return True, changes

    def verified(self, iid: str, now: float, how: str) -> list[Transition]:
        """The engine was seen to generate: nothing is held against it any more."""
        self._forget(iid)
        return self._let(iid, Event.VERIFIED, now, how)

    def disproved(self, iid: str, now: float, why: str) -> list[Transition]:
        """The engine was asked to generate and did not."""
        return self._let(iid, Event.DISPROVED, now, why)

    def lost(self, iid: str, now: float, why: str) -> list[Transition]:
        """The engine was asked whether it is well, and cannot be reached."""
        return self._let(iid, Event.LOST, now, why)

    def found(self, finding: Finding, now: float) -> list[Transition]:
        """The engine has been too slow for too long, if that is what was found."""
        if finding.kind is not FindingKind.EVICT:
            return []
        return self._let(finding.iid, Event.EVICTED, now, finding.text)

    # Operators and the contract

    def drain(self, iid: str, now: float) -> list[Transition]:
        """An operator wants the engine stopped."""
        return self._let(iid, Event.DRAIN, now, "an operator drains it")

    def emptied(self, iid: str, now: float) -> list[Transition]:
        """The last leg on a draining engine is over."""
        return self._let(iid, Event.EMPTY, now, "nothing runs on it any more")

    def readmit(self, iid: str, now: float) -> list[Transition]:
        """An operator wants the engine back, and it is about to be checked."""
        return self._let(iid, Event.READMIT, now, "an operator readmits it")

    def passed(self, iid: str, now: float) -> list[Transition]:
        """It passed every check."""
        self._forget(iid)
        return self._let(iid, Event.PASSED, now, "it passed all checks")

    def rejected(self, iid: str, now: float, why: str) -> list[Transition]:
        """It failed one of the checks."""
        return self._let(iid, Event.REJECTED, now, why)

    def contract(self, iid: str, mismatch: str | None, now: float) -> list[Transition]:
        """What the engine reports was compared with `engine_contract`; None: it matches."""
        if mismatch is None:
            return self._let(iid, Event.MATCHED, now, "it reports what engine_contract says")
        return self._let(iid, Event.MISMATCHED, now, mismatch)

    # Time

    def expire(self, now: float) -> list[Transition]:
        """End the quarantines that are over."""
        return self.standings.expire(now)

    def _let(self, iid: str, event: Event, now: float, reason: str) -> list[Transition]:
        if event in _SOFT and self.takes_work(iid) and self.is_last(iid):
            return []
        change = self.standings.happened(iid, event, now, reason)
        return [] if change is None else [change]

    def _forget(self, iid: str) -> None:
        self.streaks.reset(iid)
        self.drift.reset(iid)
        self._misses[iid] = 0
        self.to_probe.discard(iid)
