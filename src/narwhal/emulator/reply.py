"""Answers that a fault's script can stop, bend and break at any point."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

import attrs
import trio

from narwhal.emulator.answers import whole_answer
from narwhal.emulator.bodies import BUSY, FAILED, Refusal
from narwhal.emulator.chunks import DONE, Chunks
from narwhal.emulator.faults import Late, NoDone, Pace, Tail
from narwhal.emulator.link import Pen, pen_for

if TYPE_CHECKING:
    from narwhal.emulator.faults import Fault
    from narwhal.emulator.link import Link
    from narwhal.emulator.work import Work

JSON_TYPE = "application/json"
SSE_TYPE = "text/event-stream; charset=utf-8"
OK = 200


class Reply(ABC):
    """An answer in the making. Once its link is over, nothing more happens to it."""

    def __init__(self, link: Link, content_type: str, fault: Fault | None) -> None:
        self.link = link
        self.overrides: dict[str, str] = {}
        """Headers that a script has set."""
        self.complete = False
        """Whether the request was answered in full."""
        self.pen: Pen = pen_for(link, fault)
        self._content_type = content_type

    async def start(self, status: int, **headers: str) -> None:
        """Set status and headers; names with `_` for `-`."""
        every = {"server": "uvicorn", "vary": "Origin"}
        if self._content_type:
            every["content-type"] = self._content_type
        every |= {name.replace("_", "-"): value for name, value in headers.items()}
        await self.link.start(status, every | self.overrides)

    async def head(self) -> None:
        """Send status 200 and the headers now, if nothing was sent yet."""
        if not self.link.started:
            await self.start(OK)
            await self.link.write(b"")

    async def answer(self, status: int, body: bytes, content_type: str = JSON_TYPE) -> None:
        """Answer with a status and a body and be done; too late after the head: close then."""
        if self.link.started:
            self.link.abort()
            return
        await self.start(status, content_type=content_type, content_length=str(len(body)))
        await self.link.end(body)

    async def send(self, data: bytes) -> None:
        """One write of these bytes."""
        await self.head()
        await self.pen.write(data)

    async def end(self) -> None:
        """End the HTTP message here."""
        await self.head()
        await self.pen.finish()
        await self.link.end()

    async def close(self, *, reset: bool = False) -> None:
        """Close the connection here."""
        await self.pen.finish()
        self.link.abort(reset=reset)

    @abstractmethod
    async def tokens(self, count: int) -> None:
        """Go on by `count` tokens."""

    @abstractmethod
    async def cut(self) -> None:
        """Send half of what comes next, and close."""

    @abstractmethod
    async def malformed(self) -> None:
        """Send what is not JSON in the place of JSON."""

    @abstractmethod
    async def error(self, message: str) -> None:
        """Report an engine error in the way that is left."""

    @abstractmethod
    async def rest(self) -> None:
        """Send all that is left, and end."""

    def huge(self, size: int) -> None:  # noqa: B027 - answers without text have none to enlarge
        """Make the next text `size` bytes long."""


@attrs.frozen
class Body:
    """A whole answer."""

    status: int
    content: bytes


class FixedReply(Reply):
    """An answer whose body exists at once."""

    def __init__(
        self,
        link: Link,
        fault: Fault | None,
        content: bytes,
        *,
        status: int = OK,
        content_type: str = JSON_TYPE,
    ) -> None:
        super().__init__(link, content_type, fault)
        self._body = Body(status, content)
        self._broken = False

    async def body(self) -> Body:
        """Wait for the body."""
        return self._body

    async def tokens(self, count: int) -> None:
        """There are no tokens to wait for."""

    async def cut(self) -> None:
        """Announce the whole body, send half of it, and close."""
        content = await self._started()
        await self.pen.write(content[: len(content) // 2])
        await self.close()

    async def malformed(self) -> None:
        """Answer with the first half of the body, as if it were all."""
        self._broken = True

    async def error(self, message: str) -> None:
        """Answer 500."""
        refusal = attrs.evolve(FAILED, message=message)
        await self.answer(refusal.status, refusal.body)

    async def rest(self) -> None:
        """Wait for the body, and send it."""
        body = await self.body()
        if body.status != OK:
            await self.answer(body.status, body.content)
            return
        await self.pen.write(await self._started())
        await self.pen.finish()
        await self.link.end()
        self.complete = True

    async def _started(self) -> bytes:
        """The content, after the head has announced its length (if the head is not out yet)."""
        body = await self.body()
        content = body.content
        if self._broken:
            content = content[: len(content) // 2]
        if not self.link.started:
            await self.start(body.status, content_length=str(len(content)))
        return content


class WholeReply(FixedReply):
    """A completion that is not streamed."""

    def __init__(self, link: Link, fault: Fault | None, work: Work) -> None:
        super().__init__(link, fault, b"")
        self._work = work
        self._wanted = 0

    async def body(self) -> Body:
        """Wait until the engine has all tokens, or has failed."""
        refusal = await self._work.begin() or await self._work.finish()
        if refusal is not None:
            return Body(refusal.status, refusal.body)
        work = self._work
        content = whole_answer(work.envelope, work.job.choices, work.kv_transfer_params())
        return Body(OK, content)

    async def tokens(self, count: int) -> None:
        """Wait until the engine has produced that many more tokens."""
        self._wanted += count
        job = self._work.job
        if await self._work.begin() is not None:
            return
        while job.failure is None and not job.finished:
            if sum(sequence.produced for sequence in job.sequences) >= self._wanted:
                return
            await job.progress()

    def huge(self, size: int) -> None:
        """Make the whole text `size` bytes long."""
        self._work.envelope.huge = size


class StreamReply(Reply):
    """A completion as a stream of server-sent events, one for each token.

    All tokens that are there go out in one write, as many as came while the client did not
    read; an engine that is read at once writes one event for each step.
    """

    def __init__(self, link: Link, fault: Fault | None, work: Work) -> None:
        super().__init__(link, SSE_TYPE, fault)
        self._work = work
        self._chunks = Chunks(work.envelope, work.job.choices)
        self._opened = False
        pace: Pace | None = fault.find(Pace) if fault is not None else None
        self._pace = pace.seconds if pace is not None else 0.0
        self._done = fault is None or not fault.has(NoDone)
        late: Late | None = fault.find(Late) if fault is not None else None
        self._late = late.seconds if late is not None else 0.0
        more: Tail | None = fault.find(Tail) if fault is not None else None
        self._more = more.data if more is not None else b""

    async def tokens(self, count: int) -> None:
        """Send the next `count` tokens, an event and a write for each; 0: what precedes them."""
        if await self._open():
            for _ in range(count):
                event = await self._next()
                if not event:
                    return
                await self.pen.write(event)

    async def cut(self) -> None:
        """Send half of the next token's event, and close."""
        if await self._open():
            event = await self._next() or DONE
            if not self.link.over:
                await self.pen.write(event[: len(event) // 2])
                await self.close()

    async def malformed(self) -> None:
        """Send an event that stops in the middle of its JSON."""
        if await self._open():
            await self.pen.write(self._chunks.malformed())

    async def error(self, message: str) -> None:
        """Send an error event and `[DONE]`, and end."""
        if await self._open():
            await self._fail(attrs.evolve(FAILED, message=message))

    async def rest(self) -> None:
        """Send all tokens that are left as they come, then usage and `[DONE]`."""
        if not await self._open():
            return
        while events := await self._some():
            await self.pen.write(events)
        if self.link.over:
            return
        tail = self._chunks.usage() + (DONE if self._done else b"")
        await self.pen.write(tail + self._more)
        await self.pen.finish()
        if self._late:
            await trio.sleep(self._late)
        await self.link.end()
        self.complete = True

    def huge(self, size: int) -> None:
        """Make the next token's text `size` bytes long."""
        self._work.envelope.huge = size

    async def _open(self) -> bool:
        """Send the head and what precedes the first token; false if that was the end of it."""
        refusal = await self._work.begin()
        if refusal is BUSY and not self.link.started:
            await self.answer(refusal.status, refusal.body)
            return False
        await self.head()
        if not self._opened:
            self._opened = True
            opening = self._chunks.opening()
            if opening:
                await self.pen.write(opening)
        if refusal is not None:
            await self._fail(refusal)
        return not self.link.over

    async def _next(self) -> bytes:
        """Wait for the next token's event; empty after the last, or when the engine has died."""
        job = self._work.job
        while (choice := job.ready()) is None:
            if job.failure is not None:
                await self._fail(job.failure)
                return b""
            if job.finished:
                return b""
            await job.progress()
        if self._pace:
            await trio.sleep(self._pace)
        return self._chunks.token(choice)

    async def _some(self) -> bytes:
        """Wait for the next event, and take those that are there with it."""
        first = await self._next()
        if not first or self._pace:
            return first
        events = [first]
        while (choice := self._work.job.ready()) is not None:
            events.append(self._chunks.token(choice))
        return b"".join(events)

    async def _fail(self, refusal: Refusal) -> None:
        """The in-band form of an error."""
        await self.pen.write(refusal.event + DONE)
        await self.end()
