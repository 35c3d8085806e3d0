"""The document as a whole."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from narwhal.app.openapi.access import ACCESS_CODES, SCHEMES, guarded
from narwhal.app.openapi.answers import answer_schemas
from narwhal.app.openapi.errors import error_schemas
from narwhal.app.openapi.operations import PAGE_CODES, operations
from narwhal.model.version import __version__

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_ABOUT = """\
A router for LLM engines that split prefill from decode. Completions have the OpenAI shape; what \
the fields mean that are not listed here is the engines' to say."""

_HEADERS: dict[str, Any] = {
    "RequestId": {
        "description": "The client's id if it sent a usable one, else the router's.",
        "schema": {"type": "string"},
    },
    "RetryAfter": {
        "description": "Seconds to wait; only where waiting helps.",
        "schema": {"type": "integer", "minimum": 1},
    },
}
_PARAMETERS: dict[str, Any] = {
    "RequestId": {
        "name": "x-request-id",
        "in": "header",
        "description": "Sent back, and in the journal: 1 to 128 visible ASCII characters.",
        "schema": {"type": "string"},
    },
    "TraceParent": {
        "name": "traceparent",
        "in": "header",
        "description": "W3C trace context.",
        "schema": {"type": "string"},
    },
    "TraceState": {
        "name": "tracestate",
        "in": "header",
        "description": "What goes with `traceparent`.",
        "schema": {"type": "string"},
    },
}


def openapi_document(routes: Mapping[str, str], *, model: str, engines: Sequence[str]) -> bytes:
    """The OpenAPI 3.1 document of an application that serves `routes`, as JSON.

    `routes` has the method of each path, and `HEAD` goes wherever `GET` does. Raises `KeyError`
    for a route that nothing is known of.
    """
    known = operations(model, engines)
    document = {
        "openapi": "3.1.0",
        "info": {
            "title": "narwhal-trio",
            "version": __version__,
            "description": _ABOUT,
            "license": {"name": "Apache License 2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "paths": {
            path: _path(method, guarded(path, known[path])) for path, method in routes.items()
        },
        "components": {
            "schemas": error_schemas((*PAGE_CODES, *ACCESS_CODES)) | answer_schemas(),
            "headers": _HEADERS,
            "parameters": _PARAMETERS,
            "securitySchemes": SCHEMES,
        },
        "tags": [
            {"name": "completions", "description": "For clients."},
            {"name": "control", "description": "For operators: let nobody else reach these."},
        ],
    }
    return msgspec.json.encode(document) + b"\n"


def _path(method: str, operation: dict[str, Any]) -> dict[str, Any]:
    if method != "GET":
        return {method.lower(): operation}
    responses = {
        status: {key: value for key, value in response.items() if key != "content"}
        for status, response in operation["responses"].items()
    }
    head = operation | {"operationId": f"{operation['operationId']}_head", "responses": responses}
    return {"get": operation, "head": head}
