"""The `/narwhal/state` document as types: what it is made of, and what its schema is made from.

Their docstrings and the order of their fields are seen by whoever reads the document or its schema
in `/openapi.json`. Keys may be added; the meaning of one does not change.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from narwhal.admission import Cause
from narwhal.fleet import EngineState
from narwhal.model import FailureClass, Limit, Phase, Role, Route, Terminal, TtftScope
from narwhal.roles import Gate, Risk, Rule, Verdict
from narwhal.telemetry.kinds import Pool

Count = Annotated[int, Meta(ge=0)]
Seconds = Annotated[float, Meta(description="Seconds.")]
UnixTime = Annotated[float, Meta(description="Seconds since 1970.")]
Ratio = Annotated[float, Meta(description="Over the target, which is 1.")]
Split = Annotated[str, Meta(description="Engines by role, such as 3P5D.")]


class Targets(msgspec.Struct, frozen=True, kw_only=True):
    """The targets of the fleet file."""

    ttft_s: Seconds
    ttft_scope: TtftScope
    tpot_s: Seconds


class RequestCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Completion requests: those that are there now, and those that ended, since the start."""

    received: Count
    in_flight: Count
    waiting: Annotated[Count, Meta(description="To be admitted.")]
    retained: Annotated[Count, Meta(description="Held in memory.")]
    terminals: dict[Terminal, Count]


class OfferCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Requests that were put to admission, by whether their size was known."""

    sized: Count
    unsized: Count


class ProjectionCheck(msgspec.Struct, frozen=True, kw_only=True):
    """How good projections of TTFT are."""

    scope: TtftScope
    requests: Annotated[Count, Meta(description="Those that were compared.")]
    mean_ratio: Annotated[float | None, Meta(description="Actual over projected.")]


class AdmissionCounts(msgspec.Struct, frozen=True, kw_only=True):
    """What admission was offered, and what it made of it."""

    offers: OfferCounts
    refusals: Annotated[dict[Cause, Count], Meta(description="Of predictive admission.")]
    rejections: Annotated[
        dict[str, Count], Meta(description="All that were turned away, by error code.")
    ]
    unserved_placements: Annotated[
        dict[Phase, Count], Meta(description="Legs where they are projected to miss a target.")
    ]
    ttft_projection: ProjectionCheck


class AttemptCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Attempts at requests."""

    total: Count
    retries: Count
    retry_credits: Annotated[float, Meta(description="Left.")]


class TokenCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens of prompts that were prefilled, and tokens generated."""

    prompt: Count
    completion: Count


class KvCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Handoffs that no decode fetched."""

    released: Count
    orphaned: Count
    orphan_tokens: Annotated[Count, Meta(description="KV tokens that orphans hold now.")]


class JournalCounts(msgspec.Struct, frozen=True, kw_only=True):
    """The journal."""

    dropped: Annotated[Count, Meta(description="Rows that were lost.")]


class SplitRatios(msgspec.Struct, frozen=True, kw_only=True):
    """TTFT (prefill) and TPOT (decode) over their targets, as a split is projected."""

    split: Split
    prefill: Ratio | None
    decode: Ratio | None


class RatioPair(msgspec.Struct, frozen=True, kw_only=True):
    """The present split, and the one that it was compared with."""

    now: SplitRatios | None
    then: SplitRatios | None


class Loads(msgspec.Struct, frozen=True, kw_only=True):
    """The loads of the engines of each role."""

    prefill: Ratio | None
    decode: Ratio | None


class RoleDecision(msgspec.Struct, frozen=True, kw_only=True):
    """One evaluation of role control."""

    ago_s: Seconds
    verdict: Verdict
    rule: Rule
    gate: Gate
    engine: Annotated[str | None, Meta(description="That moves, or would.")]
    to: Role | None
    split: Split
    proposed: Split | None
    confirmations: Count
    needed: Count
    loads: Loads
    ratios: RatioPair
    reason: Annotated[str, Meta(description="In words.")]


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """The window of arrival evidence."""

    elapsed_s: Seconds
    arrivals: Count
    closed: Annotated[bool, Meta(description="Whether decode may give an engine away.")]
    last_risk: Risk | None


class Demand(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked for within a horizon, per second where nothing else is said."""

    span_s: Annotated[float | None, Meta(description="How much of the horizon there was yet.")]
    arrivals: Annotated[Count, Meta(description="In that span.")]
    unsized: Annotated[Count, Meta(description="Arrivals of unknown size.")]
    overflow: Annotated[Count, Meta(description="Arrivals beyond what was measured.")]
    prefill: Annotated[float | None, Meta(description="Prefill seconds.")]
    service_s: Annotated[float | None, Meta(description="Mean seconds of a prefill.")]
    tokens: Annotated[float | None, Meta(description="Output tokens.")]
    context: Annotated[float | None, Meta(description="KV tokens of a decoding request.")]
    complete: Annotated[bool, Meta(description="Whether all sizes are known and measured.")]


class Horizons(msgspec.Struct, frozen=True, kw_only=True):
    """Demand over the short and the long horizon."""

    short: Demand
    long: Demand


class Move(msgspec.Struct, frozen=True, kw_only=True):
    """An engine that changed its role."""

    ago_s: Seconds
    iid: str
    to: Role
    rule: Rule
    split: Annotated[str, Meta(description="After it.")]


class Roles(msgspec.Struct, frozen=True, kw_only=True):
    """Role control."""

    preset: str
    advisory: Annotated[bool, Meta(description="Whether it only says what it would do.")]
    floor_breaches: list[str]
    decision: Annotated[RoleDecision | None, Meta(description="The last.")]
    proposal: Annotated[
        RoleDecision | None, Meta(description="The last that proposed another split.")
    ]
    evidence: Evidence
    demand: Horizons
    corrections: Annotated[
        dict[str, float | None], Meta(description="Of decode profiles, by engine.")
    ]
    flips: Annotated[list[Move], Meta(description="The newest first.")]


class Drain(msgspec.Struct, frozen=True, kw_only=True):
    """A drain that an operator asked for."""

    since_s: Seconds
    deadline_s: Annotated[
        float | None, Meta(description="Seconds left, below zero when it has passed.")
    ]
    overdue: bool
    process_start_s: Annotated[
        float | None, Meta(description="Of the process that was drained: seconds since 1970.")
    ]


class PoolConnections(msgspec.Struct, frozen=True, kw_only=True):
    """One connection pool of an engine, and requests that wait for one of its connections."""

    idle: Count
    busy: Count
    waiting: Count


class Engine(msgspec.Struct, frozen=True, kw_only=True):
    """One engine, as the router sees it."""

    iid: str
    role: Role
    pin: bool
    state: EngineState
    state_s: Annotated[float | None, Meta(description="Seconds in that state; null: always.")]
    reason: Annotated[str, Meta(description="Why it is in that state.")]
    streaks: Annotated[dict[FailureClass, Count], Meta(description="Failures in a row.")]
    version: Annotated[str | None, Meta(description="Of the engine's process.")]
    process_start_s: Annotated[float | None, Meta(description="Seconds since 1970.")]
    drain: Drain | None
    suspicion: Annotated[str, Meta(description="Which legs it is rather not given, if any.")]
    seats: Annotated[dict[Phase, Count], Meta(description="Taken, by leg.")]
    seat_limit: Annotated[dict[Phase, Count], Meta(description="None, or 0: no limit.")]
    residents: Annotated[dict[Phase, Count], Meta(description="Requests, by leg.")]
    reserved_tokens: Annotated[Count, Meta(description="KV tokens that they will hold.")]
    backlog_s: Annotated[float, Meta(description="Predicted seconds of prefill not done yet.")]
    pace: Annotated[
        dict[Phase, float], Meta(description="What work takes over what the profile says.")
    ]
    orphan_tokens: Annotated[Count, Meta(description="KV tokens that nobody will fetch.")]
    pools: dict[Pool, PoolConnections]


class RecentRequest(msgspec.Struct, frozen=True, kw_only=True):
    """How a request ended."""

    ts: UnixTime
    request_id: str
    route: Route
    terminal: Terminal
    status: Annotated[int | None, Meta(description="That the client was sent.")]
    code: str | None
    limit: Annotated[Limit | None, Meta(description="That ended it.")]
    attempts: Count
    prefill: Annotated[str | None, Meta(description="The engine of the last attempt.")]
    decode: Annotated[str | None, Meta(description="The engine of the last attempt.")]
    request_s: Seconds
    queue_s: Seconds | None
    prefill_ttft_s: Seconds | None
    first_token_ttft_s: Seconds | None
    tpot_s: Seconds | None


class State(msgspec.Struct, frozen=True, kw_only=True):
    """The router at one moment."""

    version: str
    model: str
    slo: Targets
    uptime_s: Seconds
    ready: bool
    not_ready: Annotated[list[str], Meta(description="Why it is not, a sentence each.")]
    draining: bool
    alerts: Annotated[list[str], Meta(description="What to look at, the gravest first.")]
    requests: RequestCounts
    admission: AdmissionCounts
    limits_fired: dict[Limit, Count]
    attempts: AttemptCounts
    tokens: TokenCounts
    kv: KvCounts
    journal: JournalCounts
    pools: Annotated[dict[Phase, list[str]], Meta(description="Engines that take legs.")]
    roles: Roles | None
    engines: list[Engine]
    recent: Annotated[list[RecentRequest], Meta(description="The newest first.")]
