"""One client's connection: its reader, its time limits, its end."""

from __future__ import annotations

import logging
from contextlib import suppress
from math import inf
from typing import TYPE_CHECKING, cast

import trio
from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.events import Closed, Event, RawData
from hypercorn.trio.tcp_server import TCPServer

from narwhal.model import ClientLimit
from narwhal.net.server.heads import body_too_slow, head_too_slow
from narwhal.net.server.protocol import Http1
from narwhal.net.streams import RECEIVE_BYTES
from narwhal.net.tls import TlsStream

if TYPE_CHECKING:
    from hypercorn.typing import ASGIFramework

    from narwhal.net.server.request import RequestStream
    from narwhal.net.server.server import Server
    from narwhal.net.streams import ByteStream

logger = logging.getLogger("narwhal.net.server")

LONG_BYTES = 131072
"""Read at once behind a full read: with it a prompt of 25,000 tokens is there in two."""


class Connection(TCPServer):
    """Hypercorn's connection handler, with other answers to what can go wrong.

    - Sends can be cancelled, and any send that does not complete closes the socket at once:
      half a chunk on the wire leaves nothing to go on with. Later sends do nothing.
    - Reading goes on while an application runs, so that a client that leaves is always noticed.
    - One scope whose deadline moves bounds idleness, slow heads and slow bodies, without a task of
      its own.
    - Whatever goes wrong stays in here: the server's nursery never hears of it.
    """

    stream: ByteStream  # type: ignore[assignment]  # all that is used of a Trio stream
    protocol: Http1  # type: ignore[assignment]  # HTTP/1.1 alone, so no wrapper that upgrades

    def __init__(self, server: Server, stream: ByteStream) -> None:
        super().__init__(
            ASGIWrapper(cast("ASGIFramework", server.app)),
            server.config,
            server.context,
            {},
            stream,  # type: ignore[arg-type]  # see above
        )
        self.server = server
        self.secure = isinstance(stream, TlsStream)
        self.dead = False
        self.cut_by_reset = False
        self.lingering = False
        self._linger_left = server.options.linger_bytes
        self._expecting = False
        self._deadline = inf
        self._body_began: float | None = None  # set while the rest of a body is waited for
        self._scope = trio.CancelScope()
        self._room: trio.Event | None = None
        self._tasks: trio.Nursery | None = None  # until `run` has had its first turn
        self.protocol = Http1(self)

    @property
    def busy(self) -> bool:
        """Whether closing it now would cut something short."""
        return (
            self.protocol.stream is not None
            or self.protocol.mid_head
            or self.lingering
            or self._expecting
        )

    async def run(self) -> None:
        """Serve the connection to its end. Only a cancel gets out of it."""
        try:
            async with trio.open_nursery() as tasks:
                self._tasks = tasks
                await self._read_data()
                self.abort()
        except* Exception:
            logger.exception("Serving a connection from %s failed", self.stream.peer)
        finally:
            self.abort()
            # The protocol and this hold each other. Where clients come for one request each, what
            # waits for the garbage collector would be as much as a busy router holds otherwise.
            self.protocol.let_go()
            self._tasks = None

    @property
    def _nursery(self) -> trio.Nursery:
        assert self._tasks is not None  # noqa: S101 - what is read is read inside `run`
        return self._tasks

    def stop(self, reason: str) -> None:
        """Cancel what runs on this connection and close it."""
        if self.protocol.stream is None:
            self.abort()
        if self._tasks is not None:
            self._tasks.cancel_scope.cancel(reason=reason)

    def close_if_idle(self) -> None:
        """Close it unless a request is being served, or has arrived and not been read yet."""
        if self.busy or self.dead:
            return
        if self.stream.stale():
            self._expecting = True
        else:
            self.abort()

    # Reading

    async def _read_data(self) -> None:
        self._deadline = trio.current_time() + self.server.options.header_timeout
        while not self.dead:
            with trio.CancelScope(deadline=self._deadline) as self._scope:
                await self._read_until_lost()
                return
            if trio.current_time() >= self._deadline:
                self._expire()

    async def _read_until_lost(self) -> None:
        receive = self.stream.receive_some
        while not self.dead:
            if self.protocol.congested:
                await self._wait_for_room()
                continue
            try:
                data = await receive(self.protocol.read_bytes)
                if len(data) == RECEIVE_BYTES:
                    data += self._more_nowait()
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                return
            self._expecting = False
            # A client that only shut down its sending side looks the same as one that closed,
            # and is taken for it. Engines decide likewise.
            if not data:
                return
            if self.lingering:
                self._linger_left -= len(data)
                if self._linger_left < 0:
                    return
                continue
            self.protocol.data_received(data)

    def _more_nowait(self) -> bytes:
        """What is there behind a read that was full; what else there is the next one will tell.

        A request that is all there is taken apart in a third of the time: a long prompt, too.
        """
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            return self.stream.receive_nowait(LONG_BYTES) or b""
        return b""

    async def _wait_for_room(self) -> None:
        """Wait until the application has received the body so far; its time is not the client's."""
        since = trio.current_time()
        self._deadline = inf
        try:
            while self.protocol.congested and not self.dead:
                self._room = trio.Event()
                await self._room.wait()
        finally:
            if self._body_began is not None and not self.lingering:
                self._body_began += trio.current_time() - since
                self.protocol.await_body()

    def resume_reading(self) -> None:
        """Wake the reader if it waits for the application to receive."""
        if self._room is not None:
            self._room.set()
            self._room = None

    # Time

    def _set_deadline(self, deadline: float) -> None:
        # Moving a scope's deadline costs more than waking up once too early, so only an earlier
        # one is moved; the reader looks at the real one when the scope fires.
        self._deadline = deadline
        if deadline < self._scope.deadline:  # noqa: PLR1730 - assigning is what costs
            self._scope.deadline = deadline

    def request_began(self, stream: RequestStream) -> None:
        """Start the application; its time is its own."""
        self._deadline = inf
        self.server.request_began()
        self._nursery.start_soon(stream.run)

    def head_began(self) -> None:
        """Bound the rest of a later request's head; the first one's was from the start."""
        if self.protocol.keep_alive_requests:
            self._set_deadline(trio.current_time() + self.server.options.header_timeout)

    def became_idle(self) -> None:
        """Bound the wait for the next request."""
        self._set_deadline(trio.current_time() + self.server.options.keep_alive_timeout)

    def body_expected(self, received: int) -> None:
        """Bound the wait for the rest of a body, of which `received` bytes are here."""
        options = self.server.options
        if not options.min_body_rate:
            return
        if self._body_began is None:
            self._body_began = trio.current_time()
        seconds = options.body_grace + received / options.min_body_rate
        self._set_deadline(self._body_began + seconds)

    def body_complete(self) -> None:
        """Give the application its time again."""
        if self._body_began is not None:
            self._body_began = None
            self._deadline = inf

    def _expire(self) -> None:
        if self.lingering:
            self.abort()
        elif self._body_began is not None:
            self.protocol.refuse(body_too_slow(self.server.options))
        elif self.protocol.mid_head:
            self.protocol.refuse(head_too_slow(self.server.options))
        else:
            if not self.protocol.keep_alive_requests:  # it never asked for anything
                self.server.limit_fired(ClientLimit.HEADER_TIME)
            self.abort()

    # Writing

    def write_nowait(self, data: bytes) -> bytes:
        """Send what fits and return the rest; a dead connection takes everything."""
        if self.dead:
            return b""
        try:
            sent = self.stream.send_nowait(data)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            self.abort()
            return b""
        return b"" if sent == len(data) else data[sent:]

    async def write(self, data: bytes) -> None:
        """Send all of `data`, or close the connection; see `flush`."""
        rest = self.write_nowait(data)
        if rest:
            await self.flush(rest)

    async def flush(self, data: bytes) -> None:
        """Send all of `data`, waiting for the client; cancelled or failing, close at once."""
        complete = False
        try:
            await self.stream.send_all(data)
            complete = True
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        finally:
            if not complete:
                self.abort()

    async def protocol_send(self, event: Event) -> None:
        """Hypercorn's own way to the wire, for what of it is inherited."""
        if isinstance(event, RawData):
            await self.write(event.data)
        elif isinstance(event, Closed):
            self.abort()

    def last_answer(self, data: bytes) -> None:
        """Send a last answer without waiting, then let the client finish what it is sending."""
        rest = self.write_nowait(data)
        if rest:
            self._nursery.start_soon(self.flush, rest)
        self.linger()

    # The end

    def linger(self) -> None:
        """Stop writing, read and drop what the client still sends for a while, then close.

        Closing at once would reset the connection under an answer that the client, busy sending,
        has not read yet.
        """
        if self.dead:
            return
        self.lingering = True
        self.stream.send_eof()
        self._set_deadline(trio.current_time() + self.server.options.linger_timeout)
        self.resume_reading()

    def abort(self, *, reset: bool = False) -> None:
        """Close the connection now, whatever runs on it. Cannot be interrupted."""
        if self.dead:
            return
        self.dead = True
        self.stream.close(reset=reset or self.cut_by_reset)
        self.resume_reading()
        self.protocol.connection_lost()  # last, since it calls into the application
