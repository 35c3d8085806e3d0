"""Servers that do not do what HTTP says: for engine connections that are bad from the start."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import trio

from narwhal.net import ByteStream, Listener
from narwhal.net.streams import RECEIVE_BYTES

if TYPE_CHECKING:
    import random
    from collections.abc import Awaitable, Callable

_HABITS = ("cut", "cut", "cut", "close", "reset", "mute", "deaf", "early", "garbage", "late reset")
_EARLY = b'HTTP/1.1 %d X\r\ncontent-length: 39\r\n\r\n{"error":{"message":"e","code":"none"}}'
_GARBAGE = (
    b"\x00\xff" * 50,
    b"HTTP/1.1 abc\r\n\r\n",
    b"\r\n\r\n",
    b"HTTP/1.1 103 Hints\r\nx: y\r\n\r\n",
)


class UnrulyListener(Listener):
    """Accepts for a server, and keeps a share of the connections for itself.

    `spawn` starts a task in which such a connection is maltreated, and which ends with it.
    """

    __slots__ = ("_listener", "_rng", "_share", "_spawn", "_trace", "address")

    def __init__(
        self,
        listener: Listener,
        *,
        share: float,
        rng: random.Random,
        spawn: Callable[[Callable[[], Awaitable[None]]], None],
        trace: Callable[..., None],
    ) -> None:
        self._listener = listener
        self._share = share
        self._rng = rng
        self._spawn = spawn
        self._trace = trace
        self.address = listener.address

    async def accept(self) -> ByteStream:  # noqa: D102
        while True:
            if (stream := self._let_in(await self._listener.accept())) is not None:
                return stream

    def accept_nowait(self) -> ByteStream | None:  # noqa: D102
        while (stream := self._listener.accept_nowait()) is not None:
            if (kept := self._let_in(stream)) is not None:
                return kept
        return None

    def close(self) -> None:  # noqa: D102
        self._listener.close()

    def _let_in(self, stream: ByteStream) -> ByteStream | None:
        rng = self._rng
        if rng.random() >= self._share:
            return stream
        habit = rng.choice(_HABITS)
        self._trace("line", fault=habit)
        if habit == "cut":
            most = rng.choice((40, 300, 3000))
            return CutStream(stream, rng.randrange(most), reset=rng.random() < 0.5)
        self._spawn(partial(self._maltreat, stream, habit))
        return None

    async def _maltreat(self, stream: ByteStream, habit: str) -> None:
        try:
            await getattr(self, f"_{habit.replace(' ', '_')}")(stream)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        finally:
            stream.close(reset="reset" in habit)

    async def _close(self, stream: ByteStream) -> None:
        """At once."""

    _reset = _close

    async def _mute(self, stream: ByteStream) -> None:
        while await stream.receive_some():
            pass

    async def _deaf(self, stream: ByteStream) -> None:  # noqa: ARG002 - that is the point
        await trio.sleep(self._rng.choice((0.1, 3.0, 30.0)))

    async def _late_reset(self, stream: ByteStream) -> None:
        await stream.receive_some(self._rng.choice((1, 100)))
        await trio.sleep(self._rng.choice((0.0, 0.1)))

    async def _early(self, stream: ByteStream) -> None:
        await stream.receive_some(1)
        await stream.send_all(_EARLY % self._rng.choice((413, 400, 503)))
        await trio.sleep(self._rng.choice((0.0, 0.05)))

    async def _garbage(self, stream: ByteStream) -> None:
        await stream.receive_some()
        await stream.send_all(self._rng.choice(_GARBAGE))
        await trio.sleep(self._rng.choice((0.0, 0.5, 10.0)))


class CutStream(ByteStream):
    """A connection that breaks off once so many bytes were sent on it, wherever that is."""

    __slots__ = ("_left", "_reset", "_stream", "local", "peer")

    def __init__(self, stream: ByteStream, after_bytes: int, *, reset: bool) -> None:
        self._stream = stream
        self._left = after_bytes
        self._reset = reset
        self.local = stream.local
        self.peer = stream.peer

    async def receive_some(self, max_bytes: int = RECEIVE_BYTES) -> bytes:  # noqa: D102
        return await self._stream.receive_some(max_bytes)

    def receive_nowait(self, max_bytes: int = RECEIVE_BYTES) -> bytes | None:  # noqa: D102
        return self._stream.receive_nowait(max_bytes)

    async def send_all(self, data: bytes) -> None:  # noqa: D102
        await self._stream.send_all(data[: self._left])
        self._sent(data, min(len(data), self._left))

    def send_nowait(self, data: bytes) -> int:  # noqa: D102
        sent = self._stream.send_nowait(data[: self._left])
        self._sent(data, sent)
        return sent

    def _sent(self, data: bytes, size: int) -> None:
        self._left -= size
        if not self._left and size < len(data):
            self._stream.close(reset=self._reset)

    def close(self, *, reset: bool = False) -> None:  # noqa: D102
        self._stream.close(reset=reset)

    def send_eof(self) -> None:  # noqa: D102
        self._stream.send_eof()

    def stale(self) -> bool:  # noqa: D102
        return self._stream.stale()
