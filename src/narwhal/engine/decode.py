"""One decode leg on the wire."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from narwhal.engine.answers import OK, raise_status
from narwhal.model import EngineError

if TYPE_CHECKING:
    from types import TracebackType

    from narwhal.net import Exchange


class DecodeLeg:
    """A decode request that is being written, or was; a context manager, which closes it.

    `accepted` turns true with a response head of 200: from then on the decoder owns the
    handoff, and the same handoff must not be used again.
    """

    __slots__ = ("_exchange", "accepted", "read")

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self.accepted = False
        self.read = exchange.read
        """All body bytes that one receive brings; `b""` at the end. `EngineClosed` if cut.

        The exchange's own method: a relay awaits it for every token.
        """

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def unsent(self) -> bool:
        """Whether some of the request is not with the kernel yet; then `send_rest` comes next."""
        return self._exchange.unsent

    async def send_rest(self) -> None:
        """Write it; returns as soon as all of it is with the kernel. A cancel closes the leg."""
        await self._exchange.transmit()

    async def head(self) -> None:
        """Wait for the response head.

        Raises `EngineStatus` for anything but 200, `EngineClosed` and `EngineProtocolError`.
        """
        if await self._exchange.response() != OK:
            await raise_status(self._exchange)
        self.accepted = True

    def ended_nowait(self) -> bool:
        """Read what follows `[DONE]` if it is there already; whether the body has ended."""
        try:
            while (data := self._exchange.read_nowait()) is not None:
                if not data:
                    return True
        except EngineError:
            return True
        return False

    async def see_off(self) -> None:
        """Read what follows `[DONE]`, so that the connection can be used again, and close.

        The caller bounds it: an engine may leave the body open for as long as it likes. How the
        connection ends is no news, since the answer was whole.
        """
        try:
            while await self._exchange.read():
                pass
        except EngineError:
            pass
        finally:
            self.close()

    def close(self) -> None:
        """Back to the pool if the answer is complete, closed otherwise; the engine then aborts."""
        self._exchange.close()
