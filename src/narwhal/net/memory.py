"""A network in memory: the same streams and listeners, with no sockets, for virtual time.

It behaves like TCP where that decides whether code is right: buffers are bounded, so a peer that
does not read makes a writer wait; ends of file, resets and refused connections look as they do
on sockets; closing a connection with unread bytes resets it; what was written to a peer that had
already closed is lost without a word, and the next call learns of it.

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

import trio
from trio.lowlevel import ParkingLot, checkpoint

from narwhal.net.pipes import DIRECT, Link, MemoryStream, connected_pair
from narwhal.net.streams import Listener

Links = Callable[[str, int], Link]
"""Given host and port, what a new connection goes through; asked once for each."""

FIRST_LISTENING_PORT = 20000
EPHEMERAL_PORTS = range(49152, 65536)


def _os_error(code: int) -> OSError:
    return OSError(code, os.strerror(code))


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
    `links`, asked once for each connection, says what it goes through; the handshake takes one
    round trip of that. It may raise `OSError` to fail the connection. Without it all is instant.
    """

    def __init__(self, *, buffer_bytes: int = 65536, links: Links | None = None) -> None:
        self._buffer_bytes = buffer_bytes
        self._links = links
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

    async def connect(self, host: str, port: int) -> MemoryStream:
        """Connect to a listener; `ConnectionRefusedError` when there is none."""
        link = self._links(host, port) if self._links is not None else DIRECT
        await trio.sleep(2 * link.delay_s)
        listener = self._listeners.get((host, port))
        if listener is None:
            raise _os_error(errno.ECONNREFUSED)
        client, server = self.pair(("127.0.0.1", next(self._ephemeral)), (host, port), link)
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
        link: Link = DIRECT,
    ) -> tuple[MemoryStream, MemoryStream]:
        """Return two connected streams, without a listener between them."""
        self.open_streams += 2
        return connected_pair(
            client, server, capacity=self._buffer_bytes, link=link, on_close=self._count_closed
        )

    def _count_closed(self) -> None:
        self.open_streams -= 1

    def _forget(self, listener: MemoryListener) -> None:
        with suppress(KeyError):
            del self._listeners[listener.address]
