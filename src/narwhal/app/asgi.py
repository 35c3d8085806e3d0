"""The ASGI application: which path is served by what."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import trio

from narwhal.app.completions import CompletionHandler
from narwhal.app.lifecycle import LifecycleRoutes
from narwhal.app.openapi import openapi_document
from narwhal.app.pages import PAGE_BOUND_S, error, not_allowed
from narwhal.app.reply import JSON
from narwhal.app.ui_pages import NOT_MODIFIED, UI_PAGES
from narwhal.model import Route
from narwhal.telemetry import CONTENT_TYPE, Endpoint
from narwhal.wire import openai

if TYPE_CHECKING:
    from collections.abc import Callable

    from narwhal.app.pages import Answer
    from narwhal.app.types import Receive, Scope, Send
    from narwhal.router import Router

COMPLETION_PATHS = {
    "/v1/completions": Route.COMPLETIONS,
    "/v1/chat/completions": Route.CHAT,
}


class App:
    """Serves one router over ASGI 3: HTTP only, on Trio, in any ASGI server.

    It starts nothing and owns nothing: the router lives for as long as whoever opened it says.
    """

    def __init__(self, router: Router) -> None:
        self._router = router
        self._complete = CompletionHandler(router)
        self._lifecycle = LifecycleRoutes(router)
        self._pages: dict[str, tuple[Endpoint, Callable[[], Answer]]] = {
            "/v1/models": (Endpoint.MODELS, self._models),
            "/health": (Endpoint.HEALTH, self._health),
            "/ready": (Endpoint.READY, self._ready),
            "/metrics": (Endpoint.METRICS, self._metrics),
            "/openapi.json": (Endpoint.OPENAPI, self._openapi),
            "/narwhal/state": (Endpoint.STATE, self._state),
        }
        config = router.config
        self._document = openapi_document(
            self.routes, model=config.model, engines=[spec.iid for spec in config.engines]
        )

    @property
    def routes(self) -> dict[str, str]:
        """Every path that is served, with its method; `HEAD` goes wherever `GET` does."""
        completions = dict.fromkeys(COMPLETION_PATHS, "POST")
        return completions | dict.fromkeys(self._pages, "GET") | self._lifecycle.routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] == "lifespan":
            await _lifespan(receive, send)
            return
        if scope["type"] != "http":
            raise ValueError(f"only HTTP is served here, not {scope['type']}")
        path, method = scope["path"], scope["method"]
        route = COMPLETION_PATHS.get(path)
        if route is not None and method == "POST":
            await self._complete(route, scope, receive, send)
            return
        if self._lifecycle.serves(path):
            await self._lifecycle(scope, receive, send)
            return
        page = self._pages.get(path)
        if page is not None and method in ("GET", "HEAD"):
            endpoint, answer = page
            status, body, headers = answer()
        elif (static := UI_PAGES.get(path)) is not None and method in ("GET", "HEAD"):
            endpoint = Endpoint.UI
            status, body, headers = static.answer(scope["headers"])
        else:
            endpoint = Endpoint.OTHER
            known = bool(route or page or path in UI_PAGES)
            status, body, headers = _no_such(path, method, known=known)
        self._router.telemetry.answered(endpoint, status)
        if status != NOT_MODIFIED:
            headers.append((b"content-length", b"%d" % len(body)))
        with trio.move_on_after(PAGE_BOUND_S):
            await send({"type": "http.response.start", "status": status, "headers": headers})
            await send({"type": "http.response.body", "body": b"" if method == "HEAD" else body})

    # Pages

    def _models(self) -> Answer:
        created = int(self._router.started_at)
        return 200, openai.models_body(self._router.config.model, created), [JSON]

    def _health(self) -> Answer:
        """The process is alive and its event loop runs; nothing is said of the engines."""
        return 200, b'{"status":"ok"}\n', [JSON]

    def _ready(self) -> Answer:
        reasons = self._router.not_ready()
        if not reasons:
            return 200, b'{"ready":true}\n', [JSON]
        return 503, msgspec.json.encode({"ready": False, "reasons": reasons}) + b"\n", [JSON]

    def _metrics(self) -> Answer:
        kind = (b"content-type", CONTENT_TYPE.encode())
        return 200, self._router.telemetry.metrics.render(), [kind]

    def _openapi(self) -> Answer:
        return 200, self._document, [JSON]

    def _state(self) -> Answer:
        return 200, self._router.telemetry.state(trio.current_time()), [JSON]


async def _lifespan(receive: Receive, send: Send) -> None:
    """Nothing is started or stopped here; a server that asks is told so politely."""
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return


def _no_such(path: str, method: str, *, known: bool) -> Answer:
    if known:
        return not_allowed(method, "POST" if path in COMPLETION_PATHS else "GET")
    return error(
        404,
        "There is no such route; completions are at /v1/chat/completions and /v1/completions.",
        code="not_found",
    )
