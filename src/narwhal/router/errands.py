"""Short pieces of work that outlive the request they were made for, by at most a second."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import trio

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

logger = logging.getLogger("narwhal.router.errands")

# What an errand may take: enough for any engine that is alive, and within the second in which
# the process has to exit after the grace of a shutdown.
ERRAND_BOUND_S = 1.0
# Each costs a task and a connection. More than this at once means that the fleet is in trouble,
# and doing without the errand is then the cheaper way.
MOST_AT_ONCE = 256


class Errands:
    """Runs errands in a nursery of its own, each bounded by `ERRAND_BOUND_S`."""

    def __init__(self) -> None:
        self._nursery: trio.Nursery | None = None
        self._idle: trio.Event | None = None
        self.running = 0

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until cancelled, which cancels the errands under way."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            task_status.started()
            try:
                await trio.sleep_forever()
            finally:
                self._nursery = None

    def start_nowait(self, errand: Callable[[], Awaitable[None]]) -> bool:
        """Start an errand; False, and nothing started, if there are too many or it is the end.

        The errand handles its own failures, and is told of its bound by a cancel. What it did
        not foresee is logged: no request that is being served may pay for an errand's defect.
        """
        if self._nursery is None or self.running >= MOST_AT_ONCE:
            return False
        self.running += 1
        self._nursery.start_soon(self._bounded, errand)
        return True

    async def _bounded(self, errand: Callable[[], Awaitable[None]]) -> None:
        try:
            with trio.move_on_after(ERRAND_BOUND_S):
                await errand()
        except Exception:
            logger.exception("an errand failed")
        finally:
            self.running -= 1
            if not self.running and self._idle is not None:
                self._idle.set()
                self._idle = None

    async def wait_done(self) -> None:
        """Wait until none is under way: at most `ERRAND_BOUND_S` if no more are started."""
        while self.running:
            self._idle = self._idle or trio.Event()
            await self._idle.wait()
