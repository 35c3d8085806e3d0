"""The filters, in the specified order, and the least-loaded rule.

Order of eligibility: role, availability, exclusions. Candidates have the role already: whoever
keeps the roles hands in no others. The cheapest eligible engine wins, equal ones by `iid`, so
the same inputs always give the same engine.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

import attrs
import msgspec

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence


class Candidate(msgspec.Struct, frozen=True):
    """One engine as placement sees it at one moment; two are made for every engine and request."""

    iid: str
    load: float
    """What the leg would wait behind, in any unit that is the same for all candidates."""
    available: bool = True
    """False while quarantined."""
    doubtful: bool = False
    """Its last legs failed: take another one if there is one."""
    seats: float = float("inf")
    """Free places for this phase."""


class Why(StrEnum):
    """What settled a choice."""

    ONLY = "only"
    LEAST_LOADED = "least_loaded"
    TIE_BY_IID = "tie_by_iid"
    LAST_RESORT = "last_resort"
    """Every eligible engine was doubtful."""


@attrs.frozen
class Choice:
    """The engine that takes the leg, why, and which one came second."""

    iid: str
    why: Why
    runner_up: str | None = None


def eligible(
    candidates: Sequence[Candidate], *, exclude: Collection[str] = ()
) -> Sequence[Candidate]:
    """Candidates that may take the leg, whether or not they have a free seat.

    Availability and exclusions give way, in that order of reluctance, rather than leave
    nothing: quarantine and a bad experience with this very request are soft evidence, and soft
    evidence must not turn into a blackout.
    """
    available = [c for c in candidates if c.available] or candidates
    return [c for c in available if c.iid not in exclude] or available


def choose(pool: Sequence[Candidate]) -> Choice | None:
    """Pick from eligible candidates; None if none of them has a free seat.

    Trusted engines come first. If all that have seats are doubtful while a trusted one is
    merely full, the answer is None as well: waiting for the trusted one beats a likely failure.
    """
    trusted = [c for c in pool if not c.doubtful]
    free = [c for c in trusted or pool if c.seats > 0]
    if not free:
        return None
    if len(free) == 1:
        return Choice(free[0].iid, Why.ONLY if trusted else Why.LAST_RESORT)
    best, second = sorted(free, key=lambda c: (c.load, c.iid))[:2]
    if not trusted:
        why = Why.LAST_RESORT
    elif second.load == best.load:
        why = Why.TIE_BY_IID
    else:
        why = Why.LEAST_LOADED
    return Choice(best.iid, why, second.iid)
