"""KV cache between its two legs, for whoever runs them outside the router."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import attrs
import trio

from narwhal.model import EngineError, HandoffRejected, LocalError
from narwhal.wire import vllm

if TYPE_CHECKING:
    from collections.abc import Callable

    from narwhal.engine.client import Correlation, EngineClient, PrefillReply
    from narwhal.wire.vllm import Handoff

RELEASE_S = 1.0
"""For releasing a handoff that is not used any more: as long as the router gives it."""


@attrs.define
class HeldHandoff:
    """KV cache that its producer keeps until a decoder has asked for it.

    Whoever made one calls `release` in a `finally`: it frees what was learnt of and not pulled.
    """

    decoder: EngineClient
    """The engine that asks for it, or lets it go."""
    model: str
    correlation: Callable[[], Correlation]
    handoff: Handoff | None = None
    written_at: float = 0.0
    """When the decode request was written: Trio's clock."""

    def learn(self, reply: PrefillReply) -> None:
        """Read the prefill's answer, which may hand over nothing at all.

        Raises `EngineProtocolError`, and `HandoffRejected` for an incomplete descriptor.
        """
        try:
            self.handoff = vllm.parse_prefill(reply.body, whole=False).handoff
        except HandoffRejected as error:
            if not error.missing:
                raise

    def learn_late(self, reply: PrefillReply) -> None:
        """The same while a cancel is under way, which is to go on whatever was answered."""
        with contextlib.suppress(EngineError):
            self.learn(reply)

    def pulled(self) -> None:
        """The decode request is about to be written: its engine sees to the rest."""
        self.handoff, self.written_at = None, trio.current_time()

    async def release(self) -> bool:
        """Free what nobody has asked for, in `RELEASE_S`; a cancel does not cut it short.

        Whether there was something, and its release leg was answered. If not, the producer frees
        the memory by itself when the lease ends.
        """
        if self.handoff is None:
            return False
        body = vllm.release_body(self.model, self.handoff)
        self.handoff = None
        with (
            trio.move_on_after(RELEASE_S, shield=True),
            contextlib.suppress(EngineError, LocalError),
        ):
            await self.decoder.release(body, self.correlation())
            return True
        return False
