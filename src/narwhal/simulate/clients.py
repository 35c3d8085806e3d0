"""Clients over HTTP: they come, ask, read at their own pace, and leave when they like."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import trio

from narwhal.simulate.asks import pieces
from narwhal.simulate.network import ROUTER
from narwhal.simulate.responses import ResponseParser

if TYPE_CHECKING:
    from narwhal.net import MemoryStream
    from narwhal.simulate.asks import Ask, Visit
    from narwhal.simulate.network import SimulatedNetwork
    from narwhal.simulate.trace import Trace

# A client that reads no more looks this often, and this many times, whether it was cut off.
_LOOK_S = 0.25
_LOOKS = 2000


class Visitor:
    """Plays one client connection."""

    def __init__(self, network: SimulatedNetwork, visit: Visit, trace: Trace) -> None:
        self._network = network
        self._visit = visit
        self._trace = trace
        self._parser = ResponseParser()
        self._news = trio.Event()
        self._over = False
        self._half = False
        self._stream: MemoryStream
        self._asked: list[Ask] = []

    async def visit(self) -> None:
        """Come, and return when it is over: answered, left, or cut off."""
        await trio.sleep(self._visit.at)
        try:
            self._stream = await self._network.connect(*ROUTER)
        except OSError:
            self._trace.add("turned away", client=self._visit.asks[0].name)
            return
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._read)
                nursery.start_soon(self._leave)
                await self._ask()
                nursery.cancel_scope.cancel(reason="all answered")
        finally:
            self._stream.close()

    # Asking

    async def _ask(self) -> None:
        for n, ask in enumerate(self._visit.asks):
            if self._over or self._half:
                break
            ask.begun_at = trio.current_time()
            self._asked.append(ask)
            self._trace.add("asks", client=ask.name, path=ask.path)
            await self._send(ask)
            if not self._visit.pipelined:
                await self._answered(n + 1)
                await trio.sleep(self._visit.keep_pause)
        # Whoever closed the sending side waits for what the other end makes of that.
        await self._answered(len(self._asked) + self._half)

    async def _send(self, ask: Ask) -> None:
        size = max(1, -(-len(ask.wire) // ask.pieces))
        sent = 0
        try:
            for piece in pieces(ask.wire, size):
                sent += len(piece)
                ask.head_begun = sent >= ask.body_at
                await self._stream.send_all(piece)
                if ask.pause:
                    await trio.sleep(ask.pause)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return

    async def _answered(self, count: int) -> None:
        while not self._over and self._parser.answered < count:
            await self._news.wait()
            self._news = trio.Event()

    # Reading

    async def _read(self) -> None:
        visit = self._visit
        total = 0
        try:
            while visit.read_stops_at is None or total < visit.read_stops_at:
                data = await self._stream.receive_some(visit.read_bytes)
                if not data:
                    break
                total += len(data)
                self._parser.feed(data)
                self._match()
                if visit.read_pause:
                    await trio.sleep(visit.read_pause)
            else:
                await self._sulk()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        self._end(left=False)

    async def _sulk(self) -> None:
        """Read nothing until the router has cut the connection; look at it now and then."""
        for _ in range(_LOOKS):
            await trio.sleep(_LOOK_S)
            self._stream.send_nowait(b"")

    def _match(self) -> None:
        now = trio.current_time()
        for ask, response in zip(self._asked, self._parser.responses, strict=False):
            if ask.response is None:
                ask.response = response
                self._trace.add("head", client=ask.name, status=response.status)
            if ask.output_at is None and response.body:
                ask.output_at = now
            if response.complete and ask.ended_at is None:
                ask.ended_at = now
                self._tell("answered", ask)
        self._news.set()

    def _tell(self, event: str, ask: Ask) -> None:
        body = b"" if ask.response is None else ask.response.body
        digest = hashlib.sha256(body).hexdigest()[:16]
        self._trace.add(event, client=ask.name, bytes=len(body), sha256=digest)

    # Leaving

    def _end(self, *, left: bool) -> None:
        now = trio.current_time()
        for ask in self._asked:
            if ask.ended_at is None:
                ask.ended_at = now
                ask.left_at = now if left else ask.left_at
                self._tell("left" if left else "cut off", ask)
        self._over = True
        self._news.set()

    async def _leave(self) -> None:
        if self._visit.leaves is None:
            return
        how, after = self._visit.leaves
        await trio.sleep(after)
        self._trace.add("leaves", client=self._visit.asks[0].name, how=how)
        if how == "half-close":
            self._half = True  # asks no more, but reads on
            self._stream.send_eof()
            for ask in self._asked:
                if ask.ended_at is None:
                    ask.left_at = trio.current_time()
            return
        if how == "vanish":
            self._stream.sever()
        self._end(left=True)
        self._stream.close(reset=how == "reset")
