"""The two completion routes: from an ASGI exchange to the life of a request."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import trio

from narwhal.app.inbox import Inbox
from narwhal.app.reply import AsgiReply
from narwhal.model import BodyTooLarge, InvalidRequest
from narwhal.wire import openai
from narwhal.wire.trace_context import PARENT, read_context

if TYPE_CHECKING:
    from narwhal.app.types import Receive, Scope, Send
    from narwhal.model import Route
    from narwhal.router import Router
    from narwhal.wire.openai import CompletionRequest

# A client's id is echoed and journaled, so it has to be harmless in a header and in a log.
_CLIENT_ID = re.compile(rb"[\x21-\x7e]{1,128}")
_CONTENT_TYPES = (b"application/json", b"text/json")


class CompletionHandler:
    """Serves one completion request over ASGI."""

    def __init__(self, router: Router) -> None:
        self._router = router
        self._config = router.config

    async def __call__(self, route: Route, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve it to its end. Returns or raises with the response finished, or to be cut."""
        arrival = trio.current_time()
        headers = {name: value for name, value in scope["headers"] if name in _WANTED}
        client_id = _matching(_CLIENT_ID, headers.get(b"x-request-id"))
        life = self._router.open_life(
            route,
            arrival=arrival,
            client_id=client_id,
            context=read_context(scope["headers"]) if PARENT in headers else None,
            http=True,
        )
        shown = (client_id or life.request_id).encode("ascii")
        reply = AsgiReply(scope, send, headers=[(b"x-request-id", shown)], on_gone=life.client_gone)
        limit = self._config.serving.max_request_bytes

        def disconnected() -> None:
            # ASGI reports the end of every exchange as a disconnect.
            if not reply.ended:
                life.client_gone()

        inbox = Inbox(receive, limit=limit, on_gone=disconnected)

        extensions = scope.get("extensions") or {}
        on_gone = extensions.get("narwhal.on_gone")
        read = inbox.wait_body if on_gone is None else inbox.read_body

        async def ingress() -> CompletionRequest:
            self._check_head(headers, limit)
            return openai.parse_request(route, await read(), model=self._config.model)

        def gone() -> None:
            refused = extensions.get("narwhal.refused")
            if refused is None:
                life.client_gone()
            else:
                life.turned_away(refused)

        if on_gone is not None:
            on_gone(gone)
            await life.run(reply, ingress)
            return
        async with trio.open_nursery() as nursery:
            nursery.start_soon(inbox.watch)
            await life.run(reply, ingress)
            nursery.cancel_scope.cancel(reason="the request has ended")

    @staticmethod
    def _check_head(headers: dict[bytes, bytes], limit: int) -> None:
        """Refuse what the head alone shows to be hopeless, before waiting for a body."""
        length = headers.get(b"content-length", b"").lstrip(b"0")
        # int() refuses thousands of digits, which not every server does.
        if length.isdigit() and (len(length) > _MOST_DIGITS or int(length) > limit):
            size = length.decode() if len(length) <= _MOST_DIGITS else "far too many"
            raise BodyTooLarge(
                f"The request body has {size} bytes, more than the {limit} allowed "
                "(serving.max_request_bytes)."
            )
        kind = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
        if kind and kind not in _CONTENT_TYPES:
            raise InvalidRequest("The content-type must be application/json.")
        if headers.get(b"content-encoding", b"identity").lower() != b"identity":
            raise InvalidRequest("The request body must not be compressed (content-encoding).")


# Those of 2**63 - 1: more than any setting allows.
_MOST_DIGITS = 19

_WANTED = frozenset(
    {b"x-request-id", PARENT, b"content-length", b"content-type", b"content-encoding"}
)


def _matching(pattern: re.Pattern[bytes], value: bytes | None) -> str | None:
    if value is None or pattern.fullmatch(value) is None:
        return None
    return value.decode("ascii")
