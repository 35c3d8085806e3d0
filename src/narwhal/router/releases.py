"""Release legs: freeing KV cache that a prefill pinned and no decode will pull."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import attrs
import trio

from narwhal.model import EngineError, LocalError, NoEngine, Phase
from narwhal.wire import vllm

if TYPE_CHECKING:
    from narwhal.engine import Correlation
    from narwhal.router.core import Core
    from narwhal.wire.vllm import Handoff


@attrs.frozen(kw_only=True)
class HeldHandoff:
    """A handoff that a prefill produced and no decoder has accepted."""

    handoff: Handoff
    producer: str
    tokens: int
    lease_ends: float
    """Monotonic time at which the producer frees the memory by itself."""
    correlation: Correlation


class Releases:
    """Sends release legs, as errands.

    Guarantee: every abandoned handoff is counted once, as released or as orphaned, and so is
    every one that was lost; an orphan's tokens stay on its producer's account until the lease
    ends.
    """

    def __init__(self, core: Core) -> None:
        self._core = core

    def abandon(self, held: HeldHandoff, *, avoid: str | None) -> None:
        """Have a handoff released: by any decoder that will do it, `avoid` last of all."""
        expired = trio.current_time() >= held.lease_ends
        release = partial(self._release, held, avoid)
        if expired or not self._core.errands.start_nowait(release):
            self._orphan(held.producer, held.tokens, held.lease_ends, release_failed=False)

    def lost(self, producer: str, tokens: int, *, lease_ends: float) -> None:
        """Count KV cache that a prefill pinned under a name that was never learned: an orphan."""
        self._orphan(producer, tokens, lease_ends, release_failed=False)

    async def _release(self, held: HeldHandoff, avoid: str | None) -> None:
        released = False
        try:
            released = await self._try(held, avoid)
        finally:
            if released:
                self._core.telemetry.kv_released()
            else:
                self._orphan(held.producer, held.tokens, held.lease_ends, release_failed=True)

    async def _try(self, held: HeldHandoff, avoid: str | None) -> bool:
        core = self._core
        body = vllm.release_body(core.config.model, held.handoff)
        # Not the producer, if it has come to decode meanwhile: an engine takes no word from itself,
        # answers as if it did, and keeps the memory until the lease ends (seen with vLLM 0.32.0).
        fit = set(core.roster.takers(Phase.DECODE)) - {held.producer}
        last = {avoid}
        untried = set(fit)
        while untried:
            try:
                choice = core.pick(Phase.DECODE, fit - (untried - last or untried))
            except NoEngine:
                return False
            if choice is None or choice.iid not in untried:
                return False
            untried.remove(choice.iid)
            try:
                await core.engines[choice.iid].release(body, held.correlation)
            except (EngineError, LocalError):
                continue
            return True
        return False

    def _orphan(
        self, producer: str, tokens: int, lease_ends: float, *, release_failed: bool
    ) -> None:
        now = trio.current_time()
        self._core.orphans.add(producer, tokens, until=lease_ends, now=now)
        self._core.telemetry.kv_orphaned(release_failed=release_failed)
