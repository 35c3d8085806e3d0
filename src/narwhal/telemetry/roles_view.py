"""Role control as metrics and the state document show it."""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING

import attrs

from narwhal.model import Role
from narwhal.telemetry.kinds import Horizon

if TYPE_CHECKING:
    from collections.abc import Mapping

    from narwhal.roles import Decision, Estimate, EvidenceState, Flip, Projection, Split
    from narwhal.telemetry.live import Readings

# A ratio without bound, where a pool is empty, has no JSON.
_MOST = 1e9


@attrs.frozen(kw_only=True)
class RolesView:
    """What there is to say of role control now; clock times are the router's own."""

    now: float
    advisory: bool
    preset: str
    decision: Decision | None
    """The last evaluation."""
    proposal: Decision | None
    """The last that proposed another split."""
    evidence: EvidenceState
    short: Estimate
    long: Estimate
    flips: tuple[Flip, ...]
    """Oldest first."""
    corrections: Mapping[str, float]
    breaches: tuple[str, ...] = ()
    """Floors that are not kept, a sentence each."""


def roles_readings(view: RolesView) -> Readings:
    """The gauges of role control."""
    readings: Readings = {
        "evidence_seconds": {(): view.evidence.elapsed_s},
        "evidence_closed": {(): float(view.evidence.closed)},
        "demand_arrivals": {},
        "demand_prefill_ratio": {},
        "demand_output_tokens_per_second": {},
    }
    for horizon, estimate in ((Horizon.SHORT, view.short), (Horizon.LONG, view.long)):
        readings["demand_arrivals"][horizon,] = estimate.arrivals
        readings["demand_prefill_ratio"][horizon,] = estimate.prefill
        readings["demand_output_tokens_per_second"][horizon,] = estimate.tokens
    if (last := view.decision) is not None:
        readings["pool_engines"] = _by_role(last.split)
        readings["pool_load_ratio"] = {
            (Role.PREFILL,): _finite(last.prefill_load),
            (Role.DECODE,): _finite(last.decode_load),
        }
        readings["projected_ratio"] = _ratios(last.now)
        readings["proposed_ratio"] = _ratios(last.then)
    if view.proposal is not None and view.proposal.proposed is not None:
        readings["proposed_engines"] = _by_role(view.proposal.proposed)
    return readings


def _by_role(split: Split) -> dict[tuple[str, ...], float]:
    return {(role,): split.of(role) for role in Role}


def _ratios(projection: Projection | None) -> dict[tuple[str, ...], float]:
    if projection is None:
        return {}
    return {(role,): _finite(projection.of(role)) for role in Role}


def _finite(value: float | None) -> float:
    return 0.0 if value is None else min(value, _MOST)


def roles_document(view: RolesView) -> dict[str, object]:
    """The part `roles` of the state document."""
    evidence = view.evidence
    return {
        "preset": view.preset,
        "advisory": view.advisory,
        "floor_breaches": list(view.breaches),
        "decision": None if view.decision is None else _decision(view.decision, view.now),
        "proposal": None if view.proposal is None else _decision(view.proposal, view.now),
        "evidence": {
            "elapsed_s": _round(evidence.elapsed_s),
            "arrivals": evidence.arrivals,
            "closed": evidence.closed,
            "last_risk": evidence.last_risk,
        },
        "demand": {"short": _estimate(view.short), "long": _estimate(view.long)},
        "corrections": {iid: _round(factor) for iid, factor in view.corrections.items()},
        "flips": [
            {
                "ago_s": _round(view.now - flip.at),
                "iid": flip.iid,
                "to": flip.to,
                "rule": flip.rule,
                "split": str(flip.split),
            }
            for flip in reversed(view.flips)
        ],
    }


def _decision(decision: Decision, now: float) -> dict[str, object]:
    return {
        "ago_s": _round(now - decision.at),
        "verdict": decision.verdict,
        "rule": decision.rule,
        "gate": decision.gate,
        "engine": decision.iid,
        "to": decision.to,
        "split": str(decision.split),
        "proposed": None if decision.proposed is None else str(decision.proposed),
        "confirmations": decision.confirmations,
        "needed": decision.needed,
        "loads": {
            "prefill": _round(decision.prefill_load),
            "decode": _round(decision.decode_load),
        },
        "ratios": {"now": _projection(decision.now), "then": _projection(decision.then)},
        "reason": decision.reason,
    }


def _projection(projection: Projection | None) -> dict[str, object] | None:
    if projection is None:
        return None
    return {
        "split": str(projection.split),
        "prefill": _round(projection.prefill),
        "decode": _round(projection.decode),
    }


def _estimate(estimate: Estimate) -> dict[str, object]:
    fields = {key: _round(value) for key, value in attrs.asdict(estimate).items()}
    return {**fields, "complete": estimate.complete}


def _round(value: float | None) -> float | None:
    if value is None or not isfinite(value):
        return None
    return value if isinstance(value, int) else round(value, 6)
