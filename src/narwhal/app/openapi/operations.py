"""What each route does, takes and answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from narwhal.app.openapi.answers import ref
from narwhal.app.openapi.errors import completion_errors, error_response
from narwhal.model import Route
from narwhal.wire.schemas import request_schema

if TYPE_CHECKING:
    from collections.abc import Sequence

    Operation = dict[str, Any]

PAGE_CODES = ("not_found", "method_not_allowed", "engine_not_found", "check_failed", "not_now")
"""Codes of routes that are no completions, beside those that they share."""

JSON_TYPE = "application/json"
METRICS_TYPE = "text/plain"
STREAM_TYPE = "text/event-stream"

# OpenAPI 3.1 has no schema for the events of a stream.
_ANSWER = (
    "The answer: whole, or with `stream` as server-sent events. The data of each is a {chunk}, of "
    "the last `[DONE]`. If a stream fails, its last event is a `CompletionError`, the connection "
    "is cut and there is no `[DONE]`."
)
_BY_ITSELF = error_response(
    "What the server answers by itself to what is no request: code `http_` with the status.",
    "Error",
)


def operations(model: str, engines: Sequence[str]) -> dict[str, Operation]:
    """The operation of every route, by path, for a fleet of these engines."""
    return {
        "/v1/chat/completions": _completion(
            Route.CHAT, model, "Answer a conversation", "ChatCompletion", "ChatCompletionChunk"
        ),
        "/v1/completions": _completion(
            Route.COMPLETIONS, model, "Go on with a text", "Completion", "Completion"
        ),
        "/v1/models": _page("models", "The one model of the fleet", "Models"),
        "/v1/models/{model}": _model(model),
        "/health": _page("health", "Whether the process is alive", "Health"),
        "/ready": _ready(),
        "/metrics": _metrics(),
        "/openapi.json": _document(),
        "/narwhal/state": _page("state", "Engines, counts and recent requests", "State"),
        "/narwhal/lifecycle": _page("lifecycle", "The engines, and how far drains are", "Engines"),
        "/narwhal/lifecycle/drain": _drain(engines),
        "/narwhal/lifecycle/readmit": _readmit(engines),
    }


_EXAMPLES: dict[Route, dict[str, Any]] = {
    Route.CHAT: {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 20},
    Route.COMPLETIONS: {"prompt": "Once upon a time", "max_tokens": 20},
}


def _completion(route: Route, model: str, summary: str, answer: str, chunk: str) -> Operation:
    return {
        "operationId": f"create_{route}",
        "tags": ["completions"],
        "summary": summary,
        "parameters": [
            {"$ref": f"#/components/parameters/{name}"}
            for name in ("RequestId", "TraceParent", "TraceState")
        ],
        "requestBody": _body(
            request_schema(route, model=model), {"model": model} | _EXAMPLES[route]
        ),
        "responses": {
            "200": {
                "description": _ANSWER.format(chunk=f"`{chunk}`"),
                "headers": {"x-request-id": {"$ref": "#/components/headers/RequestId"}},
                "content": {
                    JSON_TYPE: {"schema": ref(answer)},
                    STREAM_TYPE: {},
                },
            },
            **completion_errors(),
        },
    }


def _body(schema: dict[str, Any], example: dict[str, Any]) -> dict[str, Any]:
    return {"required": True, "content": {JSON_TYPE: {"schema": schema, "example": example}}}


def _answer(description: str, schema: str) -> dict[str, Any]:
    return {"description": description, "content": {JSON_TYPE: {"schema": ref(schema)}}}


def _page(name: str, summary: str, schema: str) -> Operation:
    return {
        "operationId": name,
        "tags": ["control"],
        "summary": summary,
        "responses": {"200": _answer(f"{summary}.", schema), "4XX": _BY_ITSELF},
    }


def _model(model: str) -> Operation:
    page = _page("model", "The model of that id", "Model")
    page["parameters"] = [
        {
            "name": "model",
            "in": "path",
            "required": True,
            "description": "The id; a `/` in it may be escaped or not.",
            "schema": {"type": "string", "minLength": 1},
            "example": model,
        }
    ]
    page["responses"]["404"] = error_response(
        "The fleet serves another model. `model_not_found`", "Error"
    )
    return page


def _ready() -> Operation:
    page = _page("ready", "Whether new requests are taken", "Ready")
    page["responses"]["503"] = _answer("They are not, and why.", "NotReady")
    return page


def _metrics() -> Operation:
    page = _page("metrics", "Metrics, in the Prometheus text format", "Health")
    page["responses"]["200"]["content"] = {METRICS_TYPE: {"schema": {"type": "string"}}}
    return page


def _document() -> Operation:
    page = _page("openapi", "This document", "Health")
    page["responses"]["200"]["content"] = {JSON_TYPE: {"schema": {"type": "object"}}}
    return page


def _drain(engines: Sequence[str]) -> Operation:
    deadline = {
        "type": ["number", "null"],
        "exclusiveMinimum": 0,
        "description": "Seconds from now.",
    }
    named = {
        "enum": list(dict.fromkeys([*engines, "all"])),
        "description": "An engine's `iid`; `all`, or left out, for the fleet as a wave.",
    }
    return _order(
        "drain",
        "Take engines out of service, gently",
        {
            "engine": named,
            "deadline_s": deadline,
            "same_process": {"type": "boolean", "enum": [False]},
        },
        (),
        _answer("They get no new work from now on.", "Engines"),
    )


def _readmit(engines: Sequence[str]) -> Operation:
    properties = {
        "engine": {"enum": list(engines), "description": "The engine's `iid`."},
        "deadline_s": {"type": "null"},
        "same_process": {
            "type": "boolean",
            "description": "Let the process pass that was drained.",
        },
    }
    answer = _answer("It passed its checks, and serves.", "Readmitted")
    operation = _order(
        "readmit", "Put an engine back into service", properties, ("engine",), answer
    )
    operation["responses"]["409"] = _answer(
        "A check failed (`check_failed`), or its state does not allow it (`not_now`).",
        "NotReadmitted",
    )
    return operation


def _order(
    name: str,
    summary: str,
    properties: dict[str, Any],
    required: Sequence[str],
    answer: dict[str, Any],
) -> Operation:
    schema: dict[str, Any] = {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }
    return {
        "operationId": name,
        "tags": ["control"],
        "summary": summary,
        "requestBody": _body(schema, {"engine": properties["engine"]["enum"][0]}),
        "responses": {
            "200": answer,
            "400": error_response("The body is not as it should be. `invalid_request`", "Error"),
            "404": error_response("There is no such engine. `engine_not_found`", "Error"),
            "413": error_response("The body is too large. `body_too_large`", "Error"),
            "4XX": _BY_ITSELF,
        },
    }
