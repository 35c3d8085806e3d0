"""Role control as metrics and the state document show it."""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING

import attrs

from narwhal.model import Role
from narwhal.telemetry.kinds import Horizon
from narwhal.telemetry.state_types import (
    Demand,
    Evidence,
    Horizons,
    Loads,
    Move,
    RatioPair,
    RoleDecision,
    Roles,
    SplitRatios,
)

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


def roles_document(view: RolesView) -> Roles:
    """The part `roles` of the state document."""
    evidence = view.evidence
    return Roles(
        preset=view.preset,
        advisory=view.advisory,
        floor_breaches=list(view.breaches),
        decision=None if view.decision is None else _decision(view.decision, view.now),
        proposal=None if view.proposal is None else _decision(view.proposal, view.now),
        evidence=Evidence(
            elapsed_s=round(evidence.elapsed_s, 6),
            arrivals=evidence.arrivals,
            closed=evidence.closed,
            last_risk=evidence.last_risk,
        ),
        demand=Horizons(short=_demand(view.short), long=_demand(view.long)),
        corrections={iid: _round(factor) for iid, factor in view.corrections.items()},
        flips=[
            Move(
                ago_s=round(view.now - flip.at, 6),
                iid=flip.iid,
                to=flip.to,
                rule=flip.rule,
                split=str(flip.split),
            )
            for flip in reversed(view.flips)
        ],
    )


def _decision(decision: Decision, now: float) -> RoleDecision:
    return RoleDecision(
        ago_s=round(now - decision.at, 6),
        verdict=decision.verdict,
        rule=decision.rule,
        gate=decision.gate,
        engine=decision.iid,
        to=decision.to,
        split=str(decision.split),
        proposed=None if decision.proposed is None else str(decision.proposed),
        confirmations=decision.confirmations,
        needed=decision.needed,
        loads=Loads(prefill=_round(decision.prefill_load), decode=_round(decision.decode_load)),
        ratios=RatioPair(now=_projection(decision.now), then=_projection(decision.then)),
        reason=decision.reason,
    )


def _projection(projection: Projection | None) -> SplitRatios | None:
    if projection is None:
        return None
    return SplitRatios(
        split=str(projection.split),
        prefill=_round(projection.prefill),
        decode=_round(projection.decode),
    )


def _demand(estimate: Estimate) -> Demand:
    return Demand(
        span_s=_round(estimate.span_s),
        arrivals=estimate.arrivals,
        unsized=estimate.unsized,
        overflow=estimate.overflow,
        prefill=_round(estimate.prefill),
        service_s=_round(estimate.service_s),
        tokens=_round(estimate.tokens),
        context=_round(estimate.context),
        complete=estimate.complete,
    )


def _round(value: float | None) -> float | None:
    """What is unknown, or without bound, has no JSON."""
    return None if value is None or not isfinite(value) else round(value, 6)
