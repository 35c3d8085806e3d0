"""One request and its response, on a connection of a pool."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

import trio

from narwhal.model import EngineClosed, EngineProtocolError, ResponseTooLarge
from narwhal.net.response import ResponseReader

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from narwhal.net.pool import ConnectionPool
    from narwhal.net.streams import ByteStream


class Exchange:
    """A request that was sent, and the response to it.

    A synchronous context manager: leaving the block closes it, whatever is being cancelled. Once
    the response is complete its connection is back in the pool, before `close`. Cancelling any
    method loses nothing and leaves the exchange usable, with one exception: a request that is
    being sent once more, see `response`, cannot be gone on with, and the cancel closes it.
    """

    __slots__ = (
        "_before_write",
        "_holding",
        "_pool",
        "_reader",
        "_replayable",
        "_request",
        "_stream",
        "_write_failed",
        "request_bytes",
        "response_bytes",
        "reused",
        "unsent",
    )

    def __init__(
        self,
        pool: ConnectionPool,
        stream: ByteStream,
        request: bytes,
        *,
        reused: bool,
        replayable: bool,
        before_write: Callable[[], None] | None = None,
    ) -> None:
        self._before_write = before_write
        self._pool = pool
        self._stream = stream
        self._holding = True  # a slot of the pool, and `_stream` unless that is being replaced
        self._request = request
        self._replayable = replayable
        self._write_failed = False
        self._reader = self._new_reader()
        self.unsent = True
        """Whether some of the request is not with the kernel yet."""
        self.reused = reused
        """Whether its connection had carried an exchange before."""
        self.request_bytes = 0
        """Bytes of the request handed to the kernel; at least this many if a write failed."""
        self.response_bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "finished" if self.finished else "open" if self._holding else "closed"
        return f"<Exchange with {self._pool.name}: {state}, status {self.status or None}>"

    @property
    def status(self) -> int:
        """The status of the response; 0 before `response` returned."""
        return self._reader.status

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        """The response's headers, names in lower case."""
        return self._reader.headers

    @property
    def finished(self) -> bool:
        """Whether all of the response has been received."""
        return self._reader.complete

    def transmit_nowait(self) -> None:
        """Write what the kernel takes of the request; part of `ConnectionPool.send_nowait`.

        Then `transmit` has to be awaited if it is still `unsent`.
        """
        if self._before_write is not None:
            try:
                self._before_write()
            except BaseException:
                self._holding = False  # nothing was written: the connection is as good as before
                self._pool.release(self._stream)
                raise
        try:
            self.request_bytes = sent = self._stream.send_nowait(self._request)
            self.unsent = sent < len(self._request)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            self._write_failed = self.unsent = True

    async def transmit(self) -> None:
        """Write the rest of the request; part of `ConnectionPool.send`. Does nothing without one.

        If writing fails, the server may have answered before it closed, so the answer is looked
        for before the failure is reported. A cancel, or an error, closes the exchange.
        """
        try:
            if self.unsent and not self._write_failed:
                await self._transmit_rest()
            while self._write_failed and not self._reader.head_complete:
                if not await self._receive():
                    await self._replay()
        except BaseException:
            self.close()
            raise
        self.unsent = False

    async def _transmit_rest(self) -> None:
        sent = self.request_bytes
        self.request_bytes = max(sent, 1)  # from here on some of it may be out
        try:
            await self._stream.send_all(self._request[sent:] if sent else self._request)
            self.request_bytes = len(self._request)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            self._write_failed = True

    async def response(self) -> int:
        """Wait for the head of the response and return its status.

        A *reused* connection that turns out to be dead before it brought a response byte says
        nothing about the server, which closes idle connections when it likes. The request is
        then sent once more on a fresh connection, if it may be sent twice or nothing of it was.
        Raises `EngineClosed`, `EngineProtocolError`, and on that way `ConnectFailed`.
        """
        while not self._reader.head_complete:
            if not await self._receive():
                await self._replay()
        self._request = b""  # can be large, and is not needed any more
        return self._reader.status

    async def read(self) -> bytes:
        """Wait for more of the body: all that one receive brings; `b""` at its end.

        Raises `EngineClosed` if the connection ends first, `EngineProtocolError`.
        """
        reader = self._reader
        while not reader.body:
            if reader.complete:
                return b""
            if not self._holding:
                raise self._lost()
            try:
                data = await self._stream.receive_some()
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                raise self._lost() from None
            if not data:
                raise self._lost()
            self._feed(data)
        return reader.take()

    def read_nowait(self) -> bytes | None:
        """Return body bytes that are there already: `None` for nothing yet, `b""` at the end."""
        reader = self._reader
        while not reader.body:
            if reader.complete:
                return b""
            if not self._holding:
                raise self._lost()
            try:
                data = self._stream.receive_nowait()
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                raise self._lost() from None
            if data is None:
                return None
            if not data:
                raise self._lost()
            self._feed(data)
        return reader.take()

    def rest_nowait(self) -> bytes | None:
        """Return the rest of the body if all of it is there already, else `None`."""
        parts: list[bytes] = []
        while (data := self.read_nowait()) is not None:
            if not data:
                return b"".join(parts)
            parts.append(data)
        return None

    async def read_all(self, limit: int) -> bytes:
        """Return the rest of the body; over `limit` bytes, close and raise `ResponseTooLarge`."""
        parts: list[bytes] = []
        size = 0
        while not self._reader.complete or self._reader.body:
            data = await self.read()
            parts.append(data)
            size += len(data)
            if size > limit:
                self.close()
                raise ResponseTooLarge(f"the answer is larger than {limit} bytes")
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def close(self) -> None:
        """End the exchange now. An incomplete one takes its connection with it. Idempotent."""
        if self._holding:
            self._holding = False
            self._reader.close()
            self._pool.discard(self._stream)

    async def _receive(self) -> bool:
        """Receive and parse once; false if the connection ended instead."""
        if not self._holding:
            return False
        try:
            data = await self._stream.receive_some()
        except trio.BrokenResourceError:
            return False
        except trio.ClosedResourceError:
            raise self._lost() from None
        if not data:
            return False
        self._feed(data)
        return True

    def _feed(self, data: bytes) -> None:
        self.response_bytes += len(data)
        try:
            self._reader.feed(data)
        except EngineProtocolError:
            self.close()
            raise
        if self._reader.complete and self._holding:
            self._holding = False
            if self._reader.reusable and not self._write_failed:
                self._pool.release(self._stream)
            else:
                self._pool.discard(self._stream)

    async def _replay(self) -> None:
        """Send the request once more, or raise because it must not be."""
        unanswered = self._holding and self.reused and self.response_bytes == 0
        if not unanswered or not (self._replayable or self.request_bytes == 0):
            raise self._lost()
        self.reused = False
        self._write_failed = False
        self.request_bytes = 0
        self._pool.replays += 1
        try:
            self._stream = await self._pool.replace(self._stream)
            self._reader.close()
            self._reader = self._new_reader()
            self.transmit_nowait()
            await self.transmit()
        except BaseException:
            self.close()  # there is no connection, or one with a part of the request on it
            raise

    def _new_reader(self) -> ResponseReader:
        head_only = self._request.startswith(b"HEAD ")
        return ResponseReader(max_head_bytes=self._pool.max_head_bytes, head_only=head_only)

    def _lost(self) -> EngineClosed:
        if self._pool.closed or not self._holding:
            message = f"the connection to {self._pool.name} was closed at this end"
        elif self.response_bytes:
            message = f"{self._pool.name} closed the connection in the middle of its answer"
        else:
            message = f"{self._pool.name} closed the connection without an answer"
        self.close()
        return EngineClosed(
            message,
            request_bytes=self.request_bytes,
            response_bytes=self.response_bytes,
        )
