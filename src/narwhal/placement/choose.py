"""The filters, in the specified order, and the least-cost rule.

Order of eligibility: role, availability, exclusions, projected compliance with the SLO.
Candidates have the role already: whoever keeps the roles hands in no others. The cheapest
eligible engine wins, equal ones by `iid`, so the same inputs always give the same engine.
"""

from __future__ import annotations

from enum import StrEnum
from operator import attrgetter
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence


_COST_AND_NAME = attrgetter("cost", "iid")


class Candidate(msgspec.Struct, frozen=True):
    """One engine as placement sees it at one moment; two are made for every engine and request."""

    iid: str
    cost: float
    """What the leg would cost there: seconds, or whatever is the same for all candidates."""
    available: bool = True
    """False while quarantined."""
    doubtful: bool = False
    """Its last legs failed: take another one if there is one."""
    seats: float = float("inf")
    """Free places for this phase."""
    meets: bool = True
    """Whether the leg is projected to meet its target there."""


class Why(StrEnum):
    """What settled a choice."""

    ONLY = "only"
    LEAST_COST = "least_cost"
    TIE_BY_IID = "tie_by_iid"
    LAST_RESORT = "last_resort"
    """Every eligible engine was doubtful."""
    UNSERVED = "unserved"
    """No eligible engine is projected to meet the target; this one misses it by least."""


class Choice(msgspec.Struct, frozen=True):
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
    serving = [c for c in free if c.meets]
    best, *others = sorted(serving or free, key=_COST_AND_NAME)
    return Choice(best.iid, _why(best, others, trusted=bool(trusted)), _first(others))


def _why(best: Candidate, others: Sequence[Candidate], *, trusted: bool) -> Why:
    if not best.meets:
        return Why.UNSERVED
    if not trusted:
        return Why.LAST_RESORT
    if not others:
        return Why.ONLY
    return Why.TIE_BY_IID if others[0].cost == best.cost else Why.LEAST_COST


def _first(others: Sequence[Candidate]) -> str | None:
    return others[0].iid if others else None
