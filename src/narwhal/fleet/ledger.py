"""The work that the router has put on each engine and not taken off again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from narwhal.model import Phase

if TYPE_CHECKING:
    from collections.abc import Iterable


@attrs.define(eq=False)
class Reservation:
    """One leg's claim on one engine. It is released exactly once, whatever ends the leg."""

    ledger: Ledger
    iid: str
    phase: Phase
    tokens: int
    released: bool = False

    def release(self) -> None:
        """Take the claim back. A second call is a defect of the caller and raises."""
        if self.released:
            raise AssertionError(f"{self.phase} reservation on {self.iid} released twice")
        self.released = True
        self.ledger.remove(self)


class Ledger:
    """Resident legs and their prompt tokens, by engine and phase.

    Guarantee: what it says of an engine is the sum over the reservations that are out, so it
    reads zero when no request is being served.
    """

    PHASES = (Phase.PREFILL, Phase.DECODE)

    def __init__(self, iids: Iterable[str]) -> None:
        self.iids = tuple(iids)
        self._residents = {(iid, phase): 0 for iid in self.iids for phase in self.PHASES}
        self._tokens = dict.fromkeys(self._residents, 0)

    def reserve(self, iid: str, phase: Phase, tokens: int) -> Reservation:
        """Claim a place on `iid` for a leg over a prompt of `tokens` tokens."""
        self._residents[iid, phase] += 1
        self._tokens[iid, phase] += tokens
        return Reservation(self, iid, phase, tokens)

    def remove(self, reservation: Reservation) -> None:
        """For `Reservation.release`."""
        key = (reservation.iid, reservation.phase)
        self._residents[key] -= 1
        self._tokens[key] -= reservation.tokens

    def residents(self, iid: str, phase: Phase) -> int:
        """Legs of `phase` that are on `iid` now."""
        return self._residents[iid, phase]

    def tokens(self, iid: str, phase: Phase) -> int:
        """Prompt tokens of those legs."""
        return self._tokens[iid, phase]

    @property
    def total(self) -> int:
        """All resident legs."""
        return sum(self._residents.values())
