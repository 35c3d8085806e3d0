"""What went wrong with a leg, as a value: from errors and limits to `Failure`.

Nothing here decides anything. An exception's own text may name addresses and never gets further
than this: what a client may read of a failure is written here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from narwhal.config.effective import FIELDS, configured_seconds
from narwhal.model import (
    ConnectFailed,
    EngineError,
    EngineStatus,
    Failure,
    FailureClass,
    HandoffRejected,
    Limit,
    LocalError,
    NoEngine,
    Phase,
    ResponseTooLarge,
    StreamFailed,
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


def limit_text(config: FleetConfig, limit: Limit) -> str:
    """For a message: `within 2.5 s (engine.first_token_timeout_s)`."""
    return f"within {configured_seconds(config, limit):g} s ({FIELDS[limit]})"


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
    what = (
        f"{config.serving.handoff_timeout_s:g} s old (serving.handoff_timeout_s) before decode "
        "could start"
        if by_cap
        else f"as old as its lease of {config.engine.kv_lease_s:g} s (engine.kv_lease_s) before a "
        "token showed that the decoder had it"
    )
    return Failure(
        phase=Phase.HANDOFF,
        failure=FailureClass.LOCAL,
        engine=None,
        status=504,
        code="handoff_expired",
        message=f"The KV handoff was {what}",
        limit=Limit.HANDOFF,
    )


def from_error(
    config: FleetConfig, error: EngineError | LocalError, *, phase: Phase, engine: str
) -> Failure:
    """The failure of a leg that raised."""
    if isinstance(error, EngineStatus):
        return _from_status(error, phase=phase, engine=engine)
    if isinstance(error, StreamFailed) and error.body:
        said = parse_engine_error(_OK, error.body)
        if classify_status(said.status)[0] is FailureClass.NEUTRAL:
            # What a plain answer would have said with its status, said after a 200.
            status = EngineStatus(said.status, error.body, retry_after=None)
            return _from_status(status, phase=phase, engine=engine)
    if isinstance(error, NoEngine):
        return Failure(
            phase=phase,
            failure=FailureClass.LOCAL,
            engine=None,
            status=error.status,
            code=error.code,
            message="No engine that could take the request is in service",
            retry_after=1.0,
            transient=False,
        )
    if isinstance(error, LocalError):
        limit = Limit.POOL if error.code == "pool_exhausted" else None
        if limit:
            what = f"{_WHAT[Limit.POOL]} {limit_text(config, Limit.POOL)}"
        elif isinstance(error, ResponseTooLarge):
            what = (
                f"The answer is larger than {config.serving.max_response_bytes} bytes "
                "(serving.max_response_bytes)"
            )
        else:
            what = "The router can open no more connections: its file descriptors have run out"
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
