"""Whether an engine is in service: the states it can be in, and what moves it from one to another.

One table has all transitions. An event that the table does not have for a state means nothing
there: an engine that is drained cannot fail a leg, and one that is ejected cannot be ejected again.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable


class EngineState(StrEnum):
    """Whether an engine gets new work, and if not, what it takes to change that."""

    SERVING = "serving"
    QUARANTINED = "quarantined"
    """It failed a leg less than `recovery.failure_quarantine_s` ago."""
    HELD = "held"
    """Something speaks against it: it gets no new work until it has generated."""
    EJECTED = "ejected"
    """It is not there, does not generate, or is far too slow: probed until it generates again."""
    DRAINING = "draining"
    """An operator wants it stopped: what it runs goes on, nothing new comes."""
    DRAINED = "drained"
    """It runs nothing more and may be stopped."""
    VALIDATING = "validating"
    """An operator wants it back: it is being checked."""
    BLOCKED = "blocked"
    """It is not what `engine_contract` says."""


class Event(StrEnum):
    """What can happen to an engine."""

    FAILED = "failed"
    """A leg failed, and `recovery.failure_quarantine_s` is set."""
    PARDONED = "pardoned"
    """The quarantine is over."""
    SUSPECTED = "suspected"
    """It failed as often as `recovery.eject_after` says, in ways that ask whether it generates."""
    LOST = "lost"
    """It cannot be reached."""
    EVICTED = "evicted"
    """It has been too slow for too long."""
    RESTARTED = "restarted"
    """Another process answers at its address."""
    VERIFIED = "verified"
    """It generated."""
    DISPROVED = "disproved"
    """It was asked to generate, and did not."""
    DRAIN = "drain"
    """An operator wants it drained."""
    EMPTY = "empty"
    """The last leg on it is over."""
    READMIT = "readmit"
    """An operator wants it back."""
    PASSED = "passed"
    """It passed all checks of a readmission."""
    REJECTED = "rejected"
    """It failed one of them."""
    MISMATCHED = "mismatched"
    """It reports something else than `engine_contract` says."""
    MATCHED = "matched"
    """It reports what `engine_contract` says."""


_S, _E = EngineState, Event

_OUT = {_E.DRAIN: _S.DRAINING, _E.MISMATCHED: _S.BLOCKED}
_IN_SERVICE = {
    _E.FAILED: _S.QUARANTINED,
    _E.SUSPECTED: _S.HELD,
    _E.RESTARTED: _S.HELD,
    _E.LOST: _S.EJECTED,
    _E.EVICTED: _S.EJECTED,
    **_OUT,
}

TRANSITIONS: dict[EngineState, dict[Event, EngineState]] = {
    _S.SERVING: _IN_SERVICE,
    _S.QUARANTINED: {**_IN_SERVICE, _E.PARDONED: _S.SERVING},
    _S.HELD: {
        _E.VERIFIED: _S.SERVING,
        _E.DISPROVED: _S.EJECTED,
        _E.LOST: _S.EJECTED,
        **_OUT,
    },
    # A process that came back is no proof: it stays out until it generates.
    _S.EJECTED: {_E.VERIFIED: _S.SERVING, **_OUT},
    # The operator's word holds: what happens to an engine that is to be stopped is no news. That
    # includes its process being gone.
    _S.DRAINING: {_E.EMPTY: _S.DRAINED, _E.READMIT: _S.VALIDATING},
    _S.DRAINED: {_E.READMIT: _S.VALIDATING},
    _S.VALIDATING: {
        _E.PASSED: _S.SERVING,
        _E.REJECTED: _S.DRAINED,
        _E.MISMATCHED: _S.BLOCKED,
        _E.DRAIN: _S.DRAINING,
    },
    # It may be right now, but nobody has seen it generate since.
    _S.BLOCKED: {_E.MATCHED: _S.HELD, _E.READMIT: _S.VALIDATING, _E.DRAIN: _S.DRAINING},
}
"""From each state, where each event leads. What is not in it changes nothing."""

TAKES_WORK = frozenset({_S.SERVING, _S.QUARANTINED})
"""States in which an engine may get new work; quarantined ones only if nothing better is there."""
TO_BE_PROVED = frozenset({_S.HELD, _S.EJECTED})
"""States that end as soon as the engine is seen to generate."""
OPERATORS = frozenset({_S.DRAINING, _S.DRAINED, _S.VALIDATING})
"""States that an operator asked for, and only an operator ends."""


@attrs.frozen(kw_only=True)
class Transition:
    """One change of one engine's state: what a journal line says of it."""

    at: float
    iid: str
    source: EngineState
    event: Event
    target: EngineState
    reason: str
    """For people, in one sentence, with the numbers that led to it."""


@attrs.define
class _Standing:
    state: EngineState = EngineState.SERVING
    since: float = float("-inf")
    cause: Event | None = None
    reason: str = ""
    until: float = float("inf")
    """When a quarantine ends."""


class Standings:
    """The state of every engine of a fleet.

    Guarantee: a state changes by `happened` and `expire` alone, along `TRANSITIONS`, and every
    change is returned as a `Transition`. Pure and synchronous: `now` is whatever clock the caller
    uses throughout.
    """

    def __init__(self, iids: Iterable[str], *, quarantine_s: float = 0.0) -> None:
        self._standings = {iid: _Standing() for iid in iids}
        self._quarantine_s = quarantine_s

    def state(self, iid: str) -> EngineState:
        """The engine's state."""
        return self._standings[iid].state

    def quarantined(self, iid: str, now: float) -> bool:
        """Whether a quarantine lasts. It is over at its time, even before `expire` is called."""
        standing = self._standings[iid]
        return standing.state is EngineState.QUARANTINED and now < standing.until

    def quarantines(self, now: float) -> Collection[str]:
        """The engines for which `quarantined` is true; what is asked before every leg."""
        if not self._quarantine_s:
            return ()
        return {iid for iid in self._standings if self.quarantined(iid, now)}

    def since(self, iid: str) -> float:
        """When it came into that state; minus infinity if it always was."""
        return self._standings[iid].since

    def cause(self, iid: str) -> Event | None:
        """What brought it into that state; None if it always was, or was restored."""
        return self._standings[iid].cause

    def reason(self, iid: str) -> str:
        """Why it is in that state; empty if it always was."""
        return self._standings[iid].reason

    def happened(self, iid: str, event: Event, now: float, reason: str) -> Transition | None:
        """Let something happen to an engine; None if that changes nothing."""
        standing = self._standings[iid]
        if event is Event.FAILED:
            if not self._quarantine_s:
                return None
            if standing.state is EngineState.QUARANTINED:
                standing.until = now + self._quarantine_s
                return None
        target = TRANSITIONS[standing.state].get(event)
        if target is None:
            return None
        change = Transition(
            at=now, iid=iid, source=standing.state, event=event, target=target, reason=reason
        )
        quarantined = target is EngineState.QUARANTINED
        standing.state, standing.since, standing.reason = target, now, reason
        standing.cause = event
        standing.until = now + self._quarantine_s if quarantined else float("inf")
        return change

    def restore(self, iid: str, state: EngineState, now: float, reason: str) -> None:
        """Put an engine into the state that it was in when the router was stopped."""
        standing = self._standings[iid]
        standing.state, standing.since, standing.reason = state, now, reason
        standing.until = now + self._quarantine_s

    def expire(self, now: float) -> list[Transition]:
        """End the quarantines that are over."""
        over = [
            iid
            for iid, standing in self._standings.items()
            if standing.state is EngineState.QUARANTINED and now >= standing.until
        ]
        changes = [
            self.happened(iid, Event.PARDONED, now, "its quarantine is over") for iid in over
        ]
        return [change for change in changes if change is not None]

    def next_expiry(self) -> float:
        """When the next quarantine is over; infinity if there is none."""
        return min(
            (
                standing.until
                for standing in self._standings.values()
                if standing.state is EngineState.QUARANTINED
            ),
            default=float("inf"),
        )
