"""The work that the router has put on each engine and not taken off again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import msgspec

from narwhal.fleet.backlog import Backlog
from narwhal.model import Phase

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

UNPLACED = ""
"""Stands for the engine of a leg that has none yet. No engine is called that."""


class _Tokens:
    """KV tokens that a leg holds, or several."""

    __slots__ = ()
    prompt_tokens: int
    output_tokens: int

    @property
    def tokens(self) -> int:
        """KV tokens at the end."""
        return self.prompt_tokens + self.output_tokens

    @property
    def mean_tokens(self) -> float:
        """KV tokens over the lifetime: the output grows from nothing."""
        return self.prompt_tokens + self.output_tokens / 2


class Claim(_Tokens, msgspec.Struct, frozen=True, kw_only=True):
    """What a leg takes of the engine that it goes to; three are made for each request."""

    prompt_tokens: int
    output_tokens: int = 0
    """Tokens that it is expected to generate there."""
    seconds: float = 0.0
    """What its prefill is predicted to take there, alone; 0 if it has none, or none is known."""


@attrs.define(eq=False)
class Load(_Tokens):
    """Legs of one phase on one engine, and what they take of it together."""

    requests: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0


@attrs.define(eq=False)
class Reservation:
    """One leg's claim on one engine. It is released exactly once, whatever ends the leg."""

    ledger: Ledger
    iid: str
    phase: Phase
    claim: Claim
    line: Backlog | None = None
    """Where its prefill stands in line, if its length is known."""
    released: bool = False
    done: bool = False
    """Set before the release of a prefill that came to its end: it says how fast the engine is."""

    def release(self, now: float) -> None:
        """Take the claim back. A second call is a defect of the caller and raises."""
        if self.released:
            raise AssertionError(f"{self.phase} reservation on {self.iid} released twice")
        self.released = True
        self.ledger.remove(self, now)


class Ledger:
    """Resident legs and what they take, by engine and phase.

    Guarantee: what it says of an engine is the sum over the reservations that are out, so it
    reads zero when no request is being served. Decodes that have no engine yet, of requests that
    are being prefilled, stand under `UNPLACED`.
    """

    PHASES = (Phase.PREFILL, Phase.DECODE)

    def __init__(self, iids: Iterable[str]) -> None:
        self.iids = tuple(iids)
        self._loads = {
            (iid, phase): Load() for iid in (*self.iids, UNPLACED) for phase in self.PHASES
        }
        self._backlogs = {iid: Backlog() for iid in self.iids}
        self.before_decodes_change: Callable[[str, float], object] = lambda _iid, _now: None
        """Called with an engine and the time just before its decodes become more or fewer."""

    def reserve(self, iid: str, phase: Phase, claim: Claim, now: float) -> Reservation:
        """Claim a place on `iid`, or on no engine yet, for a leg that begins at `now`."""
        line = None
        if iid != UNPLACED:
            if phase is Phase.DECODE:
                self.before_decodes_change(iid, now)
            elif claim.seconds:
                line = self._backlogs[iid]
        reservation = Reservation(self, iid, phase, claim, line)
        load = self._loads[iid, phase]
        load.requests += 1
        load.prompt_tokens += claim.prompt_tokens
        load.output_tokens += claim.output_tokens
        if line is not None:
            line.add(reservation, claim.seconds, now)
        return reservation

    def remove(self, reservation: Reservation, now: float) -> None:
        """For `Reservation.release`."""
        iid, phase = reservation.iid, reservation.phase
        if phase is Phase.DECODE and iid != UNPLACED:
            self.before_decodes_change(iid, now)
        load, claim = self._loads[iid, phase], reservation.claim
        load.requests -= 1
        load.prompt_tokens -= claim.prompt_tokens
        load.output_tokens -= claim.output_tokens
        if reservation.line is not None:
            reservation.line.remove(reservation, now, done=reservation.done)

    def load(self, iid: str, phase: Phase) -> Load:
        """The legs of `phase` on `iid`; a view that changes with them."""
        return self._loads[iid, phase]

    def residents(self, iid: str, phase: Phase) -> int:
        """Legs of `phase` that are on `iid` now."""
        return self._loads[iid, phase].requests

    def tokens(self, iid: str, phase: Phase) -> int:
        """KV tokens that those legs will hold at their ends."""
        return self._loads[iid, phase].tokens

    def backlog_s(self, iid: str, now: float) -> float:
        """Predicted seconds until `iid` has done all its resident prefills of known length."""
        return self._backlogs[iid].remaining_s(now)

    def pace(self, iid: str) -> float:
        """By what factor prefills on `iid` take longer than predicted, of late; 1 at first."""
        return self._backlogs[iid].pace.ratio

    def fresh_pace(self, iid: str) -> tuple[float, float]:
        """Seconds that prefills took on `iid` since the last call, and those predicted."""
        return self._backlogs[iid].pace.fresh()

    def fade_pace(self, iid: str, seconds: float) -> None:
        """No prefill ended on `iid` for that long."""
        self._backlogs[iid].pace.fade(seconds)

    def forget_pace(self, iid: str) -> None:
        """Another process: what prefills take there is not known."""
        self._backlogs[iid].forget_pace()

    @property
    def total(self) -> int:
        """All resident legs, those without an engine included."""
        return sum(load.requests for load in self._loads.values())
