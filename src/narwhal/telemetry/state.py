"""The `/narwhal/state` document: what a person asks of a router that behaves oddly, as JSON.

Pure: it is made from plain values, the same that the metrics show.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from narwhal.telemetry.alerts import alerts
from narwhal.telemetry.roles_view import roles_document
from narwhal.telemetry.state_types import (
    AdmissionCounts,
    AttemptCounts,
    Drain,
    Engine,
    JournalCounts,
    KvCounts,
    OfferCounts,
    PoolConnections,
    ProjectionCheck,
    RecentRequest,
    RequestCounts,
    State,
    TokenCounts,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from narwhal.telemetry.live import DrainView, EngineView, LiveState
    from narwhal.telemetry.rows import RequestRow
    from narwhal.telemetry.state_types import Targets
    from narwhal.telemetry.totals import AdmissionTotals, Totals


def state_document(
    *,
    version: str,
    model: str,
    slo: Targets,
    uptime_s: float,
    live: LiveState,
    totals: Totals,
    recent: Iterable[RequestRow],
) -> State:
    """Return the document; `recent` is given newest first and shown so."""
    return State(
        version=version,
        model=model,
        slo=slo,
        uptime_s=round(uptime_s, 3),
        ready=live.ready,
        not_ready=list(live.not_ready),
        draining=live.draining,
        alerts=alerts(live, totals),
        requests=RequestCounts(
            received=totals.received,
            in_flight=totals.in_flight,
            waiting=live.waiting,
            retained=live.retained,
            terminals=dict(totals.terminals),
        ),
        admission=_admission(totals.admission),
        limits_fired=dict(totals.limits_fired),
        attempts=AttemptCounts(
            total=totals.attempts,
            retries=totals.retries,
            retry_credits=round(live.retry_credits, 6),
        ),
        tokens=TokenCounts(prompt=totals.prompt_tokens, completion=totals.completion_tokens),
        kv=KvCounts(
            released=totals.kv_released,
            orphaned=totals.kv_orphaned,
            orphan_tokens=sum(engine.orphan_tokens for engine in live.engines),
        ),
        journal=JournalCounts(dropped=totals.journal_dropped),
        pools={phase: list(iids) for phase, iids in live.takers.items()},
        roles=None if live.roles is None else roles_document(live.roles),
        engines=[_engine(engine) for engine in live.engines],
        recent=[_outcome(row) for row in recent],
    )


def encode_state(document: State) -> bytes:
    """Return the document as indented JSON: it is read by people as often as by programs."""
    return msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n"


def _admission(totals: AdmissionTotals) -> AdmissionCounts:
    ratio = totals.mean_ratio
    return AdmissionCounts(
        offers=OfferCounts(sized=totals.sized, unsized=totals.unsized),
        refusals=dict(totals.refusals),
        rejections=dict(totals.rejections),
        unserved_placements=dict(totals.unserved),
        ttft_projection=ProjectionCheck(
            scope=totals.ttft_scope,
            requests=totals.projected,
            mean_ratio=None if ratio is None else round(ratio, 6),
        ),
    )


def _engine(engine: EngineView) -> Engine:
    return Engine(
        iid=engine.iid,
        role=engine.role,
        pin=engine.pin,
        state=engine.state,
        state_s=None if engine.state_s is None else round(engine.state_s, 3),
        reason=engine.reason,
        streaks=dict(engine.streaks),
        version=engine.version,
        process_start_s=engine.process_start_s,
        drain=None if engine.drain is None else drain_document(engine.drain),
        suspicion=engine.suspicion,
        seats=dict(engine.seats),
        seat_limit=dict(engine.seat_limit),
        residents=dict(engine.residents),
        reserved_tokens=engine.reserved_tokens,
        backlog_s=round(engine.backlog_s, 6),
        pace={phase: round(ratio, 6) for phase, ratio in engine.pace.items()},
        orphan_tokens=engine.orphan_tokens,
        pools={
            pool: PoolConnections(idle=view.idle, busy=view.busy, waiting=view.waiting)
            for pool, view in engine.pools.items()
        },
    )


def drain_document(drain: DrainView) -> Drain:
    """A drain as the documents show it."""
    left = drain.deadline_s
    return Drain(
        since_s=round(drain.since_s, 3),
        deadline_s=None if left is None else round(left, 3),
        overdue=drain.overdue,
        process_start_s=drain.process_start_s,
    )


def _outcome(row: RequestRow) -> RecentRequest:
    last = row.attempts[-1] if row.attempts else None
    return RecentRequest(
        ts=round(row.ts, 3),
        request_id=row.request_id,
        route=row.route,
        terminal=row.terminal,
        status=row.status,
        code=row.code,
        limit=row.limit,
        attempts=len(row.attempts),
        prefill=None if last is None else last.prefill,
        decode=None if last is None else last.decode,
        request_s=round(row.request_s, 6),
        queue_s=_round(row.queue_wait_s),
        prefill_ttft_s=_round(row.prefill_ttft_s),
        first_token_ttft_s=_round(row.first_token_ttft_s),
        tpot_s=_round(row.tpot_s),
    )


def _round(value: float | None) -> float | None:
    return None if value is None else round(value, 6)
