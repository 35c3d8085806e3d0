"""The routes with which an operator drains engines and readmits them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import trio

from narwhal.app.inbox import Inbox
from narwhal.app.pages import PAGE_BOUND_S, error, not_allowed
from narwhal.app.reply import JSON
from narwhal.model import BodyTooLarge
from narwhal.monitor import NotNow
from narwhal.telemetry import Endpoint, drain_document

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from typing import Any

    from narwhal.app.pages import Answer
    from narwhal.app.types import Receive, Scope, Send
    from narwhal.monitor import Verdict
    from narwhal.router import Router

PATH = "/narwhal/lifecycle"
EVERY = "all"
# A body names one engine; there is nothing else that could make it long.
MOST_BYTES = 16_384
_MOST_SHOWN = 64
_TYPE = b"application/json"


class _Order(msgspec.Struct, forbid_unknown_fields=True):
    """The body of either order."""

    engine: str | msgspec.UnsetType = msgspec.UNSET
    """Never null: a script whose variable is empty does not mean the whole fleet."""
    deadline_s: float | None = None
    same_process: bool = False


class _Wrong(Exception):
    """The request cannot be carried out; it holds the answer."""

    def __init__(self, answer: Answer) -> None:
        super().__init__()
        self.answer = answer


class LifecycleRoutes:
    """Serves `PATH` and what is under it, over ASGI.

    A readmission ends with the exchange that asked for it: if the client leaves, the engine stays
    drained. A drain is a fact as soon as its body was read.
    """

    def __init__(self, router: Router) -> None:
        self._router = router
        self._engines = [spec.iid for spec in router.config.engines]
        self._orders: dict[str, Callable[[_Order], Awaitable[Answer]]] = {
            f"{PATH}/drain": self._drain,
            f"{PATH}/readmit": self._readmit,
        }

    @property
    def routes(self) -> dict[str, str]:
        """The paths, with the method of each."""
        return {PATH: "GET"} | dict.fromkeys(self._orders, "POST")

    def serves(self, path: str) -> bool:
        """Whether the path is one of these."""
        return path == PATH or path in self._orders

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        async with trio.open_nursery() as nursery:
            leave = nursery.cancel_scope
            inbox = Inbox(
                receive,
                limit=MOST_BYTES,
                on_gone=lambda: leave.cancel(reason="the client left"),
            )
            on_gone = (scope.get("extensions") or {}).get("narwhal.on_gone")
            if on_gone is None:
                nursery.start_soon(inbox.watch)
                answer = await self._answer(scope, inbox.wait_body)
            else:
                on_gone(lambda: leave.cancel(reason="the client left"))
                answer = await self._answer(scope, inbox.read_body)
            await self._send(answer, send, head=scope["method"] == "HEAD")
            leave.cancel(reason="answered")

    async def _send(self, answer: Answer, send: Send, *, head: bool) -> None:
        status, body, headers = answer
        self._router.telemetry.answered(Endpoint.LIFECYCLE, status)
        headers = [*headers, (b"content-length", b"%d" % len(body))]
        with trio.move_on_after(PAGE_BOUND_S):
            await send({"type": "http.response.start", "status": status, "headers": headers})
            await send({"type": "http.response.body", "body": b"" if head else body})

    async def _answer(self, scope: Scope, read: Callable[[], Awaitable[bytes]]) -> Answer:
        path, method = scope["path"], scope["method"]
        if path == PATH:
            reads = method in ("GET", "HEAD")
            return self._all(self._engines) if reads else not_allowed(method, "GET")
        if method != "POST":
            return not_allowed(method, "POST")
        try:
            return await self._orders[path](await self._order(scope, read))
        except _Wrong as wrong:
            return wrong.answer

    async def _order(self, scope: Scope, read: Callable[[], Awaitable[bytes]]) -> _Order:
        """The body. Its type is insisted on: no page in a browser can send it to strangers."""
        kind = next((value for name, value in scope["headers"] if name == b"content-type"), b"")
        if kind.partition(b";")[0].strip().lower() != _TYPE:
            raise _bad("Send a JSON object, with the header content-type: application/json.")
        try:
            body = await read()
        except BodyTooLarge:
            text = f"The body has more than {MOST_BYTES} bytes; it only has to name an engine."
            raise _Wrong(error(413, text, code="body_too_large")) from None
        try:
            return msgspec.json.decode(body, type=_Order)
        except msgspec.ValidationError as wrong:
            text = f"The body is not as it should be: {wrong}. "
        except (msgspec.DecodeError, UnicodeDecodeError):
            text = "The body is no JSON. "
        example = '{"engine": "' + self._engines[0] + '"}'
        raise _bad(f"{text}Send an object such as {example}.")

    # Orders

    async def _drain(self, order: _Order) -> Answer:
        if order.same_process:
            raise _bad("same_process is for readmissions; leave it out.", param="same_process")
        deadline = order.deadline_s
        if deadline is not None and not 0 < deadline < float("inf"):
            raise _bad(
                f"deadline_s is {deadline:g}; it is seconds from now, and more than 0.",
                param="deadline_s",
            )
        # An engine may be called that, and then it is meant.
        iids = self._engines
        if order.engine is not msgspec.UNSET and (order.engine != EVERY or EVERY in self._engines):
            iids = [self._known(order.engine)]
        await self._router.lifecycle.drain(iids, deadline_s=deadline)
        return self._all(iids)

    async def _readmit(self, order: _Order) -> Answer:
        if order.deadline_s is not None:
            raise _bad("deadline_s is for drains; leave it out.", param="deadline_s")
        if order.engine is msgspec.UNSET:
            raise _bad(
                f"Say which engine: one of {self._names()}. They are readmitted one by one.",
                param="engine",
            )
        iid = self._known(order.engine)
        try:
            verdict = await self._router.lifecycle.readmit(iid, same_process=order.same_process)
        except NotNow as reason:
            return error(
                reason.status,
                f"{reason}.",
                code=reason.code,
                param="engine",
                engine=self._status(iid),
            )
        return self._result(iid, verdict)

    def _known(self, iid: str) -> str:
        if iid in self._engines:
            return iid
        text = f'There is no engine "{iid[:_MOST_SHOWN]}"; the fleet has {self._names()}.'
        raise _Wrong(error(404, text, code="engine_not_found", param="engine"))

    def _names(self) -> str:
        return ", ".join(self._engines)

    # Answers

    def _result(self, iid: str, verdict: Verdict) -> Answer:
        checks = {"passed": verdict.passed, "skipped": verdict.skipped}
        status = self._status(iid)
        if verdict.failed is None:
            return 200, msgspec.json.encode({"engine": status, **checks}), [JSON]
        text = f"{iid} stays out of service. Its check {verdict.failed} failed: {verdict.reason}."
        failed = {"check": verdict.failed, "reason": verdict.reason}
        return error(
            409, text, code="check_failed", param="engine", engine=status, failed=failed, **checks
        )

    def _all(self, iids: list[str]) -> Answer:
        body = {"engines": [self._status(iid) for iid in iids]}
        return 200, msgspec.json.format(msgspec.json.encode(body)) + b"\n", [JSON]

    def _status(self, iid: str) -> dict[str, Any]:
        router = self._router
        (view,) = (each for each in router.live_state().engines if each.iid == iid)
        lifecycle = router.lifecycle
        return {
            "iid": iid,
            "role": view.role,
            "state": view.state,
            "reason": view.reason,
            "residents": router.core.residents(iid),
            "ready_to_stop": lifecycle.ready_to_stop(iid),
            "checking": lifecycle.checking(iid),
            "process_start_s": view.process_start_s,
            "drain": None if view.drain is None else drain_document(view.drain),
        }


def _bad(message: str, *, param: str | None = None) -> _Wrong:
    return _Wrong(error(400, message, code="invalid_request", param=param))
