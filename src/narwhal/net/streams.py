"""What the HTTP code needs of a connection, and nothing more.

Every reader and writer in this package works on a `ByteStream`, so the code that talks to
sockets in production talks to memory in virtual time, unchanged. The interface differs from
`trio.abc.Stream` in three ways, each of which the HTTP code leans on:

- closing is synchronous. Whatever is being cancelled can still let go of its connection;
- there are `*_nowait` variants, so that a caller can decide without a checkpoint;
- one task reads and one task writes. Nothing here takes a lock.
"""

from __future__ import annotations

import errno
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable

RECEIVE_BYTES = 32768
"""The most one receive asks for. Room for 64 KiB takes 2 us longer to come by, for every token."""


CAPACITY_ERRNOS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS})
"""What accept(2), socket(2) and connect(2) report when this system, and not the peer, is the
matter."""


class ByteStream(ABC):
    """A connected, bidirectional, ordered stream of bytes.

    Errors, for every method that moves bytes: `trio.BrokenResourceError` when the peer or the
    network ended it, `trio.ClosedResourceError` when it was closed at this end, also while a
    task was waiting on it.
    """

    __slots__ = ()

    peer: tuple[str, int]
    """The other end's address and port."""
    local: tuple[str, int]
    """This end's address and port."""

    @abstractmethod
    async def receive_some(self, max_bytes: int = RECEIVE_BYTES) -> bytes:
        """Wait until there is something to read and return it; `b""` when the peer has ended.

        Always a checkpoint, so that no peer can keep a task from yielding. A cancel loses
        nothing.
        """

    @abstractmethod
    async def send_all(self, data: bytes) -> None:
        """Hand all of `data` to the transport; returns when it is buffered, not when it arrived.

        Blocks while the peer does not read. Not a checkpoint if everything fits at once. A
        cancel may leave any part of `data` sent, so a stream whose send was cancelled is fit
        only to be closed.
        """

    @abstractmethod
    def send_nowait(self, data: bytes) -> int:
        """Send what fits without waiting and return how much that was, possibly 0."""

    @abstractmethod
    def receive_nowait(self, max_bytes: int = RECEIVE_BYTES) -> bytes | None:
        """Return what is there to read: `None` for nothing yet, `b""` when the peer has ended."""

    @abstractmethod
    def close(self, *, reset: bool = False) -> None:
        """Close both directions, now. Idempotent; wakes tasks that wait on this stream.

        With `reset` the peer sees an error instead of an end of file, and whatever it had not
        been sent yet is dropped: the way to end a body that would otherwise look complete.
        """

    def send_eof(self) -> None:  # noqa: B027 - optional, and nothing is a correct answer
        """End the sending direction if the transport can, without waiting. Never fails."""

    def stale(self) -> bool:
        """Whether an idle connection must not be used again.

        On a connection between two exchanges neither bytes nor an end of file are expected, so
        anything to read means that it is over. Consumes nothing that will be needed.
        """
        try:
            return self.receive_nowait(1) is not None
        except Exception:  # noqa: BLE001 - whatever is wrong with it, it cannot be used
            return True


Connect = Callable[[str, int], Awaitable[ByteStream]]
"""Opens a connection to a host and port, or raises `OSError`. The caller bounds the time."""


class Listener(ABC):
    """Where connections come from."""

    __slots__ = ()

    address: tuple[str, int]
    """The address and port it listens on; the real port where 0 was asked for."""

    @abstractmethod
    async def accept(self) -> ByteStream:
        """Wait for a connection.

        Raises `trio.ClosedResourceError` once closed, and `OSError` when the system is out of
        descriptors or memory; such a listener can be tried again later.
        """

    def accept_nowait(self) -> ByteStream | None:
        """Return a connection that is waiting already, or `None`; raises nothing.

        A listener need not be able to: `accept` finds whatever this one does not.
        """
        return None

    @abstractmethod
    def close(self) -> None:
        """Stop listening. Idempotent; wakes a task in `accept`."""
