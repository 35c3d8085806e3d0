"""One decode leg on the wire."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from narwhal.engine.answers import raise_for_status

if TYPE_CHECKING:
    from types import TracebackType

    from narwhal.net import Exchange


class DecodeLeg:
    """A decode request that was written; a context manager that never leaves its stream open.

    `accepted` turns true with a response head of 200: from then on the decoder owns the
    handoff, and the same handoff must not be used again.
    """

    __slots__ = ("_exchange", "accepted")

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self.accepted = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    async def head(self) -> None:
        """Wait for the response head.

        Raises `EngineStatus` for anything but 200, `EngineClosed` and `EngineProtocolError`.
        """
        await raise_for_status(self._exchange)
        self.accepted = True

    async def read(self) -> bytes:
        """All body bytes that one receive brings; `b""` at the end. `EngineClosed` if cut."""
        return await self._exchange.read()

    def drain_nowait(self) -> bool:
        """Read what follows the stream's end if it is there already; whether the end was seen."""
        while (data := self._exchange.read_nowait()) is not None:
            if not data:
                return True
        return False

    async def drain(self) -> None:
        """Read what follows the stream's end, so that the connection can be used again.

        The caller bounds it: an engine may leave the body open for as long as it likes.
        """
        while await self._exchange.read():
            pass

    def close(self) -> None:
        """Back to the pool if the answer is complete, closed otherwise; the engine then aborts."""
        self._exchange.close()
