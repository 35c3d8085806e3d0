"""The client's side of one request, as the router sees it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from narwhal.model import Outcome


class Reply(Protocol):
    """Where an answer goes: an HTTP response, or an iterator in an embedding application.

    Every write may block for as long as its reader does not read; the request's deadline is
    the only limit on it. A cancel in the middle of a write must leave the reader unable to
    mistake what it has for a whole answer.
    """

    committed: bool
    """Whether the status 200 of a stream has been sent."""

    async def commit(self) -> None:
        """Send the status 200 and the headers of a stream."""

    async def write(self, data: bytes) -> None:
        """Send complete events, committing first if that has not been done."""

    def write_nowait(self, data: bytes) -> bool:
        """As `write`, for a reply that is committed, without waiting.

        Takes all of `data`; False if the reader has not: then `flush` has to be awaited before
        anything else is sent.
        """

    async def flush(self) -> None:
        """Wait until the reader has taken what `write_nowait` left."""

    async def complete(self, data: bytes, *, stream: bool) -> None:
        """Send the last bytes and end well: the tail of a `stream`, or a whole answer."""

    async def fail(self, outcome: Outcome, error: bytes) -> None:
        """End badly: with `error` as an event and then a cut if committed, else as the body."""

    def abort(self) -> None:
        """Cut the connection now, synchronously."""
