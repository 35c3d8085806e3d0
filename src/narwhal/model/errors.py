"""One exception tree. Each class says whose fault it is and which status a client would see.

Expected outcomes of a request travel as values (`Outcome`, `Failure`). What is raised here is
what the code that called could not foresee: an engine that cannot be reached, a body that is
not JSON, a fleet file with mistakes in it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from narwhal.model.enums import FailureClass, Fault, Limit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from narwhal.model.outcome import Outcome


class NarwhalError(Exception):
    """The root of everything narwhal raises on purpose."""

    fault: ClassVar[Fault] = Fault.ROUTER
    status: int = 500
    code: str = "internal"
    retryable: ClassVar[bool] = False


# The operator's


class ConfigError(NarwhalError):
    """A file or setting that cannot be used; `problems` has one line for each mistake."""

    fault = Fault.OPERATOR

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(self.problems))


# The client's


class ClientError(NarwhalError):
    """A request that cannot be served as it stands; the message is for the client to read."""

    fault = Fault.CLIENT
    status = 400
    code = "invalid_request"

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class InvalidRequest(ClientError):
    """400: the body is not what the API takes."""


class UnknownModel(ClientError):
    """404: this fleet does not serve that model."""

    status = 404
    code = "model_not_found"


class BodyTooLarge(ClientError):
    """413: the body is over `serving.max_request_bytes`."""

    status = 413
    code = "body_too_large"


# The engines'


class EngineError(NarwhalError):
    """A leg that an engine failed. Never shown to a client as it is: it may name addresses."""

    fault = Fault.ENGINE
    status = 502
    code = "engine_failed"
    retryable = True
    failure: FailureClass = FailureClass.CONNECTION


class ConnectFailed(EngineError):
    """No connection: refused, unreachable, or `Limit.CONNECT` fired. Nothing was sent."""

    code = "engine_unreachable"

    def __init__(self, message: str, *, limit: Limit | None = None) -> None:
        super().__init__(message)
        self.limit = limit


class EngineClosed(EngineError):
    """The engine closed the connection in the middle of an exchange.

    `request_bytes` and `response_bytes` count what went over the wire in this exchange.
    """

    code = "engine_closed"

    def __init__(self, message: str, *, request_bytes: int, response_bytes: int) -> None:
        super().__init__(message)
        self.request_bytes = request_bytes
        self.response_bytes = response_bytes


class EngineProtocolError(EngineError):
    """The engine answered something that is not HTTP, or not the dialect."""

    code = "engine_protocol"
    failure = FailureClass.STREAM


class EngineStatus(EngineError):
    """The engine answered with a status that is not 200; `body` is what it said, bounded."""

    code = "engine_status"
    failure = FailureClass.INFERENCE_STATUS

    def __init__(self, engine_status: int, body: bytes, *, retry_after: float | None) -> None:
        super().__init__(f"engine answered {engine_status}")
        self.engine_status = engine_status
        self.body = body
        self.retry_after = retry_after


class HandoffRejected(EngineError):
    """A prefill answer without a complete handoff. It must not reach a decoder."""

    code = "handoff_incomplete"
    failure = FailureClass.KV_HANDOFF

    def __init__(self, message: str, *, missing: bool) -> None:
        super().__init__(message)
        self.missing = missing


class StreamFailed(EngineError):
    """A decode stream that did not end as a stream should: cut, in-band error, no `[DONE]`."""

    code = "stream_failed"
    failure = FailureClass.STREAM

    def __init__(self, message: str, *, code: str | None = None, body: bytes = b"") -> None:
        super().__init__(message)
        if code is not None:
            self.code = code
        self.body = body


# The router's own


class LocalError(NarwhalError):
    """Something ran out inside the router. Never retried, never held against an engine."""

    status = 503
    code = "local"


class PoolExhausted(LocalError):
    """`Limit.POOL` fired: no connection to the engine came free in time."""

    code = "pool_exhausted"


class NoEngine(LocalError):
    """No engine that could take the leg is in service."""

    code = "no_engine"


class RequestFailed(NarwhalError):
    """A request of an embedding application did not complete; `outcome` says how it ended."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(outcome.message or outcome.code)
        self.outcome = outcome
        self.status = outcome.status
        self.code = outcome.code or "internal"


class ResponseTooLarge(LocalError):
    """More than `serving.max_response_bytes` would have had to be held in memory."""

    status = 502
    code = "response_too_large"
