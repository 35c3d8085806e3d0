"""What has to be known before decode gives an engine away (specification, section 7.6)."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from narwhal.config.control import Reactive
    from narwhal.roles.demand import Estimate


class Risk(StrEnum):
    """What makes a router collect its evidence anew."""

    FIRST_TOKEN = "first_token"
    """A decode engine was late with a first token: it may have too much to do already."""
    TOWARD_DECODE = "toward_decode"
    """An engine was just moved to decode, for a reason."""


@attrs.frozen(kw_only=True)
class EvidenceState:
    """The window at one moment."""

    elapsed_s: float
    arrivals: int
    closed: bool
    """Whether decode may give an engine away, as far as this goes."""
    last_risk: Risk | None = None


class Evidence:
    """The window of arrival evidence: open at first, and again after every risk.

    It closes once `evidence_span_s` has passed with `evidence_min_arrivals` arrivals, or after
    `evidence_max_span_s` however few there were.
    """

    def __init__(self, settings: Reactive) -> None:
        self._settings = settings
        self._begun: float | None = None
        self._arrivals = 0
        self._risk: Risk | None = None

    @property
    def last_risk(self) -> Risk | None:
        """What it was last reset by."""
        return self._risk

    @property
    def risk_at(self) -> float | None:
        """When that was; the time that `reset` was given."""
        return None if self._risk is None else self._begun

    def arrived(self, now: float) -> None:
        """A request came."""
        self._begin(now)
        self._arrivals += 1

    def reset(self, risk: Risk, now: float) -> None:
        """Begin again."""
        self._begun, self._arrivals, self._risk = now, 0, risk

    def restore(self, elapsed_s: float, now: float, risk: Risk | None) -> None:
        """Go on with a window that an earlier router began so long ago."""
        self._begun, self._risk = now - elapsed_s, risk

    def state(self, now: float) -> EvidenceState:
        """How it stands."""
        self._begin(now)
        assert self._begun is not None  # noqa: S101 - it has just begun
        elapsed, settings = now - self._begun, self._settings
        enough = self._arrivals >= settings.evidence_min_arrivals
        closed = elapsed >= settings.evidence_max_span_s or (
            enough and elapsed >= settings.evidence_span_s
        )
        return EvidenceState(
            elapsed_s=elapsed, arrivals=self._arrivals, closed=closed, last_risk=self._risk
        )

    def _begin(self, now: float) -> None:
        if self._begun is None:
            self._begun = now


def rising(short: Estimate, long: Estimate, settings: Reactive) -> bool:
    """Whether decode demand rises: the short horizon lies above the long one by the tolerance."""
    if short.arrivals < settings.evidence_min_arrivals:
        return False
    return short.tokens > long.tokens * (1.0 + settings.demand_rise_tolerance)
