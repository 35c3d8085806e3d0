"""The server: listeners in, connections out, and an orderly end."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import trio
from hypercorn.trio.worker_context import WorkerContext

from narwhal.model import ClientLimit
from narwhal.net.server.connection import Connection
from narwhal.net.server.options import DEFAULT_OPTIONS, ASGIApp, ServerOptions
from narwhal.net.streams import CAPACITY_ERRNOS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from narwhal.net.streams import ByteStream, Listener

logger = logging.getLogger("narwhal.net.server")

ACCEPTS_AT_ONCE = 64
"""Connections to let in between two checkpoints, at some 20 us each: no more than a millisecond."""

CAPACITY_PAUSE = 0.1
"""Seconds between two attempts to accept while there is no descriptor for it; Trio's value."""


class Server:
    """Runs an ASGI application on HTTP/1.1 connections.

    `app` gets scopes of type `http` only; there is no lifespan. `options` are its limits; `told`
    is called, synchronously, with each that fires.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        options: ServerOptions = DEFAULT_OPTIONS,
        told: Callable[[ClientLimit], None] | None = None,
    ) -> None:
        self.app = app
        self.options = options
        self._told = told
        self.config = options.hypercorn()
        self.context = WorkerContext(None)
        self.draining = False
        self.requests = 0
        """Requests whose application runs."""
        self._connections: dict[Connection, None] = {}
        self._listeners: list[Listener] = []
        self._endings = trio.lowlevel.ParkingLot()

    @property
    def connections(self) -> int:
        """Connections that are open."""
        return len(self._connections)

    async def serve(
        self,
        listeners: Sequence[Listener],
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Serve until drained; owns `listeners` and closes them.

        Returns once `drain` or `stop_accepting` was called and the last connection is gone. A
        cancel ends every connection at once. No client can make it raise; a listener that fails
        for good raises its `OSError`.
        """
        self._listeners = list(listeners)
        try:
            async with trio.open_nursery() as nursery:
                for listener in self._listeners:
                    nursery.start_soon(self._accept_from, listener, nursery)
                if self.draining:
                    self._close_listeners()
                task_status.started()
        finally:
            self._close_listeners()

    async def _accept_from(self, listener: Listener, nursery: trio.Nursery) -> None:
        while True:
            await self._room()
            try:
                stream = await listener.accept()
            except trio.ClosedResourceError:
                return
            except OSError as error:
                if error.errno not in CAPACITY_ERRNOS:
                    raise
                logger.warning("Cannot accept connections: %s", error)
                # The listener stays readable, so there is nothing else to wait for.
                await trio.sleep(CAPACITY_PAUSE)
                continue
            if self._full:  # another listener was faster
                try:
                    await self._room()
                except trio.Cancelled:
                    stream.close()
                    raise
                if self.draining:
                    stream.close(reset=True)  # as happens to those in the backlog
                    return
            self._start(stream, nursery)
            # A busy server comes round once in some milliseconds: a burst of clients should not
            # be let in one at a time.
            for _ in range(ACCEPTS_AT_ONCE):
                if self._full or self.draining or (more := listener.accept_nowait()) is None:
                    break
                self._start(more, nursery)

    def _start(self, stream: ByteStream, nursery: trio.Nursery) -> None:
        connection = Connection(self, stream)
        self._connections[connection] = None
        nursery.start_soon(self._run_connection, connection)

    @property
    def _full(self) -> bool:
        limit = self.options.max_connections
        return limit > 0 and self.connections >= limit

    async def _room(self) -> None:
        if self._full and not self.draining:
            self.limit_fired(ClientLimit.CONNECTIONS)
        while self._full and not self.draining:
            await self._endings.park()

    async def _run_connection(self, connection: Connection) -> None:
        try:
            await connection.run()
        finally:
            del self._connections[connection]
            self._endings.unpark_all()

    def limit_fired(self, limit: ClientLimit) -> None:
        """Pass on that a limit fired; called by connections."""
        if self._told is not None:
            self._told(limit)

    def request_began(self) -> None:
        """Count a request in; called by its connection."""
        self.requests += 1

    def request_ended(self) -> None:
        """Count a request out; called by its connection."""
        self.requests -= 1
        self._endings.unpark_all()

    def _close_listeners(self) -> None:
        for listener in self._listeners:
            listener.close()

    def stop_accepting(self) -> None:
        """Close listeners and idle connections; later answers say `connection: close`."""
        self.draining = True
        self._close_listeners()
        self._endings.unpark_all()
        for connection in list(self._connections):
            connection.close_if_idle()

    async def drain(self, grace: float) -> bool:
        """Stop accepting, give running requests `grace` seconds, then cut what is left.

        Requests still running are then cancelled; their clean-up may use the connection until it
        ends. Returns, with every connection closed, whether all requests had finished. A cancel
        leaves the server as after `stop_accepting`.
        """
        self.stop_accepting()
        with trio.move_on_after(grace):
            while self.requests or any(connection.busy for connection in self._connections):
                await self._endings.park()
        finished = self.requests == 0
        for connection in list(self._connections):
            connection.stop("the server's grace for running requests is over")
        while self._connections:
            await self._endings.park()
        return finished
