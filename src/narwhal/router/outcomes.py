"""How requests end, as values: statuses, codes, and the sentences that clients read.

Nothing here decides anything; it is the one place where the words are.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from narwhal.admission import Cause
from narwhal.model import Limit, Outcome, Terminal
from narwhal.router.failures import limit_text

if TYPE_CHECKING:
    from narwhal.admission import Refused
    from narwhal.config import FleetConfig
    from narwhal.model import ClientError, Failure


@cache  # both are needed for each request
def completed() -> Outcome:
    """The client has its whole answer."""
    return Outcome(terminal=Terminal.COMPLETED, status=200)


# What is over some time, for which the client is told how long to wait.
_COME_BACK = frozenset({"engine_busy", "no_engine"})


def failed(failure: Failure, *, attempt: int, max_attempts: int) -> Outcome:
    """The terminal of a request whose last attempt failed."""
    if failure.passthrough is not None:
        terminal, kind = Terminal.INVALID, "invalid_request_error"
    elif failure.limit is Limit.HANDOFF:
        terminal, kind = Terminal.EXPIRED, "timeout"
    elif failure.limit is not None and failure.limit is not Limit.POOL:
        terminal, kind = Terminal.FAILED, "timeout"
    elif failure.code in _COME_BACK:
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
        retry_after=_whole_seconds(failure.retry_after) if failure.code in _COME_BACK else None,
        passthrough=failure.passthrough,
    )


def _whole_seconds(seconds: float | None) -> int:
    return max(1, min(3600, int(-(-(seconds or 0.0) // 1))))


def client_error(error: ClientError) -> Outcome:
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


_REFUSED_CODES = {
    Cause.BACKLOG: "projected_ttft",
    Cause.PROMPT: "prompt_too_long",
    Cause.DECODE: "projected_tpot",
    Cause.LENGTH: "answer_too_long",
    Cause.NO_ENGINE: "no_engine",
}


def refused(config: FleetConfig, refusal: Refused, prompt_tokens: int) -> Outcome:
    """Predictive admission: the targets would be missed, so it is not even begun."""
    code = _REFUSED_CODES[refusal.cause]
    again = "" if refusal.retry_after is None else f"; try again in {refusal.retry_after} s"
    return Outcome(
        terminal=Terminal.REFUSED,
        status=503 if refusal.cause is Cause.NO_ENGINE else 429,
        code=code,
        message=f"{_refusal_text(config, refusal, prompt_tokens)}{again}.",
        error_type="overloaded" if refusal.retry_after else "invalid_request_error",
        retry_after=refusal.retry_after,
    )


def _refusal_text(config: FleetConfig, refusal: Refused, prompt_tokens: int) -> str:
    slo, projected = config.slo, refusal.projected_s or 0.0
    match refusal.cause:
        case Cause.BACKLOG:
            return (
                f"The first token is projected after {projected:.2f} s, later than the target of "
                f"{slo.ttft_s:g} s (slo.ttft_s)"
            )
        case Cause.PROMPT:
            return (
                f"The prompt of {prompt_tokens} tokens takes longer than the target of "
                f"{slo.ttft_s:g} s for the first token (slo.ttft_s) on an idle engine: shorten "
                "the prompt, or have the target raised"
            )
        case Cause.DECODE:
            return (
                f"No decode engine has room for the request at {slo.tpot_s:g} s a token "
                "(slo.tpot_s)"
            )
        case Cause.LENGTH:
            return (
                "The prompt and its answer together are more than a decode engine holds, or "
                f"decodes at {slo.tpot_s:g} s a token (slo.tpot_s), when it is idle: shorten the "
                "prompt, or ask for fewer tokens"
            )
        case Cause.NO_ENGINE:
            return "No engine can take the request now"


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


def degraded() -> Outcome:
    """The monitor does not get through: nobody knows how the engines are."""
    return Outcome(
        terminal=Terminal.REJECTED,
        status=503,
        code="degraded",
        message="The router cannot watch its engines and takes no new requests; /ready says why.",
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


def unreadable(status: int) -> Outcome:
    """The server answered by itself: the body came too slowly, or was not framed as HTTP is."""
    return Outcome(
        terminal=Terminal.INVALID,
        status=status,
        code="invalid_request",
        message="The body of the request could not be read to its end.",
        error_type="invalid_request_error",
    )


@cache
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


def malformed_event() -> Outcome:
    """An engine's event turned out not to be JSON when the application was to be given it."""
    return Outcome(
        terminal=Terminal.FAILED,
        status=502,
        code="stream_malformed",
        message="The engine sent an event that is not JSON.",
        error_type="server_error",
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
