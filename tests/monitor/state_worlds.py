"""Routers in memory that keep their state in memory, and can be killed."""

from __future__ import annotations

import random
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

import trio

from narwhal.model import ConfigError
from narwhal.monitor import SavedState, parse_state
from narwhal.router import Router
from narwhal.testing import MemoryFleet


class MemoryStore:
    """Keeps a document as a disk does: it takes its time, fails, hangs, and outlives a process."""

    def __init__(self) -> None:
        self.content: bytes | None = None
        self.begun = 0
        self.last_words = 0
        self.dead = False
        self.full = False
        self.takes: Callable[[], float] = lambda: 0.0

    async def write(self, content: bytes) -> None:
        self.begun += 1
        await trio.sleep(self.takes())
        self._keep(content)

    def write_last(self, content: bytes) -> None:
        if not self.dead:
            self.last_words += 1
            self._keep(content)

    def _keep(self, content: bytes) -> None:
        assert not self.dead
        if self.full:
            raise ConfigError(["state.json: cannot be written: No space left on device"])
        self.content = content

    @property
    def state(self) -> SavedState:
        assert self.content is not None
        return parse_state(self.content, name="memory")


class running:  # noqa: N801 - used as a function
    """A router that runs for the length of a block, whose end is a kill unless it is orderly."""

    def __init__(
        self,
        fleet: MemoryFleet,
        store: MemoryStore | None,
        *,
        resume: SavedState | None = None,
        seed: int = 0,
        **changes: Any,
    ) -> None:
        self.store = store
        self.router = Router(
            changes.get("config", fleet.config),
            environ=fleet.environ,
            connect=fleet.connect,
            rng=random.Random(seed),
            wall_clock=trio.current_time,
            state_store=store,
            resume=resume,
        )

    async def __aenter__(self) -> Self:
        self._manager = trio.open_nursery()
        self.nursery = await self._manager.__aenter__()
        await self.nursery.start(self.router.run)
        return self

    def kill(self) -> None:
        """From here on nothing of this router does anything."""
        if self.store is not None:
            self.store.dead = True

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        self.nursery.cancel_scope.cancel(reason="the router ends")
        return bool(await self._manager.__aexit__(exc_type, exc, traceback))
