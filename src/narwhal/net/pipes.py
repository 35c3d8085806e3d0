"""One connection in memory: two bounded pipes, and the two ends that write and read them."""

from __future__ import annotations

from collections import deque
from math import inf
from typing import TYPE_CHECKING

import attrs
import trio
from attrs import validators
from trio.lowlevel import ParkingLot, checkpoint, checkpoint_if_cancelled

from narwhal.net.streams import RECEIVE_BYTES, ByteStream

if TYPE_CHECKING:
    from collections.abc import Callable


@attrs.frozen(kw_only=True)
class Link:
    """What lies between the two ends of a connection, the same in both directions."""

    delay_s: float = attrs.field(default=0.0, validator=validators.ge(0))
    """How long every byte is on its way; `inf` loses all of them."""
    bytes_per_s: float = attrs.field(default=inf, validator=validators.gt(0))
    """What goes through in a second; what is written faster waits its turn."""
    segment_bytes: int | None = attrs.field(
        default=None, validator=validators.optional(validators.ge(1))
    )
    """The most that arrives at once: a longer write comes in pieces of this size, each when its
    last byte has gone through. None: a write arrives whole."""


DIRECT = Link()
"""Nothing in between: what is written is there."""


async def _park(lot: ParkingLot, until: float) -> None:
    """Park until somebody unparks, or until a time at which something in flight arrives."""
    if until == inf:
        await lot.park()
    else:
        with trio.CancelScope(deadline=until):
            await lot.park()


class _Pipe:
    """One direction of a connection: what was written and not yet read, with arrival times."""

    __slots__ = (
        *("abandoned", "capacity", "chunks", "delay", "ended", "free_at", "link"),
        *("readers", "reset_at", "size"),
    )

    def __init__(self, capacity: int, link: Link) -> None:
        self.capacity = capacity
        self.link = link
        self.delay = link.delay_s
        self.free_at = -inf  # when the last byte so far has gone through
        self.chunks: deque[tuple[float, bytes]] = deque()  # b"" is the end of file
        self.size = 0
        self.ended = False  # the writing end has said that it is done
        self.abandoned = False  # the reading end is closed
        self.reset_at = inf  # when the reading end learns that the connection was reset
        self.readers = ParkingLot()

    def put(self, data: bytes) -> None:
        step = self.link.segment_bytes or len(data) or 1
        for at in range(0, max(len(data), 1), step):
            segment = data[at : at + step]
            sent = max(self.free_at, trio.current_time())
            self.free_at = sent + len(segment) / self.link.bytes_per_s
            self.chunks.append((self.free_at + self.delay, segment))
        self.size += len(data)
        self.readers.unpark_all()

    def arrival(self) -> float:
        """When there is, or was, next something to tell the reader."""
        return min(self.chunks[0][0], self.reset_at) if self.chunks else self.reset_at

    def take(self, max_bytes: int) -> bytes | None:
        """Take all that has arrived, however it was written, as a socket would."""
        now = trio.current_time()
        taken: list[bytes] = []
        room = max_bytes
        while room and self.chunks and self.chunks[0][0] <= now:
            arrived, data = self.chunks[0]
            if not data:
                break
            self.chunks.popleft()
            if len(data) > room:
                self.chunks.appendleft((arrived, data[room:]))
                data = data[:room]
            taken.append(data)
            room -= len(data)
        if taken:
            self.size -= max_bytes - room
            return b"".join(taken)
        if self.chunks and self.chunks[0][0] <= now:
            return b""
        if self.reset_at <= now:
            raise trio.BrokenResourceError("the peer reset the connection")
        return None


class MemoryStream(ByteStream):
    """One end of a connection of a `MemoryNetwork`."""

    __slots__ = ("_closed", "_in", "_on_close", "_other", "_writers", "local", "peer")

    def __init__(
        self,
        incoming: _Pipe,
        local: tuple[str, int],
        peer: tuple[str, int],
        on_close: Callable[[], None],
    ) -> None:
        self._on_close = on_close
        self._in = incoming
        self._other: MemoryStream
        self._writers = ParkingLot()  # tasks of this end that wait for room at the other
        self._closed = False
        self.local = local
        self.peer = peer

    def __repr__(self) -> str:
        return f"<MemoryStream {self.local} to {self.peer}{' closed' if self._closed else ''}>"

    async def receive_some(self, max_bytes: int = RECEIVE_BYTES) -> bytes:  # noqa: D102
        self._check_open()
        if self._in.arrival() <= trio.current_time():
            await checkpoint()
        while True:
            data = self.receive_nowait(max_bytes)
            if data is not None:
                return data
            await _park(self._in.readers, self._in.arrival())

    def receive_nowait(self, max_bytes: int = RECEIVE_BYTES) -> bytes | None:  # noqa: D102
        self._check_open()
        data = self._in.take(max_bytes)
        if data:
            self._other._writers.unpark_all()  # noqa: SLF001 - the two ends are one object
        return data

    async def send_all(self, data: bytes) -> None:  # noqa: D102
        sent = self.send_nowait(data)
        if sent < len(data):
            await checkpoint_if_cancelled()
        while sent < len(data):
            await _park(self._writers, self._in.reset_at)
            sent += self.send_nowait(data[sent:])

    def send_nowait(self, data: bytes) -> int:  # noqa: D102
        self._check_open()
        out = self._other._in  # noqa: SLF001 - the two ends are one object
        if out.ended or self._in.reset_at <= trio.current_time():
            raise trio.BrokenResourceError("the connection is broken")
        if out.abandoned:
            self._learn_of_reset(2 * out.delay)
            return min(len(data), out.capacity)
        size = min(len(data), out.capacity - out.size)
        if size > 0:
            out.put(data[:size])
        return max(size, 0)

    def close(self, *, reset: bool = False) -> None:  # noqa: D102
        if self._closed:
            return
        self._closed = True
        self._on_close()
        if reset or self._in.size:
            self._other._learn_of_reset(self._in.delay)  # noqa: SLF001
        else:
            self._end()
        self._in.abandoned = True
        self._in.readers.unpark_all()
        self._writers.unpark_all()
        self._other._writers.unpark_all()  # noqa: SLF001

    def send_eof(self) -> None:  # noqa: D102
        if not self._closed:
            self._end()

    def stale(self) -> bool:  # noqa: D102
        return self._closed or self._in.arrival() <= trio.current_time()

    @property
    def closed(self) -> bool:
        """Whether it was closed at this end."""
        return self._closed

    def break_down(self) -> None:
        """Let both ends see a reset, now, whoever would have sent what."""
        for end in (self, self._other):
            end._learn_of_reset(0.0)  # noqa: SLF001 - the two ends are one object

    def sever(self, *, give_up_s: float = inf) -> None:
        """Let the network between the two ends vanish, without a word to either.

        What is sent from now on is lost, ends of file and resets as well; what is on its way
        still arrives. Each end sees its connection reset after `give_up_s` seconds, as when a
        kernel has repeated itself often enough.
        """
        for end in (self, self._other):
            end._in.delay = inf  # noqa: SLF001 - the two ends are one object
            end._learn_of_reset(give_up_s)  # noqa: SLF001

    def _end(self) -> None:
        out = self._other._in  # noqa: SLF001 - the two ends are one object
        if not out.ended:
            out.ended = True
            out.put(b"")

    def _learn_of_reset(self, after: float) -> None:
        self._in.reset_at = min(self._in.reset_at, trio.current_time() + after)
        self._in.readers.unpark_all()
        self._writers.unpark_all()

    def _check_open(self) -> None:
        if self._closed:
            raise trio.ClosedResourceError("the connection was closed at this end")


def connected_pair(
    client: tuple[str, int],
    server: tuple[str, int],
    *,
    capacity: int,
    link: Link,
    on_close: Callable[[], None],
) -> tuple[MemoryStream, MemoryStream]:
    """Two ends of one connection, each direction holding at most `capacity` bytes.

    `on_close` is called once for each end, when that is closed.
    """
    one = MemoryStream(_Pipe(capacity, link), client, server, on_close)
    two = MemoryStream(_Pipe(capacity, link), server, client, on_close)
    one._other, two._other = two, one  # noqa: SLF001 - made together
    return one, two
