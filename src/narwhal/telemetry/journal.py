"""The journal: one JSON line for each original request, behind a bounded buffer.

Serving code appends and never waits. A writer, elsewhere, moves rows to the file: `drain`,
`encode`, `JournalFile.write` (which blocks on the disk, so it belongs in a thread), then
`note_lost` for the rows that did not get there. Whatever is lost is counted.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import msgspec

from narwhal.telemetry.rows import SCHEMA, EngineRow, RequestRow, RoleRow, RouterRow, StartRow

if TYPE_CHECKING:
    from collections.abc import Sequence

    from narwhal.telemetry.rows import AttemptRow, Row, StopRow

BUFFERED_ROWS = 8192
"""About four seconds of requests at the 2,000 a second that one core was measured to route: room
for a stalled disk, at 1 to 2 KB a row in memory."""

_encoder = msgspec.json.Encoder()


class Journal:
    """Rows on their way to the file, oldest first; full, it drops what is newest and counts it."""

    def __init__(self, *, capacity: int = BUFFERED_ROWS) -> None:
        if capacity < 1:
            msg = f"a journal's capacity is at least 1 row, not {capacity}"
            raise ValueError(msg)
        self._capacity = capacity
        self._rows: deque[Row] = deque()
        self._dropped = 0

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def dropped(self) -> int:
        """Rows lost since the start, to a full buffer or a failed write."""
        return self._dropped

    def append_nowait(self, row: Row) -> None:
        """Buffer a row. Never blocks or fails: with the buffer full, the row is counted lost."""
        if len(self._rows) >= self._capacity:
            self._dropped += 1
            return
        self._rows.append(row)

    def drain(self, max_rows: int) -> list[Row]:
        """Take at most `max_rows` of the oldest rows out of the buffer."""
        return [self._rows.popleft() for _ in range(min(max_rows, len(self._rows)))]

    def note_lost(self, rows: int) -> None:
        """Count rows that were drained and then not written."""
        self._dropped += rows


def encode(rows: Sequence[Row]) -> bytes:
    """Return the rows as JSON Lines: each one object on one line, ending in a newline."""
    return _encoder.encode_lines([_document(row) for row in rows])


def _document(row: Row) -> dict[str, object]:
    if isinstance(row, RequestRow):
        return _request(row)
    if isinstance(row, StartRow):
        return _start(row)
    if isinstance(row, EngineRow):
        return _engine(row)
    if isinstance(row, RoleRow):
        return _role(row)
    if isinstance(row, RouterRow):
        return _router(row)
    return _stop(row)


def _request(row: RequestRow) -> dict[str, object]:
    return {
        "event": "request",
        "ts": _seconds(row.ts),
        "arrival": _seconds(row.arrival),
        "request_id": row.request_id,
        "client_request_id": row.client_request_id,
        "route": row.route,
        "stream": row.stream,
        "terminal": row.terminal,
        "status": row.status,
        "code": row.code,
        "limit": row.limit,
        "limits_fired": row.limits_fired,
        "prompt_tokens": row.prompt_tokens,
        "prompt_exact": row.prompt_exact,
        "tokenize_fallback": row.tokenize_fallback,
        "max_tokens": row.max_tokens,
        "completion_tokens": row.completion_tokens,
        "request_s": _seconds(row.request_s),
        "ttft_s": _seconds(row.ttft_s),
        "prefill_ttft_s": _seconds(row.prefill_ttft_s),
        "first_token_ttft_s": _seconds(row.first_token_ttft_s),
        "projected_ttft_s": _seconds(row.projected_ttft_s),
        "tpot_s": _seconds(row.tpot_s),
        "projected_tpot_s": _seconds(row.projected_tpot_s),
        "spent_s": {phase: _seconds(spent) for phase, spent in row.spent.items()},
        "attempts": [_attempt(attempt) for attempt in row.attempts],
    }


def _attempt(attempt: AttemptRow) -> dict[str, object]:
    return {
        "n": attempt.n,
        "prefill": attempt.prefill,
        "prefill_why": attempt.prefill_why,
        "prefill_runner_up": attempt.prefill_runner_up,
        "decode": attempt.decode,
        "decode_why": attempt.decode_why,
        "decode_runner_up": attempt.decode_runner_up,
        "result": attempt.result,
        "code": attempt.code,
        "phase": attempt.phase,
        "engine": attempt.engine,
        "failure": attempt.failure,
        "limit": attempt.limit,
        "engine_status": attempt.engine_status,
        "prefill_s": _seconds(attempt.prefill_s),
        "handoff_age_s": _seconds(attempt.handoff_age_s),
        "first_token_s": _seconds(attempt.first_token_s),
    }


def _start(row: StartRow) -> dict[str, object]:
    return {
        "event": "rotated" if row.rotated else "start",
        "ts": _seconds(row.ts),
        "schema": SCHEMA,
        "version": row.version,
        "model": row.model,
        "slo": {"ttft_s": row.ttft_s, "ttft_scope": row.ttft_scope, "tpot_s": row.tpot_s},
        "engines": [{"iid": e.iid, "role": e.role, "pin": e.pin} for e in row.engines],
    }


def _engine(row: EngineRow) -> dict[str, object]:
    return {
        "event": "engine",
        "ts": _seconds(row.ts),
        "engine": row.engine,
        "from": row.source,
        "to": row.target,
        "cause": row.cause,
        "reason": row.reason,
    }


def _role(row: RoleRow) -> dict[str, object]:
    return {
        "event": "role",
        "ts": _seconds(row.ts),
        "engine": row.engine,
        "to": row.to,
        "verdict": row.verdict,
        "rule": row.rule,
        "split": str(row.split),
        "proposed": str(row.proposed),
        "reason": row.reason,
    }


def _router(row: RouterRow) -> dict[str, object]:
    return {
        "event": "router",
        "ts": _seconds(row.ts),
        "change": row.change,
        "reason": row.reason,
    }


def _stop(row: StopRow) -> dict[str, object]:
    return {
        "event": "stop",
        "ts": _seconds(row.ts),
        "uptime_s": _seconds(row.uptime_s),
        "terminals": dict(row.terminals),
        "dropped": row.dropped,
    }


def _seconds(value: float | None) -> float | None:
    """Round to whole microseconds, which is finer than any of them is known."""
    return None if value is None else round(value, 6)
