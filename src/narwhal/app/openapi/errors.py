"""Errors in the document: which code comes with which status."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from narwhal.model import Limit, Phase
from narwhal.telemetry.codes import ERROR_CODES

if TYPE_CHECKING:
    from collections.abc import Iterable

STATUSES = {
    "invalid_request": 400,
    "model_not_found": 404,
    "body_too_large": 413,
    "queue_full": 429,
    "projected_ttft": 429,
    "prompt_too_long": 429,
    "projected_tpot": 429,
    "answer_too_long": 429,
    "internal": 500,
    "engine_closed": 502,
    "engine_failed": 502,
    "engine_protocol": 502,
    "engine_status": 502,
    "engine_unreachable": 502,
    "handoff_incomplete": 502,
    "response_too_large": 502,
    "stream_cut": 502,
    "stream_empty": 502,
    "stream_error": 502,
    "stream_failed": 502,
    "stream_malformed": 502,
    "no_engine": 503,
    "degraded": 503,
    "draining": 503,
    "shutdown": 503,
    "engine_busy": 503,
    "pool_exhausted": 503,
    "local": 503,
    "request_expired": 504,
    "queue_expired": 504,
    "handoff_expired": 504,
    "prefill": 504,
    "first_token": 504,
    "read_gap": 504,
}
"""The status of each code with which a completion ends before its 200."""

TIMES_OUT = ("engine_unreachable",)
"""These are 504 after a time limit."""

IN_STREAMS = ("expired",)
"""Only ever the last event of a stream."""

UNSENT = ("client_closed", "cancelled")
"""Nobody is there to be told."""

PASSED_ON = ("engine_rejected",)
"""An engine's own words, with an engine's 4xx."""

_WORDS = {
    400: "The request is not what the API takes, or cannot be served in two legs.",
    404: "The fleet serves another model.",
    413: "The body is over `serving.max_request_bytes`.",
    429: "Turned away. With `retry-after` waiting helps; with `x-should-retry: false` it does not.",
    500: "A bug of the router.",
    502: "An engine failed.",
    503: "Not now.",
    504: "A time limit passed; `narwhal.limit` names it.",
}
_WAITABLE = (429, 503, 504)

_TEXT: dict[str, Any] = {"type": ["string", "null"]}


def codes_of(status: int) -> list[str]:
    """The codes of completions that come with a status."""
    late = TIMES_OUT if status == 504 else ()  # noqa: PLR2004 - gateway time-out
    return [code for code in ERROR_CODES if STATUSES.get(code) == status or code in late]


def completion_errors() -> dict[str, Any]:
    """The error responses of a completion route, by status."""
    responses: dict[str, Any] = {}
    for status, words in _WORDS.items():
        codes = codes_of(status)
        listed = ", ".join(f"`{code}`" for code in codes)
        response = error_response(f"{words} Code: {listed}.", "CompletionError")
        response["headers"] = {"x-request-id": {"$ref": "#/components/headers/RequestId"}}
        if status in _WAITABLE:
            response["headers"]["retry-after"] = {"$ref": "#/components/headers/RetryAfter"}
        responses[str(status)] = response
    responses["4XX"] = error_response(
        "An engine refused the request, in its own words; or the server did, before it was a "
        "request (code `http_` with the status).",
        "Error",
    )
    return responses


def error_response(description: str, schema: str) -> dict[str, Any]:
    """A response with an error object."""
    content = {"application/json": {"schema": {"$ref": f"#/components/schemas/{schema}"}}}
    return {"description": description, "content": content}


def error_schemas(page_codes: Iterable[str]) -> dict[str, Any]:
    """The schemas of error bodies; `page_codes` are those of routes that are no completions."""
    sent = [code for code in ERROR_CODES if code not in (*UNSENT, *PASSED_ON)]
    return {
        "ErrorCode": {
            "description": "The router's own codes: stable, and for programs.",
            "type": "string",
            "enum": [*sent, *page_codes],
        },
        "Error": {
            "type": "object",
            "required": ["error"],
            "properties": {"error": {"$ref": "#/components/schemas/ErrorObject"}},
        },
        "ErrorObject": _error(),
        "CompletionError": {
            "type": "object",
            "required": ["error"],
            "properties": {"error": _error("narwhal")},
        },
        "Account": _account(),
    }


def _error(*more: str) -> dict[str, Any]:
    """An error object; `more` is required of it as well."""
    own = {"$ref": "#/components/schemas/ErrorCode"}
    engines = {"type": ["string", "integer", "null"], "description": "An engine's own."}
    return {
        "type": "object",
        "required": ["message", "type", "param", "code", *more],
        "properties": {
            "message": {"type": "string", "description": "For people."},
            "type": _TEXT,
            "param": {**_TEXT, "description": "The field that is wrong, where one is."},
            "code": {"anyOf": [own, engines]},
            "narwhal": {"$ref": "#/components/schemas/Account"},
        },
    }


def _account() -> dict[str, Any]:
    return {
        "type": "object",
        "description": "The router's account of a completion request.",
        "required": ["limit", "request_id", "attempts", "spent_s"],
        "properties": {
            "limit": {
                "description": "The time limit that ended it.",
                "enum": [*map(str, Limit), None],
            },
            "request_id": {"type": "string"},
            "attempts": {"type": "integer", "minimum": 0},
            "spent_s": {
                "type": "object",
                "description": "Seconds by phase.",
                "propertyNames": {"enum": [*map(str, Phase)]},
                "additionalProperties": {"type": "number"},
            },
        },
    }
