"""A network in memory: the same streams and listeners, with no sockets, for virtual time.

It behaves like TCP on one host where that decides whether code is right: buffers are bounded,
so a peer that does not read makes a writer wait; ends of file, resets and refused connections
look as they do on sockets; closing a connection with unread bytes resets it; what was written to
a peer that had already closed is lost without a word, and the next call learns of it.

Everything happens in the order in which tasks ask for it, so a run under a seeded Trio scheduler
and a mock clock repeats exactly.
"""

from __future__ import annotations

import errno
import itertools
import os
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from math import inf

import trio
from trio.lowlevel import ParkingLot, checkpoint, checkpoint_if_cancelled

from narwhal.net.streams import RECEIVE_BYTES, ByteStream, Listener

Latency = Callable[[str, int], float]
"""Given host and port, the one-way delay in seconds of a new connection; `inf` drops packets."""

FIRST_LISTENING_PORT = 20000
EPHEMERAL_PORTS = range(49152, 65536)


def _os_error(code: int) -> OSError:
    return OSError(code, os.strerror(code))


async def _park(lot: ParkingLot, until: float) -> None:
    """Park until somebody unparks, or until a time at which something in flight arrives."""
    if until == inf:
        await lot.park()
    else:
        with trio.CancelScope(deadline=until):
            await lot.park()


class _Pipe:
    """One direction of a connection: what was written and not yet read, with arrival times."""

    __slots__ = ("abandoned", "capacity", "chunks", "delay", "ended", "readers", "reset_at", "size")

    def __init__(self, capacity: int, delay: float) -> None:
        self.capacity = capacity
        self.delay = delay
        self.chunks: deque[tuple[float, bytes]] = deque()  # b"" is the end of file
        self.size = 0
        self.ended = False  # the writing end has said that it is done
        self.abandoned = False  # the reading end is closed
        self.reset_at = inf  # when the reading end learns that the connection was reset
        self.readers = ParkingLot()

    def put(self, data: bytes) -> None:
        self.chunks.append((trio.current_time() + self.delay, data))
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

    __slots__ = ("_closed", "_in", "_network", "_other", "_writers", "local", "peer")

    def __init__(
        self,
        network: MemoryNetwork,
        incoming: _Pipe,
        local: tuple[str, int],
        peer: tuple[str, int],
    ) -> None:
        self._network = network
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
        self._network.open_streams -= 1
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


class MemoryListener(Listener):
    """Where a `MemoryNetwork` delivers connections to one address."""

    __slots__ = ("_backlog", "_closed", "_lot", "_network", "_queue", "_room", "address")

    def __init__(self, network: MemoryNetwork, address: tuple[str, int], backlog: int) -> None:
        self._network = network
        self._backlog = backlog
        self._queue: deque[MemoryStream] = deque()
        self._lot = ParkingLot()
        self._room = ParkingLot()
        self._closed = False
        self.address = address

    async def accept(self) -> MemoryStream:  # noqa: D102
        await checkpoint()
        while not self._closed:
            if (stream := self.accept_nowait()) is not None:
                return stream
            await self._lot.park()
        raise trio.ClosedResourceError("the listener was closed")

    def accept_nowait(self) -> MemoryStream | None:  # noqa: D102
        if not self._queue:
            return None
        self._room.unpark()
        return self._queue.popleft()

    def close(self) -> None:  # noqa: D102
        if self._closed:
            return
        self._closed = True
        self._network._forget(self)  # noqa: SLF001 - part of the network
        while self._queue:
            self._queue.popleft().close(reset=True)
        self._lot.unpark_all()
        self._room.unpark_all()

    async def _deliver(self, stream: MemoryStream) -> None:
        while not self._closed and len(self._queue) >= self._backlog:
            await self._room.park()
        if self._closed:
            raise _os_error(errno.ECONNREFUSED)
        self._queue.append(stream)
        self._lot.unpark()


class MemoryNetwork:
    """Hosts and ports in memory.

    `buffer_bytes` is what one direction of a connection holds before its writer has to wait.
    `latency`, asked once for each connection, delays its handshake by one round trip and every
    byte by one way; it may raise `OSError` to fail the connection. Without it all is instant.
    """

    def __init__(self, *, buffer_bytes: int = 65536, latency: Latency | None = None) -> None:
        self._buffer_bytes = buffer_bytes
        self._latency = latency
        self._listeners: dict[tuple[str, int], MemoryListener] = {}
        self._ephemeral = itertools.cycle(EPHEMERAL_PORTS)
        self.open_streams = 0
        """Ends of connections that are not closed: zero when nothing leaked."""

    def listen(self, host: str, port: int = 0, *, backlog: int = 128) -> MemoryListener:
        """Take `host` and `port`, or a free port for 0; `OSError` if it is taken.

        Connections beyond `backlog` that nobody accepts wait in `connect`.
        """
        if port == 0:
            free = (p for p in itertools.count(FIRST_LISTENING_PORT) if (host, p) not in self)
            port = next(free)
        if (host, port) in self:
            raise _os_error(errno.EADDRINUSE)
        listener = MemoryListener(self, (host, port), backlog)
        self._listeners[host, port] = listener
        return listener

    def __contains__(self, address: tuple[str, int]) -> bool:
        return address in self._listeners

    async def connect(self, host: str, port: int) -> ByteStream:
        """Connect to a listener; `ConnectionRefusedError` when there is none."""
        delay = self._latency(host, port) if self._latency is not None else 0.0
        await trio.sleep(2 * delay)
        listener = self._listeners.get((host, port))
        if listener is None:
            raise _os_error(errno.ECONNREFUSED)
        client, server = self.pair(("127.0.0.1", next(self._ephemeral)), (host, port), delay)
        try:
            await listener._deliver(server)  # noqa: SLF001 - part of the network
        except BaseException:
            client.close()
            server.close()
            raise
        return client

    def pair(
        self,
        client: tuple[str, int] = ("127.0.0.1", 49152),
        server: tuple[str, int] = ("127.0.0.1", 80),
        delay: float = 0.0,
    ) -> tuple[MemoryStream, MemoryStream]:
        """Return two connected streams, without a listener between them."""
        one = MemoryStream(self, _Pipe(self._buffer_bytes, delay), client, server)
        two = MemoryStream(self, _Pipe(self._buffer_bytes, delay), server, client)
        one._other, two._other = two, one  # noqa: SLF001 - part of the network
        self.open_streams += 2
        return one, two

    def _forget(self, listener: MemoryListener) -> None:
        with suppress(KeyError):
            del self._listeners[listener.address]
