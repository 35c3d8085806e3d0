"""The one task that moves journal rows to their file, off the request path."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from narwhal.model.version import __version__
from narwhal.telemetry import EngineSummary, StartRow, encode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from narwhal.router.core import Core
    from narwhal.telemetry import JournalFile
    from narwhal.telemetry.rows import Row

# Rows are in the file within a quarter of a second; a batch is what one core routes in about
# half a second, a megabyte or two of text.
_INTERVAL_S = 0.25
_BATCH_ROWS = 1024


class JournalWriter:
    """Writes rows in batches, in a thread, because a disk may stall for seconds.

    Serving never waits for it: the buffer it empties is bounded, and what does not fit is
    dropped and counted.
    """

    def __init__(self, core: Core, file: JournalFile) -> None:
        self._core = core
        self._journal = core.telemetry.journal
        self._file = file
        self._rotated = False
        self._unsure = 0  # rows of a write that was abandoned before it said what it kept
        self._journal.append_nowait(self._head(rotated=False))

    def reopen(self) -> None:
        """The file was renamed: what comes from now on goes to a new one of the old name.

        Synchronous. The new file is there after the next write, which is within a moment, and
        begins by saying what its rows are to be measured by.
        """
        self._rotated = True

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Write until cancelled. A cancel does not wait for a write that is stuck."""
        task_status.started()
        while True:
            await trio.sleep(_INTERVAL_S)
            while rows := self._take():
                self._unsure = len(rows)
                kept = await trio.to_thread.run_sync(
                    self._file.write, encode(rows), abandon_on_cancel=True
                )
                self._unsure = 0
                self._journal.note_lost(len(rows) - kept)

    def finish(self, now: float) -> None:
        """Write what is left and a stop row, synchronously: at the end there is nobody to delay.

        But for a disk that takes nothing: it is asked once, and not once for each batch.
        """
        telemetry = self._core.telemetry
        self._journal.note_lost(self._unsure)
        self._journal.append_nowait(telemetry.stop_row(ts=self._core.wall_clock(), now=now))
        while rows := self._take():
            kept = self._file.write(encode(rows))
            self._journal.note_lost(len(rows) - kept)
            if not kept:
                self._journal.note_lost(len(self._journal.drain(len(self._journal))))
        self._file.close()

    def _take(self) -> Sequence[Row]:
        """The next batch, with a head if it is the first of a file. Not while one is written."""
        rows = self._journal.drain(_BATCH_ROWS)
        if not self._rotated:
            return rows
        self._rotated = False
        self._file.reopen()
        return [self._head(rotated=True), *rows]

    def _head(self, *, rotated: bool) -> StartRow:
        core, config = self._core, self._core.config
        return StartRow(
            ts=core.wall_clock(),
            rotated=rotated,
            version=__version__,
            model=config.model,
            ttft_s=config.slo.ttft_s,
            ttft_scope=config.slo.ttft_scope,
            tpot_s=config.slo.tpot_s,
            engines=tuple(EngineSummary(e.iid, core.role(e.iid), e.pin) for e in config.engines),
        )
