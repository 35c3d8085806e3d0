"""The closed set of codes a request can end with, as metrics know them.

docs/errors.md has a line for each; a test compares the two.
"""

from __future__ import annotations

OK = "ok"
"""The label of a request that ended without a code: it completed."""

OTHER = "other"
"""The label of every code that is not listed here, such as one that an engine made up."""

ERROR_CODES = (
    # The client's fault
    "invalid_request",
    "model_not_found",
    "body_too_large",
    "engine_rejected",
    # Turned away
    "queue_full",
    "draining",
    "projected_ttft",
    "prompt_too_long",
    "projected_tpot",
    "answer_too_long",
    "no_engine",
    "degraded",
    # Out of time
    "request_expired",
    "expired",
    "queue_expired",
    "handoff_expired",
    "prefill",
    "first_token",
    "read_gap",
    "shutdown",
    # An engine failed
    "engine_busy",
    "engine_closed",
    "engine_failed",
    "engine_protocol",
    "engine_status",
    "engine_unreachable",
    "handoff_incomplete",
    "stream_cut",
    "stream_empty",
    "stream_error",
    "stream_failed",
    "stream_malformed",
    # The router failed
    "pool_exhausted",
    "response_too_large",
    "local",
    "internal",
    # Ended from outside
    "client_closed",
    "cancelled",
)

CODE_LABELS = (OK, *ERROR_CODES, OTHER)

_LABELS = dict.fromkeys(ERROR_CODES)


def code_label(code: str | None) -> str:
    """Return the value of the `code` label for `code`: never one outside `CODE_LABELS`."""
    if code is None:
        return OK
    return code if code in _LABELS else OTHER
