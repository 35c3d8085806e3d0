"""The `/narwhal/state` document: what a person asks of a router that behaves oddly, as JSON.

Pure: it is made from plain values, the same that the metrics show.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from narwhal.model import Limit, Terminal
    from narwhal.telemetry.live import EngineView, LiveState
    from narwhal.telemetry.rows import RequestRow


@attrs.frozen(kw_only=True)
class Totals:
    """Counts since the start."""

    received: int
    terminals: Mapping[Terminal, int]
    limits_fired: Mapping[Limit, int]
    attempts: int
    retries: int
    kv_released: int
    kv_orphaned: int
    journal_dropped: int

    @property
    def in_flight(self) -> int:
        """Requests received and not ended."""
        return self.received - sum(self.terminals.values())


def state_document(
    *,
    version: str,
    model: str,
    uptime_s: float,
    live: LiveState,
    totals: Totals,
    recent: Iterable[RequestRow],
) -> dict[str, object]:
    """Return the document; `recent` is given newest first and shown so."""
    return {
        "version": version,
        "model": model,
        "uptime_s": round(uptime_s, 3),
        "ready": live.ready,
        "not_ready": live.not_ready,
        "draining": live.draining,
        "requests": {
            "received": totals.received,
            "in_flight": totals.in_flight,
            "waiting": live.waiting,
            "retained": live.retained,
            "terminals": dict(totals.terminals),
        },
        "limits_fired": dict(totals.limits_fired),
        "attempts": {
            "total": totals.attempts,
            "retries": totals.retries,
            "retry_credits": round(live.retry_credits, 6),
        },
        "kv": {
            "released": totals.kv_released,
            "orphaned": totals.kv_orphaned,
            "orphan_tokens": sum(engine.orphan_tokens for engine in live.engines),
        },
        "journal": {"dropped": totals.journal_dropped},
        "engines": [_engine(engine) for engine in live.engines],
        "recent": [_outcome(row) for row in recent],
    }


def encode_state(document: Mapping[str, object]) -> bytes:
    """Return the document as indented JSON: it is read by people as often as by programs."""
    return msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n"


def _engine(engine: EngineView) -> dict[str, object]:
    return {
        "iid": engine.iid,
        "role": engine.role,
        "pin": engine.pin,
        "suspicion": engine.suspicion,
        "seats": dict(engine.seats),
        "seat_limit": dict(engine.seat_limit),
        "residents": dict(engine.residents),
        "reserved_tokens": engine.reserved_tokens,
        "backlog_s": round(engine.backlog_s, 6),
        "orphan_tokens": engine.orphan_tokens,
        "pools": {
            pool: {"idle": view.idle, "busy": view.busy, "waiting": view.waiting}
            for pool, view in engine.pools.items()
        },
    }


def _outcome(row: RequestRow) -> dict[str, object]:
    return {
        "ts": round(row.ts, 3),
        "request_id": row.request_id,
        "route": row.route,
        "terminal": row.terminal,
        "status": row.status,
        "code": row.code,
        "limit": row.limit,
        "attempts": len(row.attempts),
        "request_s": round(row.request_s, 6),
    }
