"""Who is let in, as the document says it: keys and tokens, and the answers without them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from narwhal.app.openapi.errors import error_response

if TYPE_CHECKING:
    Operation = dict[str, Any]

ACCESS_CODES = ("invalid_api_key", "invalid_token", "control_denied")
"""Codes of requests that are not let in."""

SCHEMES: dict[str, Any] = {
    "ClientKey": {
        "type": "http",
        "scheme": "bearer",
        "description": "A client's key, if the router asks for one.",
    },
    "OperatorToken": {
        "type": "http",
        "scheme": "bearer",
        "description": "The token of the control routes, if the router asks for it.",
    },
}
_FREE = frozenset({"/health", "/ready"})
_CONTROL = "/narwhal/"


def guarded(path: str, operation: Operation) -> Operation:
    """The operation of a path, with what lets a request in, and what the others are told."""
    if path in _FREE:
        return operation
    if path.startswith(_CONTROL):
        scheme = "OperatorToken"
        denials = {
            "401": error_response("Without the token. `invalid_token`", "Error"),
            "403": error_response(
                "Not on this address, not for web pages, not through a proxy. `control_denied`",
                "Error",
            ),
        }
    else:
        scheme = "ClientKey"
        denials = {"401": error_response("Without a key. `invalid_api_key`", "Error")}
    responses = operation["responses"]
    return {
        **operation,
        # The empty one: whether one is asked for is the router's to say.
        "security": [{}, {scheme: []}],
        "responses": {**responses, **denials},
    }
