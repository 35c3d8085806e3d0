"""Lines of journals for the tests of the report."""

from __future__ import annotations

import json
from typing import Any

from narwhal.telemetry.report import Reading, Wanted

START: dict[str, Any] = {
    "event": "start",
    "ts": 1000.0,
    "schema": 1,
    "version": "9.9",
    "model": "tiny",
    "slo": {"ttft_s": 2.0, "ttft_scope": "prefill", "tpot_s": 0.1},
    "engines": [
        {"iid": iid, "role": role, "pin": False}
        for iid, role in (("p0", "prefill"), ("d0", "decode"))
    ],
}


def request(at: float = 1000.0, *, took: float = 1.0, **changes: Any) -> dict[str, Any]:
    """A request that came at `at`, completed, and was in time."""
    return {
        "event": "request",
        "ts": at + took,
        "request_s": took,
        "terminal": "completed",
        "route": "chat",
        "stream": True,
        "code": None,
        "prompt_tokens": 100,
        "completion_tokens": 10,
        "ttft_s": 0.6,
        "prefill_ttft_s": 0.5,
        "first_token_ttft_s": 0.55,
        "tpot_s": 0.05,
        "spent_s": {"prefill": 0.5, "decode": took - 0.5},
        "attempts": [attempt()],
    } | changes


def refused(at: float = 1000.0, **changes: Any) -> dict[str, Any]:
    nothing = dict.fromkeys(("ttft_s", "prefill_ttft_s", "first_token_ttft_s", "tpot_s"))
    spent = {"terminal": "refused", "code": "projected_ttft", "spent_s": {"ingress": 0.0}}
    return request(at, took=0.0, attempts=[], completion_tokens=0) | nothing | spent | changes


def attempt(**changes: Any) -> dict[str, Any]:
    return {
        "n": 1,
        "prefill": "p0",
        "decode": "d0",
        "result": "completed",
        "prefill_s": 0.4,
        "handoff_age_s": 0.45,
        "first_token_s": 0.05,
    } | changes


def line(row: dict[str, Any]) -> bytes:
    return json.dumps(row).encode() + b"\n"


def read(*rows: dict[str, Any] | bytes, wanted: Wanted | None = None) -> Reading:
    reading = Reading(wanted or Wanted())
    reading.begin("j")
    for row in rows:
        reading.add(row if isinstance(row, bytes) else line(row))
    return reading
