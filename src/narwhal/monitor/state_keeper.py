"""Keeping the state document up to date, without ever waiting for the disk."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from narwhal.model import ConfigError
from narwhal.monitor.state_document import SavedState, state_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

    import trio

    from narwhal.monitor.state_file import StateStore
    from narwhal.telemetry import Telemetry

logger = logging.getLogger("narwhal.monitor")

NOT_WRITTEN = "the state document cannot be written (recovery.state_path)"
STILL_WRITING = "the state document is still being written (recovery.state_path)"


class StageFailed(Exception):
    """A stage of a pass did not do what it is for, for a reason that was foreseen.

    Its text names no file and no address: clients may be told.
    """


class StateKeeper:
    """Gives a store what changed, at most once a pass, one write at a time.

    What became of a write is known when the next pass comes, and counts for that one: its stage
    fails if the write failed, or is still under way. A state that was not kept is tried again,
    as it is then, with every pass.
    """

    def __init__(
        self, store: StateStore, snapshot: Callable[[], SavedState], telemetry: Telemetry
    ) -> None:
        """`snapshot` tells what there is to be kept, synchronously."""
        self._store = store
        self._snapshot = snapshot
        self._telemetry = telemetry
        self._kept: SavedState | None = None
        self._writing = False
        self._failed = False
        self._told = False

    def one_pass(self, nursery: trio.Nursery) -> None:
        """Start to write, in `nursery`, if there is anything new. Raises `StageFailed`."""
        if self._writing:
            raise StageFailed(STILL_WRITING)
        failed, self._failed = self._failed, False
        state = self._snapshot()
        if state.tells(self._kept):
            content = state_bytes(state)
            # Until it is over, what is kept may be the old state or the new one.
            self._writing, self._kept = True, None
            nursery.start_soon(self._write, state, content)
        if failed:
            raise StageFailed(NOT_WRITTEN)

    async def _write(self, state: SavedState, content: bytes) -> None:
        try:
            await self._store.write(content)
        except ConfigError as error:
            self._note_failure(error)
        except Exception:
            logger.exception("state: keeping it failed")
            self._failed = True
        else:
            self._kept = state
            self._note_success()
        finally:
            self._writing = False

    def finish(self) -> None:
        """Keep the last state, synchronously: at the end there is nobody to delay. Never raises."""
        try:
            state = self._snapshot()
            if state.tells(self._kept):
                self._store.write_last(state_bytes(state))
        except ConfigError as error:
            self._note_failure(error)
        except Exception:
            logger.exception("state: keeping the last one failed")
        else:
            self._kept = state

    def _note_failure(self, error: ConfigError) -> None:
        """Count it; say it once, until it works again."""
        self._failed = True
        self._telemetry.state_write_failed()
        if not self._told:
            self._told = True
            logger.warning("state: %s; it is tried again with every monitor pass", error)

    def _note_success(self) -> None:
        if self._told:
            logger.warning("state: writing works again")
        self._told = False
