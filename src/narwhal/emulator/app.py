"""The ASGI application of one emulated engine: vLLM's HTTP API, and the emulator's own."""

from __future__ import annotations

from collections import OrderedDict
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import trio

from narwhal.emulator.bodies import DetokenizeBody, Refusal, decode
from narwhal.emulator.completions import complete
from narwhal.emulator.control import PREFIX, Control
from narwhal.emulator.exchange import Exchange, answer_json, answer_refusal, read_all
from narwhal.emulator.faults import LEGS, FaultPhase
from narwhal.emulator.link import Inbox, Link
from narwhal.emulator.metrics import metrics_page
from narwhal.emulator.reply import JSON_TYPE, FixedReply
from narwhal.emulator.requests import (
    header_directives,
    prompt_directives,
    read_tokenize,
    texts_of,
    tokenize_ids,
)
from narwhal.emulator.script import run_script
from narwhal.emulator.tokens import detokenize
from narwhal.model import Route

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from narwhal.emulator.engine import EmulatedEngine
    from narwhal.emulator.faults import Fault
    from narwhal.emulator.link import Receive, Scope, Send

# Client addresses remembered to tell a reused connection from a new one.
_REMEMBERED_PEERS = 4096
_METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_PHASES = {
    "/health": FaultPhase.HEALTH,
    "/version": FaultPhase.VERSION,
    "/metrics": FaultPhase.METRICS,
    "/v1/models": FaultPhase.MODELS,
    "/tokenize": FaultPhase.TOKENIZE,
    "/detokenize": FaultPhase.TOKENIZE,
}


class EngineApp:
    """Answers for one engine. `siblings` are the engines that its control routes reach.

    Works on any ASGI server; only resets, and closing a connection before the first byte of an
    answer, need the extension `narwhal.abort`.
    """

    def __init__(self, engine: EmulatedEngine, siblings: Sequence[EmulatedEngine]) -> None:
        self._engine = engine
        self._control = Control(engine, siblings)
        self._peers: OrderedDict[object, None] = OrderedDict()
        self._routes: dict[str, tuple[str, Callable[[Exchange], Awaitable[None]]]] = {
            "/health": ("GET", self._health),
            "/version": ("GET", self._version),
            "/metrics": ("GET", self._metrics),
            "/v1/models": ("GET", self._models),
            "/tokenize": ("POST", self._tokenize),
            "/detokenize": ("POST", self._detokenize),
            "/v1/completions": ("POST", partial(complete, engine, Route.COMPLETIONS)),
            "/v1/chat/completions": ("POST", partial(complete, engine, Route.CHAT)),
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request; returns when it is answered, or when its client has left."""
        if scope["type"] != "http":
            raise RuntimeError(f"an emulated engine serves HTTP, not {scope['type']}")
        client = scope.get("client")
        peer = None if client is None else tuple(client)
        exchange = Exchange(
            method=scope["method"],
            path=scope["path"],
            headers={
                name.decode("latin-1").lower(): value.decode("utf-8", "replace")
                for name, value in scope["headers"]
            },
            peer=peer,
            reused=self._is_reused(peer),
            link=Link(scope, send),
            inbox=Inbox(receive),
        )
        async with trio.open_nursery() as nursery:
            respond = self._route(exchange)
            nursery.start_soon(exchange.inbox.pump, nursery.cancel_scope)
            await respond(exchange)
            nursery.cancel_scope.cancel(reason="the request was answered")

    def _is_reused(self, peer: tuple[object, ...] | None) -> bool:
        if peer is None:
            return False
        reused = peer in self._peers
        self._peers[peer] = None
        self._peers.move_to_end(peer)
        if len(self._peers) > _REMEMBERED_PEERS:
            self._peers.popitem(last=False)
        return reused

    def _route(self, exchange: Exchange) -> Callable[[Exchange], Awaitable[None]]:
        """Who answers; decides all that the head of the request decides."""
        path = exchange.path
        if path.startswith(PREFIX):
            return self._control.respond
        key = self._engine.settings.api_key
        if key is not None and exchange.headers.get("authorization") != f"Bearer {key}":
            return partial(answer_json, status=401, body={"error": "Unauthorized"})
        if path not in self._routes:
            return partial(answer_json, status=404, body={"detail": "Not Found"})
        self._engine.stats.routes[path] += 1
        method, respond = self._routes[path]
        if exchange.method != method:
            return partial(answer_json, status=405, body={"detail": "Method Not Allowed"})
        said = header_directives(exchange.headers)
        if isinstance(said, Refusal):
            return partial(answer_refusal, refusal=said)
        exchange.said = said
        phase = _PHASES.get(path)
        exchange.choose_early(self._engine.faults, LEGS if phase is None else (phase,))
        return respond

    # Routes that are not completions

    async def _answer(
        self,
        exchange: Exchange,
        body: bytes,
        kind: str = JSON_TYPE,
        in_prompt: Fault | None = None,
    ) -> None:
        exchange.choose(self._engine.faults, _PHASES[exchange.path], in_prompt)
        fault = exchange.fault
        reply = FixedReply(exchange.link, fault, body, content_type=kind)
        await run_script(fault, reply, self._engine.die)

    async def _json(self, exchange: Exchange, body: dict[str, Any]) -> None:
        await self._answer(exchange, msgspec.json.encode(body))

    async def _health(self, exchange: Exchange) -> None:
        await self._answer(exchange, b"", "")

    async def _version(self, exchange: Exchange) -> None:
        await self._json(exchange, {"version": self._engine.settings.version})

    async def _metrics(self, exchange: Exchange) -> None:
        await self._answer(exchange, metrics_page(self._engine), _METRICS_TYPE)

    async def _models(self, exchange: Exchange) -> None:
        settings = self._engine.settings
        card = {
            "id": settings.model,
            "object": "model",
            "created": int(self._engine.started_at),
            "owned_by": "vllm",
            "root": settings.model,
            "parent": None,
            "max_model_len": settings.max_model_len,
            "permission": [_permission(self._engine)],
        }
        await self._json(exchange, {"object": "list", "data": [card]})

    async def _tokenize(self, exchange: Exchange) -> None:
        settings = self._engine.settings
        raw = await read_all(self._engine, exchange)
        if raw is None:
            return
        body = read_tokenize(raw, exchange.content_type, settings)
        if isinstance(body, Refusal):
            await answer_refusal(exchange, body)
            return
        said = prompt_directives(texts_of(body))
        if isinstance(said, Refusal):
            await answer_refusal(exchange, said)
            return
        ids = tokenize_ids(body)
        counted = {
            "count": len(ids),
            "max_model_len": settings.max_model_len,
            "tokens": ids,
            "token_strs": None,
        }
        await self._answer(exchange, msgspec.json.encode(counted), in_prompt=said.fault)

    async def _detokenize(self, exchange: Exchange) -> None:
        raw = await read_all(self._engine, exchange)
        if raw is None:
            return
        body = decode(raw, DetokenizeBody, exchange.content_type)
        if isinstance(body, Refusal):
            await answer_refusal(exchange, body)
            return
        await self._json(exchange, {"prompt": detokenize(body.tokens)})


def _permission(engine: EmulatedEngine) -> dict[str, Any]:
    """What every vLLM lists of its model, and nobody reads."""
    return {
        "id": f"modelperm-{engine.connector.engine_id}",
        "object": "model_permission",
        "created": int(engine.started_at),
        "allow_create_engine": False,
        "allow_sampling": True,
        "allow_logprobs": True,
        "allow_search_indices": False,
        "allow_view": True,
        "allow_fine_tuning": False,
        "organization": "*",
        "group": None,
        "is_blocking": False,
    }
