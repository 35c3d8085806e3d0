"""Connections to one server: at most so many, used again, and none of them ever mislaid.

The pool decides synchronously and only then waits: a slot is taken, handed over or given back
between two checkpoints, never across one. So there is no step at which a cancel could leave a
slot that belongs to nobody.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import TYPE_CHECKING

import outcome
import trio

from narwhal.model import ConnectFailed, EngineClosed, Limit, LocalError, PoolExhausted
from narwhal.net.exchange import Exchange
from narwhal.net.streams import CAPACITY_ERRNOS
from narwhal.net.tls import TlsStream

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

    from narwhal.net.streams import ByteStream, Connect

IDLE_EXPIRY = 4.0
"""Seconds after which an idle connection is not used again. Servers like uvicorn close theirs
after 5 s; this side should be first, or requests meet closing connections."""

MAX_HEAD_BYTES = 65536


class ConnectionPool:
    """The connections to one server for one purpose.

    Idle connections are used last in, first out, so that those not needed expire; waiting
    requests are served first come, first served. `pool_timeout` bounds the wait for a connection,
    `connect_timeout` each opening of one, TLS handshake included; both in seconds.
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        connect: Connect,
        limit: int,
        pool_timeout: float,
        connect_timeout: float,
        idle_expiry: float = IDLE_EXPIRY,
        max_head_bytes: int = MAX_HEAD_BYTES,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.host = host
        self.port = port
        self.name = f"{host}:{port}"
        self.limit = limit
        self.max_head_bytes = max_head_bytes
        self.replays = 0
        """Requests sent a second time because a reused connection was dead."""
        self.closed = False
        self._connect = connect
        self._pool_timeout = pool_timeout
        self._connect_timeout = connect_timeout
        self._idle_expiry = idle_expiry
        self._tls = tls
        # Slots in use: a connection that is connecting, or busy. Idle ones have none, but a new
        # connection is only opened when none is idle, so there are never more than `limit`.
        self._slots = 0
        self._idle: deque[tuple[ByteStream, float]] = deque()  # with the time it became idle
        self._busy: dict[ByteStream, None] = {}
        self._waiting: OrderedDict[trio.lowlevel.Task, None] = OrderedDict()

    @property
    def idle(self) -> int:
        """Connections that are open and unused."""
        return len(self._idle)

    @property
    def busy(self) -> int:
        """Connections in use or being opened."""
        return self._slots

    @property
    def waiting(self) -> int:
        """Requests that wait for a connection."""
        return len(self._waiting)

    async def send(
        self,
        request: bytes,
        *,
        replayable: bool,
        on_slot: Callable[[], None] | None = None,
        before_write: Callable[[], None] | None = None,
    ) -> Exchange:
        """Send the complete bytes of one HTTP/1.1 request; returns when the kernel has them all.

        `replayable` says whether the server may see the request twice, see `Exchange.response`.
        `on_slot` is called when the wait for one of the pool's connections is over: what takes
        time from then on, opening it included, is the server's doing.
        `before_write` is called with a connection at hand, immediately before the first byte
        leaves, and again before a replay; what it raises ends the exchange unsent.
        Raises `PoolExhausted` when no connection came free in time, `LocalError` when this system
        can open none, `ConnectFailed`, and `EngineClosed` when the connection died under the
        request. A cancel closes the connection.
        """
        exchange = self.send_nowait(
            request, replayable=replayable, on_slot=on_slot, before_write=before_write
        )
        if exchange is None:
            exchange = await self._send_later(request, replayable, on_slot, before_write)
        if exchange.unsent:
            await exchange.transmit()
        return exchange

    def send_nowait(
        self,
        request: bytes,
        *,
        replayable: bool,
        on_slot: Callable[[], None] | None = None,
        before_write: Callable[[], None] | None = None,
    ) -> Exchange | None:
        """As `send`, on a connection that is idle; `None`, and nothing is done, if there is none.

        If the exchange is still `unsent`, `Exchange.transmit` has to be awaited next: the kernel
        did not take all of the request, or the connection is dead.
        """
        stream = self._take(check=not replayable)
        if stream is None:
            return None
        return self._begin(stream, request, replayable, on_slot, before_write, reused=True)

    def _begin(
        self,
        stream: ByteStream,
        request: bytes,
        replayable: bool,
        on_slot: Callable[[], None] | None,
        before_write: Callable[[], None] | None,
        *,
        reused: bool,
    ) -> Exchange:
        exchange = Exchange(
            self,
            stream,
            request,
            reused=reused,
            replayable=replayable,
            before_write=before_write,
        )
        try:
            if on_slot is not None:
                on_slot()
            exchange.transmit_nowait()
        except BaseException:
            exchange.close()
            raise
        return exchange

    async def _send_later(
        self,
        request: bytes,
        replayable: bool,
        on_slot: Callable[[], None] | None,
        before_write: Callable[[], None] | None,
    ) -> Exchange:
        """As `send_nowait`, on a connection that has to be waited for or opened."""
        stream = await self._wait()
        if stream is not None:
            return self._begin(stream, request, replayable, on_slot, before_write, reused=True)
        try:
            if on_slot is not None:
                on_slot()
            stream = await self._open()
        except BaseException:
            self._free_slot()
            raise
        return self._begin(stream, request, replayable, None, before_write, reused=False)

    def close(self) -> None:
        """Close every connection, idle and busy, and fail what waits. For good."""
        self.closed = True
        while self._idle:
            self._idle.pop()[0].close()
        for stream in list(self._busy):
            stream.close()
        while self._waiting:
            task, _ = self._waiting.popitem(last=False)
            trio.lowlevel.reschedule(task, outcome.Error(self._closed_error()))

    def close_expired(self) -> None:
        """Close idle connections nobody used in time. Also done whenever a request is sent."""
        oldest = trio.current_time() - self._idle_expiry
        while self._idle and self._idle[0][1] <= oldest:
            self._idle.popleft()[0].close()

    # Slots: every method from here to `_wait` is a single step, with no checkpoint

    def _take(self, *, check: bool) -> ByteStream | None:
        """Return an idle connection, with a slot, or `None`.

        `check` looks whether it has ended meanwhile, which takes a system call. A request that
        may be replayed finds out by itself, and does without.
        """
        self.close_expired()
        while self._idle:
            stream, _ = self._idle.pop()
            if check and stream.stale():
                stream.close()
                continue
            self._slots += 1
            self._busy[stream] = None
            return stream
        return None

    def release(self, stream: ByteStream) -> None:
        """Take back a connection that is fit for another exchange, with its slot."""
        if self.closed:
            self.discard(stream)
        elif self._waiting:
            self._grant(stream)
        else:
            del self._busy[stream]
            self._slots -= 1
            self._idle.append((stream, trio.current_time()))

    def discard(self, stream: ByteStream) -> None:
        """Close a connection and free its slot."""
        self._busy.pop(stream, None)
        stream.close()
        self._free_slot()

    def _free_slot(self) -> None:
        if self._waiting:
            self._grant(None)
        else:
            self._slots -= 1

    def _grant(self, stream: ByteStream | None) -> None:
        task, _ = self._waiting.popitem(last=False)
        trio.lowlevel.reschedule(task, outcome.Value(stream))

    async def _wait(self) -> ByteStream | None:
        """Wait for a slot, and return the connection that came with it, if one did."""
        if self.closed:
            raise self._closed_error()
        if self._slots < self.limit:
            self._slots += 1
            return None
        stream: ByteStream | None
        task = trio.lowlevel.current_task()

        def leave(_: object) -> trio.lowlevel.Abort:
            del self._waiting[task]
            return trio.lowlevel.Abort.SUCCEEDED

        with trio.CancelScope(deadline=trio.current_time() + self._pool_timeout) as scope:
            self._waiting[task] = None
            stream = await trio.lowlevel.wait_task_rescheduled(leave)
        if scope.cancelled_caught:
            raise PoolExhausted(
                f"no connection to {self.name} came free within {self._pool_timeout:g} s; "
                f"all {self.limit} are in use and {self.waiting} more requests wait",
            )
        if stream is not None and stream.stale():
            self._busy.pop(stream, None)
            stream.close()
            return None
        return stream

    # Opening

    async def replace(self, stream: ByteStream) -> ByteStream:
        """Close a connection and open another in its slot, which stays taken either way."""
        self._busy.pop(stream, None)
        stream.close()
        return await self._open()

    async def _open(self) -> ByteStream:
        """Open a connection for a slot that the caller holds, and keeps if this fails."""
        if self.closed:
            raise self._closed_error()
        with trio.CancelScope(deadline=trio.current_time() + self._connect_timeout) as scope:
            stream = await self._connect_once()
        if scope.cancelled_caught:
            raise ConnectFailed(
                f"no connection to {self.name} within {self._connect_timeout:g} s",
                limit=Limit.CONNECT,
            )
        if self.closed:
            stream.close()
            raise self._closed_error()
        self._busy[stream] = None
        return stream

    async def _connect_once(self) -> ByteStream:
        try:
            stream = await self._connect(self.host, self.port)
        except OSError as error:
            if error.errno in CAPACITY_ERRNOS:
                raise LocalError(f"no connection to {self.name} can be made: {error}") from error
            raise ConnectFailed(f"cannot connect to {self.name}: {error}") from error
        if self._tls is None:
            return stream
        encrypted = TlsStream(stream, self._tls, server_hostname=self.host)
        try:
            await encrypted.do_handshake()
        except trio.BrokenResourceError as error:
            encrypted.close()
            raise ConnectFailed(f"cannot connect to {self.name}: {error}") from error
        except BaseException:
            encrypted.close()
            raise
        return encrypted

    def _closed_error(self) -> EngineClosed:
        return EngineClosed(
            f"the connection pool to {self.name} was closed",
            request_bytes=0,
            response_bytes=0,
        )
