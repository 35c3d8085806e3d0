"""Errors in both directions: what an engine says went wrong, and what a client is told."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
import msgspec

from narwhal.model import Limit, Outcome, Terminal

if TYPE_CHECKING:
    from collections.abc import Mapping

    from narwhal.model import Phase

_DEFAULT_TYPES = {
    Terminal.INVALID: "invalid_request_error",
    Terminal.REJECTED: "overloaded_error",
    Terminal.REFUSED: "rate_limit_error",
    Terminal.EXPIRED: "timeout",
    Terminal.CANCELLED: "cancelled",
}


@attrs.frozen(kw_only=True)
class EngineErrorBody:
    """What an engine's error answer says; `message` is empty where the body has no known shape."""

    status: int
    """The status it came with, or, in the middle of a stream, the one its `code` names."""
    message: str = ""
    type: str | None = None
    param: str | None = None
    code: str | int | None = None


def parse_engine_error(status: int, body: bytes) -> EngineErrorBody:
    """Read an engine's error body: the API's own shape, and the web framework's `detail`.

    Any body gives an answer. A `status` of 200 (an error inside a stream) is replaced by the
    error's `code` if that is an HTTP error status, by 500 if not.
    """
    document = _decode(body)
    error = document.get("error")
    if isinstance(error, str):
        error = {"message": error}
    elif not isinstance(error, dict):
        # vLLM before the nesting; and FastAPI, for what never reached a handler.
        error = document if document.get("object") == "error" else {}
        if "detail" in document:
            error = {"message": _detail_text(document["detail"])}
    code = error.get("code")
    if isinstance(code, bool) or not isinstance(code, str | int):
        code = None
    if status < 400:  # noqa: PLR2004 - where errors begin in HTTP
        status = code if isinstance(code, int) and 400 <= code <= 599 else 500  # noqa: PLR2004
    return EngineErrorBody(
        status=status,
        message=_text(error.get("message")) or "",
        type=_text(error.get("type")),
        param=_text(error.get("param")),
        code=code,
    )


def answered(status: int, body: bytes) -> str:
    """An engine's error answer in words, its own among them: for the engine's operator alone."""
    said = parse_engine_error(status, body).message
    return f"it answered {status}{f': {said}' if said else ''}"


def error_body(
    outcome: Outcome, *, request_id: str, attempts: int, spent: Mapping[Phase, float]
) -> bytes:
    """The body of an error answer.

    `spent` is in seconds and rounded to milliseconds. An engine's own error (`passthrough`)
    keeps every field it has; the router's account of the request goes beside them.
    """
    account = {
        "limit": outcome.limit,
        "request_id": request_id,
        "attempts": attempts,
        "spent_s": {phase: round(seconds, 3) for phase, seconds in spent.items()},
    }
    return msgspec.json.encode({"error": _error_fields(outcome) | {"narwhal": account}})


def error_event(
    outcome: Outcome, *, request_id: str, attempts: int, spent: Mapping[Phase, float]
) -> bytes:
    """The same as a server-sent event: the last one of a stream that failed."""
    body = error_body(outcome, request_id=request_id, attempts=attempts, spent=spent)
    return b"data: %b\n\n" % body


def _error_fields(outcome: Outcome) -> dict[str, Any]:
    if outcome.passthrough is not None:
        own = _decode(outcome.passthrough).get("error")
        if isinstance(own, dict) and isinstance(own.get("message"), str):
            return own
        said = parse_engine_error(outcome.status, outcome.passthrough)
        if said.message:
            return {
                "message": said.message,
                "type": said.type or _default_type(outcome),
                "param": said.param,
                "code": outcome.code if said.code is None else said.code,
            }
    return {
        "message": outcome.message,
        "type": outcome.error_type or _default_type(outcome),
        "param": outcome.param,
        "code": outcome.code,
    }


def _default_type(outcome: Outcome) -> str:
    if outcome.limit not in (None, Limit.POOL, Limit.CONNECT):
        return "timeout"
    return _DEFAULT_TYPES.get(outcome.terminal, "server_error")


def _decode(body: bytes) -> dict[str, Any]:
    """The object that `body` is; an empty one if it is anything else."""
    try:
        document = msgspec.json.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _detail_text(detail: object) -> str:
    """FastAPI's `detail`: a sentence, or a list of findings with a `msg` each."""
    if isinstance(detail, str):
        return detail
    if not isinstance(detail, list):
        return ""
    found = [item["msg"] for item in detail if isinstance(item, dict) and "msg" in item]
    return "; ".join(text for text in found if isinstance(text, str))
