"""Load of each pool now, and what it would be with another split (sections 7.1, 7.5; DESIGN 4.3).

A load or ratio of 1 means that the target is just met.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

import attrs

from narwhal.config.control import ResidentSignal
from narwhal.model import Role

if TYPE_CHECKING:
    from narwhal.profiles import Profile
    from narwhal.roles.correction import Corrections
    from narwhal.roles.demand import Estimate
    from narwhal.roles.snapshot import Snapshot, Split


@attrs.frozen(kw_only=True)
class Targets:
    """What loads are relative to."""

    ttft_s: float
    tpot_s: float
    utilization: float
    """Share of an engine's time that counts as capacity."""
    resident_signal: ResidentSignal


@attrs.frozen(kw_only=True)
class Demand:
    """What projections are made from: the flow, and what is there already."""

    prefill: float
    """Prefill seconds a second."""
    service_s: float
    backlog_s: float
    """Resident and waiting prefill seconds of the fleet."""
    tokens: float
    """Output tokens a second."""
    context: float
    """KV tokens of a decode that is yet to come."""
    decodes: int
    """Resident and pending decodes of the fleet."""
    kv_tokens: float
    correction: float
    """Live over profiled decode interval."""


@attrs.frozen(kw_only=True)
class Projection:
    """One split: what it would make of the demand."""

    split: Split
    prefill: float
    """TTFT over its target."""
    decode: float
    """TPOT over its target."""
    requests: float = 0.0
    """Decodes on an engine."""
    kv_tokens: float = 0.0
    """KV tokens of those."""

    @property
    def worst(self) -> float:
        """The split's score: the worse of the two."""
        return max(self.prefill, self.decode)

    def of(self, role: Role) -> float:
        """The ratio of the pool of a role."""
        return self.prefill if role is Role.PREFILL else self.decode


def prefill_load(snapshot: Snapshot, targets: Targets) -> float:
    """Predicted prefill work of an engine of the pool, over the TTFT target (section 7.1)."""
    work = sum(engine.prefill_s for engine in snapshot.engines) + snapshot.waiting_s
    engines = len(snapshot.pool(Role.PREFILL))
    if not engines:
        return inf if work else 0.0
    return work / engines / targets.ttft_s


def decode_load(
    snapshot: Snapshot, profile: Profile, corrections: Corrections, targets: Targets
) -> float:
    """The observed interval above the idle floor, over what the target leaves above it (7.1).

    The observed interval is that of the mean decode: each engine's profiled interval, corrected
    by what its tokens took of late. An engine that decodes nothing has no interval.
    """
    busy = [engine for engine in snapshot.pool(Role.DECODE) if engine.decodes]
    decodes = sum(engine.decodes for engine in busy)
    if not decodes:
        return 0.0
    interval = floor = 0.0
    for engine in busy:
        share = engine.decodes / decodes * corrections.of(engine.iid)
        interval += share * profile.decode_interval(engine.decodes, engine.kv_tokens)
        floor += share * profile.idle_interval()
    return load_above_floor(interval, floor, targets.tpot_s)


def load_above_floor(interval_s: float, floor_s: float, target_s: float) -> float:
    """The interval above the floor, over the target above it; 0 or more.

    If the floor is no less than the target, the plain ratio of interval to target.
    """
    if floor_s >= target_s:
        return interval_s / target_s
    return max(0.0, (interval_s - floor_s) / (target_s - floor_s))


def demand_of(
    snapshot: Snapshot, prefill: Estimate, decode: Estimate, corrections: Corrections
) -> Demand:
    """What splits are compared by, from one estimate of each phase and what is there already."""
    live = [engine for engine in snapshot.engines if engine.live]
    weights = [(corrections.of(engine.iid), engine.decodes) for engine in live]
    decodes = sum(weight for _, weight in weights)
    if decodes:
        correction = sum(factor * weight for factor, weight in weights) / decodes
    else:
        correction = sum(factor for factor, _ in weights) / max(1, len(weights))
    return Demand(
        prefill=prefill.prefill,
        service_s=prefill.service_s,
        backlog_s=sum(engine.prefill_s for engine in live) + snapshot.waiting_s,
        tokens=decode.tokens,
        context=decode.context,
        decodes=sum(engine.decodes for engine in live) + snapshot.pending,
        kv_tokens=sum(engine.kv_tokens for engine in live) + snapshot.pending_tokens,
        correction=correction or 1.0,
    )


def project(split: Split, demand: Demand, profile: Profile, targets: Targets) -> Projection:
    """What `split` would make of the demand."""
    requests, kv_tokens = _batch(split.decode, demand, profile, targets)
    return Projection(
        split=split,
        prefill=_prefill_ratio(split.prefill, demand, targets),
        decode=_decode_ratio(requests, kv_tokens, demand, profile, targets),
        requests=requests,
        kv_tokens=kv_tokens,
    )


def _prefill_ratio(engines: int, demand: Demand, targets: Targets) -> float:
    """The larger of the time that is asked for over what there is, and of the TTFT of a newcomer.

    The first says whether a queue grows, and by how much; the second what it is already.
    """
    if engines < 1:
        return inf if demand.prefill or demand.backlog_s else 0.0
    used = demand.prefill / (engines * targets.utilization)
    ttft = demand.backlog_s / engines + demand.service_s
    return max(used, ttft / targets.ttft_s)


def _batch(engines: int, demand: Demand, profile: Profile, targets: Targets) -> tuple[float, float]:
    """Decodes and KV tokens on each of so many engines, once the demand has settled.

    By Little's law an engine has `rate * interval` decodes, where the interval depends on how
    many those are: `t0 / (1 - rate (tr + tk context))`, as long as that is within the target.
    Beyond it, admission or clients' patience ends the growth, and what the target would have is
    what counts.
    """
    if engines < 1:
        return (inf, inf) if demand.tokens or demand.decodes else (0.0, 0.0)
    decode, rate = profile.decode, demand.tokens / engines
    t0 = demand.correction * decode.t0
    slope = demand.correction * (decode.tr + decode.tk * demand.context)
    left = 1.0 - rate * slope
    interval = t0 / left if left > 0.0 else inf
    flow = rate * min(interval, max(targets.tpot_s, t0))
    there, held = demand.decodes / engines, demand.kv_tokens / engines
    if targets.resident_signal is ResidentSignal.ADDED:
        return flow + there, flow * demand.context + held
    return max(flow, there), max(flow * demand.context, held)


def _decode_ratio(
    requests: float, kv_tokens: float, demand: Demand, profile: Profile, targets: Targets
) -> float:
    """The corrected interval over its target; beyond what was measured at least by how far."""
    if requests == inf:
        return inf
    interval = demand.correction * profile.decode_interval(max(1.0, requests), kv_tokens)
    ratio = interval / targets.tpot_s
    measured = profile.decode
    for amount, domain in ((requests, measured.requests), (kv_tokens, measured.kv_tokens)):
        if domain is not None and amount > domain.high:
            ratio = max(ratio, amount / domain.high)
    if profile.kv_capacity_tokens is not None and kv_tokens > profile.kv_capacity_tokens:
        ratio = max(ratio, kv_tokens / profile.kv_capacity_tokens)
    return ratio
