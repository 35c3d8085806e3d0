"""Value types, enumerations and the exception tree that every other package speaks in.

The ground floor: it imports nothing of narwhal and does no I/O.
"""

from narwhal.model.enums import (
    Dialect,
    FailureClass,
    Fault,
    Limit,
    Phase,
    Role,
    Route,
    StreamCommit,
    Terminal,
    TtftScope,
)
from narwhal.model.errors import (
    BodyTooLarge,
    ClientError,
    ConfigError,
    ConnectFailed,
    EngineClosed,
    EngineError,
    EngineProtocolError,
    EngineStatus,
    HandoffRejected,
    InvalidRequest,
    LocalError,
    NarwhalError,
    NoEngine,
    PoolExhausted,
    RequestFailed,
    ResponseTooLarge,
    StreamFailed,
    UnknownModel,
)
from narwhal.model.outcome import Failure, Outcome
from narwhal.model.spent import Stopwatch

__all__ = [
    "BodyTooLarge",
    "ClientError",
    "ConfigError",
    "ConnectFailed",
    "Dialect",
    "EngineClosed",
    "EngineError",
    "EngineProtocolError",
    "EngineStatus",
    "Failure",
    "FailureClass",
    "Fault",
    "HandoffRejected",
    "InvalidRequest",
    "Limit",
    "LocalError",
    "NarwhalError",
    "NoEngine",
    "Outcome",
    "Phase",
    "PoolExhausted",
    "RequestFailed",
    "ResponseTooLarge",
    "Role",
    "Route",
    "Stopwatch",
    "StreamCommit",
    "StreamFailed",
    "Terminal",
    "TtftScope",
    "UnknownModel",
]
