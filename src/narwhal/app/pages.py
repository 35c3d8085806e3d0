"""What the answers that belong to no completion have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from narwhal.app.reply import JSON

if TYPE_CHECKING:
    from narwhal.app.types import Headers

    Answer = tuple[int, bytes, Headers]

# What a client may take to read a page. A scrape is given up on after ten seconds by default.
PAGE_BOUND_S = 10.0


def error(
    status: int, message: str, *, code: str, param: str | None = None, **more: object
) -> Answer:
    """An error in the OpenAI shape, with `more` beside it."""
    fields = {"message": message, "type": "invalid_request_error", "param": param, "code": code}
    return status, msgspec.json.encode({"error": fields, **more}), [JSON]


def not_allowed(method: str, allowed: str) -> Answer:
    """There is such a route, but not with this method."""
    message = f"{method[:32]} is not allowed here; use {allowed}."
    status, body, headers = error(405, message, code="method_not_allowed")
    return status, body, [*headers, (b"allow", allowed.encode())]
