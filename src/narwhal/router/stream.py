"""Requests of an embedding application: the answer as an iterator instead of an HTTP response."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import msgspec
import trio

from narwhal.model import InvalidRequest, NarwhalError, RequestFailed, Route
from narwhal.router import outcomes
from narwhal.wire import openai
from narwhal.wire.sse import EventSplitter, event_data
from narwhal.wire.trace_context import read_context

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from contextlib import AbstractAsyncContextManager
    from types import TracebackType

    from narwhal.model import Outcome
    from narwhal.router.service import Router
    from narwhal.wire.openai import CompletionRequest

_DONE = b"[DONE]"


async def leave_nursery(
    manager: AbstractAsyncContextManager[trio.Nursery], exc: BaseException | None
) -> None:
    """Leave a nursery that a block was opened around, for that block's own `__aexit__`.

    The block's exception is not shown to the nursery, which would wrap it in a group, and a
    cancel that arrives as the nursery closes does not take its place: the exception goes its way
    unchanged, and a cancel is asked for again at the next checkpoint anyway.
    """
    try:
        await manager.__aexit__(None, None, None)
    except BaseException as error:
        if exc is None or isinstance(exc, trio.Cancelled) or not _only_cancelled(error):
            raise


def _only_cancelled(error: BaseException) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return error.split(trio.Cancelled)[1] is None
    return isinstance(error, trio.Cancelled)


def _lines(headers: Mapping[str, str]) -> Iterator[tuple[bytes, bytes]]:
    """Headers as they come from a client; what is not ASCII is valid in neither form."""
    for name, value in headers.items():
        yield name.lower().encode("ascii", "replace"), value.encode("ascii", "replace")


class ChannelReply:
    """A `Reply` into a channel with no buffer: the application's pace is the relay's pace."""

    def __init__(self, send: trio.MemorySendChannel[bytes]) -> None:
        self._send = send
        self._pending = b""
        self.committed = False

    async def commit(self) -> None:
        """Nothing to send: an iterator has no headers."""
        self.committed = True

    async def write(self, data: bytes) -> None:
        """Hand events over."""
        self.committed = True
        await self._send.send(data)

    def write_nowait(self, data: bytes) -> bool:
        """Keep events for `flush`: there is no buffer to put them in."""
        self._pending = data
        return False

    async def flush(self) -> None:
        """Hand over what `write_nowait` kept."""
        await self._send.send(self._pending)

    async def complete(self, data: bytes, *, stream: bool) -> None:  # noqa: ARG002 - a Reply's
        """Hand over the rest."""
        await self._send.send(data)

    async def fail(self, outcome: Outcome, error: bytes) -> None:
        """Nothing to send: the outcome is raised from the iteration."""

    def abort(self) -> None:
        """Nothing to cut."""


class Call:
    """One request of the application; an async context manager around an async iterator.

    The request runs in a task of this block, under the caller's cancel scopes. When the block
    is left, however it is left, the request has ended and holds nothing.
    """

    def __init__(
        self,
        router: Router,
        request: Mapping[str, object],
        route: Route | None,
        trace: Mapping[str, str] | None,
    ) -> None:
        self._router = router
        self._trace = trace or {}
        self._request = request
        self._route = route or (Route.CHAT if "messages" in request else Route.COMPLETIONS)
        self._splitter = EventSplitter()
        self._events: list[bytes] = []
        self.outcome: Outcome | None = None
        """How the request ended, once it has."""

    async def __aenter__(self) -> Self:
        # Bound 0: a slow consumer holds the relay back, as a slow HTTP client would.
        send, self._receive = trio.open_memory_channel[bytes](0)
        self._manager = trio.open_nursery()
        self._nursery = await self._manager.__aenter__()
        self._life = self._router.open_life(
            self._route, arrival=trio.current_time(), context=read_context(_lines(self._trace))
        )
        self._nursery.start_soon(self._run, send)
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._nursery.cancel_scope.cancel(reason="the application left the request's block")
        await leave_nursery(self._manager, exc)

    async def _run(self, send: trio.MemorySendChannel[bytes]) -> None:
        async with send:
            self.outcome = await self._life.run(ChannelReply(send), self._ingress)

    async def _ingress(self) -> CompletionRequest:
        try:
            body = msgspec.json.encode(self._request)
        except (TypeError, ValueError, msgspec.MsgspecError, RecursionError) as error:
            raise InvalidRequest(f"The request cannot be written as JSON: {error}") from error
        return openai.parse_request(self._route, body, model=self._router.config.model)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> dict[str, Any]:
        """The next event, decoded. Raises `RequestFailed` if the request did not complete."""
        while not self._events:
            data = await self._next_bytes()
            self._events = [
                payload
                for event in self._splitter.feed(data)
                if (payload := event_data(event)) is not None
            ]
            self._events.reverse()
        payload = self._events.pop()
        if payload == _DONE:
            raise StopAsyncIteration
        return self._decode(payload)

    async def whole(self) -> dict[str, Any]:
        """The whole answer of a request that is not streamed."""
        return self._decode(await self._next_bytes())

    async def _next_bytes(self) -> bytes:
        try:
            return await self._receive.receive()
        except trio.EndOfChannel:
            raise self._failure() from None

    def _decode(self, payload: bytes) -> dict[str, Any]:
        """Events after the first token are relayed unread, so this one may be anything."""
        try:
            return msgspec.json.decode(payload, type=dict[str, Any])
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            outcome = outcomes.malformed_event()
            self._life.spoil(outcome)
            raise RequestFailed(outcome) from None

    def _failure(self) -> NarwhalError | StopAsyncIteration:
        if self.outcome is None or self.outcome.code is None:
            return StopAsyncIteration()
        return RequestFailed(self.outcome)
