"""Release legs: freeing KV cache that a prefill pinned and no decode will pull."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import trio

from narwhal.model import EngineError, LocalError, Phase
from narwhal.wire import vllm

if TYPE_CHECKING:
    from narwhal.engine import Correlation
    from narwhal.router.core import Core
    from narwhal.wire.vllm import Handoff

# A release is worth a second: an engine answers it without running anything, and a producer
# frees the memory by itself when the lease ends.
RELEASE_BOUND_S = 1.0
# Each costs a task and a connection. More than this at once means that the fleet is in trouble,
# and leases are then the cheaper way to free memory.
MOST_AT_ONCE = 256


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
    """Sends release legs in the background.

    Guarantee: every abandoned handoff is counted once, as released or as orphaned; an orphan's
    tokens stay on its producer's account until the lease ends.
    """

    def __init__(self, core: Core) -> None:
        self._core = core
        self._nursery: trio.Nursery | None = None
        self.running = 0
        self._done: trio.Event | None = None

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until cancelled; the caller bounds what is still running at the end."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            task_status.started()
            try:
                await trio.sleep_forever()
            finally:
                self._nursery = None

    def abandon(self, held: HeldHandoff, *, avoid: str | None) -> None:
        """Have a handoff released, by a decoder other than `avoid` if there is one."""
        expired = trio.current_time() >= held.lease_ends
        if expired or self._nursery is None or self.running >= MOST_AT_ONCE:
            self._orphan(held, release_failed=False)
            return
        self.running += 1
        self._nursery.start_soon(self._release, held, avoid)

    async def wait_done(self) -> None:
        """Wait until no release leg is under way: at most `RELEASE_BOUND_S`."""
        while self.running:
            self._done = self._done or trio.Event()
            await self._done.wait()

    async def _release(self, held: HeldHandoff, avoid: str | None) -> None:
        released = False
        try:
            with trio.move_on_after(RELEASE_BOUND_S):
                released = await self._try_engines(held, avoid)
        finally:
            self.running -= 1
            if not self.running and self._done is not None:
                self._done.set()
                self._done = None
            if released:
                self._core.telemetry.kv_released()
            else:
                self._orphan(held, release_failed=True)

    async def _try_engines(self, held: HeldHandoff, avoid: str | None) -> bool:
        body = vllm.release_body(self._core.config.model, held.handoff)
        exclude = {held.producer} | ({avoid} if avoid else set())
        choice = self._core.pick(Phase.DECODE, exclude, seated=False)
        if choice is None:
            return False
        try:
            await self._core.engines[choice.iid].release(body, held.correlation)
        except (EngineError, LocalError):
            return False
        return True

    def _orphan(self, held: HeldHandoff, *, release_failed: bool) -> None:
        self._core.orphans.add(held.producer, held.tokens, held.lease_ends)
        self._core.telemetry.kv_orphaned(release_failed=release_failed)
