"""From what went wrong to what it means: errors and limits to `Failure`, `Failure` to `Outcome`.

Nothing here decides anything; it is the one place where statuses, codes and the sentences that
clients read are chosen.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from narwhal.model import (
    ClientError,
    ConnectFailed,
    EngineError,
    EngineStatus,
    Failure,
    FailureClass,
    HandoffRejected,
    Limit,
    LocalError,
    Outcome,
    Phase,
    StreamFailed,
    Terminal,
)
from narwhal.retry import classify_status
from narwhal.wire.vllm import parse_engine_error

if TYPE_CHECKING:
    from narwhal.config import FleetConfig

_OK = 200
BUSY = frozenset({408, 429, 503})
# An engine's 4xx is the client's to read, except these: they speak of the router's own key or
# URL, and would send the client looking for a mistake that is not its own.
OUR_FAULT = frozenset({401, 403, 404, 405, 407})

LIMIT_FIELDS = {
    Limit.REQUEST: "serving.request_timeout_s",
    Limit.QUEUE: "serving.queue_timeout_s",
    Limit.TOKENIZE: "engine.tokenize_timeout_s",
    Limit.PREFILL: "serving.prefill_timeout_s",
    Limit.HANDOFF: "serving.handoff_timeout_s",
    Limit.FIRST_TOKEN: "engine.first_token_timeout_s",
    Limit.READ_GAP: "engine.decode_read_timeout_s",
    Limit.POOL: "engine.pool_timeout_s",
    Limit.CONNECT: "engine.connect_timeout_s",
    Limit.HEALTH: "engine.health_timeout_s",
    Limit.GRACE: "serving.graceful_timeout_s",
}

_WHAT = {
    Limit.PREFILL: "No prefill answer",
    Limit.FIRST_TOKEN: "No first token",
    Limit.READ_GAP: "No output from the engine",
    Limit.CONNECT: "No connection to the engine",
    Limit.POOL: "No free connection to the engine",
}

_LIMIT_CLASS = {
    Limit.PREFILL: FailureClass.TIMEOUT,
    Limit.FIRST_TOKEN: FailureClass.TIMEOUT,
    Limit.READ_GAP: FailureClass.STREAM,
}


def limit_seconds(config: FleetConfig, limit: Limit) -> float:
    """The configured value of a limit, in seconds."""
    section, _, field = LIMIT_FIELDS[limit].partition(".")
    return float(getattr(getattr(config, section), field))


def limit_text(config: FleetConfig, limit: Limit) -> str:
    """For a message: `within 2.5 s (engine.first_token_timeout_s)`."""
    return f"within {limit_seconds(config, limit):g} s ({LIMIT_FIELDS[limit]})"


def from_limit(config: FleetConfig, limit: Limit, *, phase: Phase, engine: str | None) -> Failure:
    """The failure of a leg that a limit ended."""
    return Failure(
        phase=phase,
        failure=_LIMIT_CLASS[limit],
        engine=engine,
        status=504,
        code=str(limit),
        message=f"{_WHAT[limit]} {limit_text(config, limit)}",
        limit=limit,
    )


def handoff_expired(config: FleetConfig, *, by_cap: bool) -> Failure:
    """`Limit.HANDOFF` fired: by the cap on a handoff's age, or else by the producer's lease."""
    age = (
        f"{config.serving.handoff_timeout_s:g} s old (serving.handoff_timeout_s)"
        if by_cap
        else f"as old as its lease of {config.engine.kv_lease_s:g} s (engine.kv_lease_s)"
    )
    return Failure(
        phase=Phase.HANDOFF,
        failure=FailureClass.LOCAL,
        engine=None,
        status=504,
        code="handoff_expired",
        message=f"The KV handoff was {age} before decode could start",
        limit=Limit.HANDOFF,
    )


def from_error(
    config: FleetConfig, error: EngineError | LocalError, *, phase: Phase, engine: str
) -> Failure:
    """The failure of a leg that raised. The exception's own text may name addresses: not used."""
    if isinstance(error, EngineStatus):
        return _from_status(error, phase=phase, engine=engine)
    if isinstance(error, StreamFailed) and error.body:
        said = parse_engine_error(_OK, error.body)
        if classify_status(said.status)[0] is FailureClass.NEUTRAL:
            # What a plain answer would have said with its status, said after a 200.
            status = EngineStatus(said.status, error.body, retry_after=None)
            return _from_status(status, phase=phase, engine=engine)
    if isinstance(error, LocalError):
        limit = Limit.POOL if error.code == "pool_exhausted" else None
        what = (
            f"{_WHAT[Limit.POOL]} {limit_text(config, Limit.POOL)}"
            if limit
            else f"The answer is larger than {config.serving.max_response_bytes} bytes "
            "(serving.max_response_bytes)"
        )
        return Failure(
            phase=phase,
            failure=FailureClass.LOCAL,
            engine=engine,
            status=error.status,
            code=error.code,
            message=what,
            limit=limit,
            transient=False,
        )
    limit = error.limit if isinstance(error, ConnectFailed) else None
    return Failure(
        phase=phase,
        failure=error.failure,
        engine=engine,
        status=504 if limit else error.status,
        code=error.code,
        message=_engine_text(config, error, phase),
        limit=limit,
    )


def _engine_text(config: FleetConfig, error: EngineError, phase: Phase) -> str:
    if isinstance(error, ConnectFailed):
        if error.limit:
            return f"{_WHAT[Limit.CONNECT]} {limit_text(config, Limit.CONNECT)}"
        return "The engine could not be reached"
    if isinstance(error, HandoffRejected):
        if error.missing:
            return "The prefill engine answered without a KV handoff (kv_transfer_params)"
        return "The prefill engine answered with an incomplete KV handoff"
    return {
        "engine_closed": f"The engine closed the connection during {phase}",
        "engine_protocol": f"The engine's answer could not be understood during {phase}",
        "stream_failed": "The engine's stream ended before its answer was complete",
        "stream_cut": "The engine's stream ended before its answer was complete",
        "stream_empty": "The engine's stream ended without a token",
        "stream_malformed": "The engine sent an event that is not JSON",
        "stream_error": "The engine reported an error in its stream",
    }.get(error.code, f"The engine failed during {phase}")


def _from_status(error: EngineStatus, *, phase: Phase, engine: str) -> Failure:
    status = error.engine_status
    failure, transient = classify_status(status)
    told, code = 502, "engine_status"
    message = f"The engine answered {status} during {phase}"
    passthrough = None
    if status in BUSY:
        told, code, message = 503, "engine_busy", f"The engine is busy ({status} during {phase})"
    elif (
        failure is FailureClass.NEUTRAL
        and status not in OUR_FAULT
        and parse_engine_error(status, error.body).message
    ):
        told, code, passthrough = status, "engine_rejected", error.body
        message = "The engine rejected the request"
    return Failure(
        phase=phase,
        failure=failure,
        engine=engine,
        status=told,
        code=code,
        message=message,
        engine_status=status,
        retry_after=error.retry_after,
        transient=transient,
        passthrough=passthrough,
    )


def outcome_of_failure(failure: Failure, *, attempt: int, max_attempts: int) -> Outcome:
    """The terminal of a request whose last attempt failed."""
    if failure.passthrough is not None:
        terminal, kind = Terminal.INVALID, "invalid_request_error"
    elif failure.limit is Limit.HANDOFF:
        terminal, kind = Terminal.EXPIRED, "timeout"
    elif failure.limit is not None and failure.limit is not Limit.POOL:
        terminal, kind = Terminal.FAILED, "timeout"
    elif failure.code == "engine_busy":
        terminal, kind = Terminal.FAILED, "overloaded"
    else:
        terminal, kind = Terminal.FAILED, "server_error"
    where = f" on {failure.engine}" if failure.engine else ""
    return Outcome(
        terminal=terminal,
        status=failure.status,
        code=failure.code,
        message=f"{failure.message}; attempt {attempt} of {max_attempts}{where}.",
        error_type=kind,
        limit=failure.limit,
        retry_after=_whole_seconds(failure.retry_after) if failure.code == "engine_busy" else None,
        passthrough=failure.passthrough,
    )


def _whole_seconds(seconds: float | None) -> int:
    return max(1, min(3600, int(-(-(seconds or 0.0) // 1))))


def outcome_of_client_error(error: ClientError) -> Outcome:
    """The terminal of a request that could not be served as it stood."""
    return Outcome(
        terminal=Terminal.INVALID,
        status=error.status,
        code=error.code,
        message=str(error),
        error_type="invalid_request_error",
        param=error.param,
    )


def request_expired(config: FleetConfig, *, committed: bool) -> Outcome:
    """`Limit.REQUEST` fired. Once a stream is committed the code is the specified `expired`."""
    return Outcome(
        terminal=Terminal.EXPIRED,
        status=504,
        code="expired" if committed else "request_expired",
        message=f"The request did not finish {limit_text(config, Limit.REQUEST)}.",
        error_type="timeout",
        limit=Limit.REQUEST,
    )


def queue_expired(config: FleetConfig) -> Outcome:
    """`Limit.QUEUE` fired."""
    return Outcome(
        terminal=Terminal.EXPIRED,
        status=504,
        code="queue_expired",
        message=f"The request was not admitted {limit_text(config, Limit.QUEUE)}.",
        error_type="timeout",
        limit=Limit.QUEUE,
        retry_after=1,
    )


def queue_full(config: FleetConfig, retry_after: int) -> Outcome:
    """No seat, and no place to wait for one."""
    seats, places = config.serving.max_connections, config.serving.queue_capacity
    return Outcome(
        terminal=Terminal.REFUSED,
        status=429,
        code="queue_full",
        message=f"All {seats} seats (serving.max_connections) and {places} places in the queue "
        "(serving.queue_capacity) are taken; try again later.",
        error_type="overloaded",
        retry_after=retry_after,
    )


def retention_full(config: FleetConfig, retry_after: int) -> Outcome:
    """The router holds as many requests as it may; this one was not read."""
    seats, places = config.serving.max_connections, config.serving.queue_capacity
    return Outcome(
        terminal=Terminal.REJECTED,
        status=429,
        code="queue_full",
        message=f"The router already holds {seats + places} requests (serving.max_connections + "
        "serving.queue_capacity); try again later.",
        error_type="overloaded",
        retry_after=retry_after,
    )


def draining() -> Outcome:
    """The router is shutting down and takes no new work."""
    return Outcome(
        terminal=Terminal.REJECTED,
        status=503,
        code="draining",
        message="The router is shutting down and takes no new requests.",
        error_type="unavailable",
        retry_after=1,
    )


def client_closed() -> Outcome:
    """The client left. Nobody reads the message; the status is what logs conventionally use."""
    return Outcome(
        terminal=Terminal.CANCELLED,
        status=499,
        code="client_closed",
        message="The client closed the connection.",
    )


def caller_cancelled() -> Outcome:
    """A cancel scope of the embedding application ended the request."""
    return Outcome(
        terminal=Terminal.CANCELLED,
        status=499,
        code="cancelled",
        message="The application cancelled the request.",
    )


def shut_down(config: FleetConfig) -> Outcome:
    """`Limit.GRACE` fired: the router stopped waiting for the request."""
    return Outcome(
        terminal=Terminal.EXPIRED,
        status=503,
        code="shutdown",
        message=f"The router shut down; the request did not finish "
        f"{limit_text(config, Limit.GRACE)}.",
        error_type="unavailable",
        limit=Limit.GRACE,
        retry_after=1,
    )


def internal_error() -> Outcome:
    """A defect of the router itself. Its log has the traceback; the client gets the id."""
    return Outcome(
        terminal=Terminal.FAILED,
        status=500,
        code="internal",
        message="The router failed; its log has the details under this request id.",
        error_type="server_error",
    )
