"""The ASGI application: which path is served by what, and to whom."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import msgspec
import trio

from narwhal.app.access import denied_client, denied_operator
from narwhal.app.completions import CompletionHandler
from narwhal.app.lifecycle import LifecycleRoutes
from narwhal.app.openapi import openapi_document
from narwhal.app.pages import PAGE_BOUND_S, error, not_allowed
from narwhal.app.reply import JSON
from narwhal.app.ui_pages import NOT_MODIFIED, UI_PAGES, UI_SIGNPOSTS
from narwhal.model import Route, UnknownModel
from narwhal.telemetry import CONTENT_TYPE, Door, Endpoint
from narwhal.wire import openai

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from narwhal.app.access import Access
    from narwhal.app.pages import Answer
    from narwhal.app.types import Receive, Scope, Send
    from narwhal.app.ui_pages import Signpost, StaticPage
    from narwhal.router import Router

COMPLETION_PATHS = {
    "/v1/completions": Route.COMPLETIONS,
    "/v1/chat/completions": Route.CHAT,
}
_ENDPOINTS = {Route.COMPLETIONS: Endpoint.COMPLETIONS, Route.CHAT: Endpoint.CHAT}
# What load balancers and scrapers ask for, who have no keys as a rule.
_OPEN = frozenset({"/health", "/ready", "/metrics"})
# Every path below it is an operator's, those that are not there yet among them.
_CONTROL = "/narwhal/"
_STATE = "/narwhal/state"
_MODELS = "/v1/models"


class App:
    """Serves one router over ASGI 3: HTTP only, on Trio, in any ASGI server.

    `data` and `control` say whose routes are here: those of clients, those of operators. With
    both, control routes answer only what came in over a loopback address. `/health`, `/ready` and
    `/metrics` are always here.

    It starts nothing and owns nothing: the router lives for as long as whoever opened it says.
    """

    def __init__(
        self, router: Router, access: Access, *, data: bool = True, control: bool = True
    ) -> None:
        self._router = router
        self._access = access
        self._clients = access.clients if data else None
        self._complete = CompletionHandler(router)
        self._completions = COMPLETION_PATHS if data else {}
        self._lifecycle = LifecycleRoutes(router) if control else None
        self._control = control
        self._own_listener = not data
        self._door = Door.DATA if data else Door.CONTROL
        self._open = _OPEN - ({"/metrics"} if access.metrics_need_key else set())
        self._pages: dict[str, tuple[Endpoint, Callable[[], Answer]]] = {
            "/health": (Endpoint.HEALTH, self._health),
            "/ready": (Endpoint.READY, self._ready),
            "/metrics": (Endpoint.METRICS, self._metrics),
            "/openapi.json": (Endpoint.OPENAPI, self._openapi),
        }
        if data:
            self._pages[_MODELS] = (Endpoint.MODELS, self._models)
        if control:
            self._pages[_STATE] = (Endpoint.STATE, self._state)
        self._files: Mapping[str, StaticPage | Signpost] = (
            {**UI_PAGES, **UI_SIGNPOSTS} if control else {}
        )
        config = router.config
        self._document = openapi_document(
            self.routes, model=config.model, engines=[spec.iid for spec in config.engines]
        )

    @property
    def routes(self) -> dict[str, str]:
        """Every path that is served, with its method; `HEAD` goes wherever `GET` does."""
        completions = dict.fromkeys(self._completions, "POST")
        models = {f"{_MODELS}/{{model}}": "GET"} if _MODELS in self._pages else {}
        lifecycle = {} if self._lifecycle is None else self._lifecycle.routes
        return completions | dict.fromkeys(self._pages, "GET") | models | lifecycle

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] == "lifespan":
            await _lifespan(receive, send)
            return
        if scope["type"] != "http":
            raise ValueError(f"only HTTP is served here, not {scope['type']}")
        path, method = scope["path"], scope["method"]
        route = self._completions.get(path)
        if (denied := self._denied(path, scope)) is not None:
            endpoint, (status, body, headers) = self._endpoint(path), denied
        elif route is not None and method == "POST":
            await self._complete(route, scope, receive, send)
            return
        elif self._lifecycle is not None and self._lifecycle.serves(path):
            await self._lifecycle(scope, receive, send)
            return
        elif (page := self._page(path)) is not None and method in ("GET", "HEAD"):
            endpoint, answer = page
            status, body, headers = answer()
        elif (static := self._files.get(path)) is not None and method in ("GET", "HEAD"):
            endpoint = Endpoint.UI
            status, body, headers = static.answer(scope["headers"])
        else:
            endpoint = Endpoint.OTHER
            known = bool(route or page or path in self._files)
            status, body, headers = self._no_such(path, method, known=known)
        self._router.telemetry.answered(endpoint, status)
        if status != NOT_MODIFIED:
            headers.append((b"content-length", b"%d" % len(body)))
        with trio.move_on_after(PAGE_BOUND_S):
            await send({"type": "http.response.start", "status": status, "headers": headers})
            await send({"type": "http.response.body", "body": b"" if method == "HEAD" else body})

    # Who is let in

    def _denied(self, path: str, scope: Scope) -> Answer | None:
        """The answer to a request that may not have what it asks for; `None` if it may."""
        if self._control and path.startswith(_CONTROL):
            denial = self._access.denied_control(
                scope, own_listener=self._own_listener, secret=path not in self._files
            )
            tell = denied_operator
        elif self._clients is None or path in self._open:
            return None
        else:
            denial, tell = self._clients.denial(scope["headers"]), denied_client
        if denial is None:
            return None
        self._router.telemetry.denied(self._door, denial)
        return tell(denial)

    def _endpoint(self, path: str) -> Endpoint:
        """What a request that was denied had asked for."""
        if (route := self._completions.get(path)) is not None:
            return _ENDPOINTS[route]
        if (page := self._page(path)) is not None:
            return page[0]
        if path in self._files:
            return Endpoint.UI
        below = self._lifecycle is not None and self._lifecycle.serves(path)
        return Endpoint.LIFECYCLE if below else Endpoint.OTHER

    # Pages

    def _page(self, path: str) -> tuple[Endpoint, Callable[[], Answer]] | None:
        """What is served at `path`; everything below that of the models is the id of one."""
        if (page := self._pages.get(path)) is not None:
            return page
        models, asked = path[: len(_MODELS) + 1], path[len(_MODELS) + 1 :]
        if asked and models == f"{_MODELS}/" and _MODELS in self._pages:
            return Endpoint.MODELS, partial(self._model, asked)
        return None

    def _models(self) -> Answer:
        created = int(self._router.started_at)
        return 200, openai.models_body(self._router.config.model, created), [JSON]

    def _model(self, asked: str) -> Answer:
        created = int(self._router.started_at)
        try:
            return 200, openai.model_body(asked, self._router.config.model, created), [JSON]
        except UnknownModel as unknown:
            return error(404, str(unknown), code=unknown.code, param=unknown.param)

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

    def _no_such(self, path: str, method: str, *, known: bool) -> Answer:
        if known:
            return not_allowed(method, "POST" if path in self._completions else "GET")
        text = "completions are at /v1/chat/completions and /v1/completions"
        if not self._completions:
            text = f"those of operators are {_STATE} and under /narwhal/lifecycle"
        return error(404, f"There is no such route; {text}.", code="not_found")


async def _lifespan(receive: Receive, send: Send) -> None:
    """Nothing is started or stopped here; a server that asks is told so politely."""
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return
