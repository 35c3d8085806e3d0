"""Metric catalogue, request journal and state document: what the router tells about itself.

Synchronous: no method waits, and neither trio nor httpx is imported. `Telemetry` is told what
happened; counters, journal and state all derive from that, so they agree.
"""

from narwhal.telemetry.codes import ERROR_CODES
from narwhal.telemetry.counters import COUNTED, REJECTION_CODES, Counters, values_of
from narwhal.telemetry.facade import Telemetry
from narwhal.telemetry.journal import Journal, encode
from narwhal.telemetry.kinds import (
    AttemptResult,
    Change,
    Denial,
    Door,
    Endpoint,
    Pool,
    Probe,
    ProbeResult,
)
from narwhal.telemetry.live import DrainView, EngineView, LiveState, PoolView, StateSource
from narwhal.telemetry.metrics import CONTENT_TYPE, Metrics
from narwhal.telemetry.roles_view import RolesView
from narwhal.telemetry.rows import (
    AttemptRow,
    EngineRow,
    EngineSummary,
    RequestRow,
    RoleRow,
    RouterRow,
    StartRow,
    StopRow,
    clean_text,
)
from narwhal.telemetry.sink import JournalFile
from narwhal.telemetry.state import drain_document
from narwhal.telemetry.traces import Trace, TracedRequest, Traces

__all__ = [
    "CONTENT_TYPE",
    "COUNTED",
    "ERROR_CODES",
    "REJECTION_CODES",
    "AttemptResult",
    "AttemptRow",
    "Change",
    "Counters",
    "Denial",
    "Door",
    "DrainView",
    "Endpoint",
    "EngineRow",
    "EngineSummary",
    "EngineView",
    "Journal",
    "JournalFile",
    "LiveState",
    "Metrics",
    "Pool",
    "PoolView",
    "Probe",
    "ProbeResult",
    "RequestRow",
    "RoleRow",
    "RolesView",
    "RouterRow",
    "StartRow",
    "StateSource",
    "StopRow",
    "Telemetry",
    "Trace",
    "TracedRequest",
    "Traces",
    "clean_text",
    "drain_document",
    "encode",
    "values_of",
]
