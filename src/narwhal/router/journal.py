"""The one task that moves journal rows to their file, off the request path."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

import trio

from narwhal.model.version import __version__
from narwhal.telemetry import EngineSummary, StartRow, encode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from narwhal.router.core import Core
    from narwhal.telemetry import JournalFile
    from narwhal.telemetry.rows import Row

logger = logging.getLogger(__name__)

# Rows are in the file within a quarter of a second; a batch is what one core routes in about
# half a second, a megabyte or two of text.
_INTERVAL_S = 0.25
_BATCH_ROWS = 1024
# A full buffer is 16 MB at the most, which a disk that works takes in a tenth of that.
_LAST_WRITE_S = 1.0


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
        self._unsure = 0  # rows of a write that has not said yet what it kept
        self._kept = 0
        self._written = threading.Event()
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
        alone = trio.CapacityLimiter(1)  # it need not wait until others' threads are done
        while True:
            await trio.sleep(_INTERVAL_S)
            while rows := await self._next():
                self._unsure = len(rows)
                self._written.clear()
                await trio.to_thread.run_sync(
                    self._write,
                    encode(rows),
                    encode([self._head(rotated=True)]),
                    abandon_on_cancel=True,
                    limiter=alone,
                )
                self._count_lost()

    def finish(self, now: float) -> None:
        """Write what is left and a stop row, and close the file: at the end nobody is delayed.

        Blocks `_LAST_WRITE_S` for a write that is under way and as long again for this one, at
        the most: what a stuck disk has not taken by then is lost.
        """
        stuck = self._unsure and not self._written.wait(_LAST_WRITE_S)
        self._count_lost()
        stop = self._core.telemetry.stop_row(ts=self._core.wall_clock(), now=now)
        self._journal.append_nowait(stop)
        rows = self._take(len(self._journal))
        self._unsure = len(rows)
        if not stuck:
            self._written.clear()
            texts = encode(rows), encode([self._head(rotated=True)])
            thread = threading.Thread(target=self._write_last, args=texts, daemon=True)
            thread.start()
            self._written.wait(_LAST_WRITE_S)
        self._count_lost()

    def _write(self, data: bytes, head: bytes) -> None:
        """Write rows. If somebody has removed the file, they go to a new one, below `head`."""
        if self._file.removed():
            logger.warning("journal: its file was removed; going on in a new one of that name")
            self._file.reopen()
            self._kept = max(0, self._file.write(head + data) - 1)
        else:
            self._kept = self._file.write(data)
        self._written.set()

    def _write_last(self, data: bytes, head: bytes) -> None:
        self._write(data, head)
        self._file.close()

    def _count_lost(self) -> None:
        """Count the rows of the last write that are not known to be in the file."""
        self._journal.note_lost(self._unsure - self._kept)
        self._unsure = self._kept = 0

    async def _next(self) -> Sequence[Row]:
        """The next batch; a cancel comes before it is taken, and not while no thread has it yet."""
        await trio.lowlevel.checkpoint_if_cancelled()
        return self._take()

    def _take(self, most: int = _BATCH_ROWS) -> Sequence[Row]:
        """The next rows, with a head if they are the first of a file. Not while some are written.

        No rows, if there are none and the file goes on.
        """
        rows = self._journal.drain(most)
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
