"""The journal's file."""

from __future__ import annotations

import logging
import os
import threading

from narwhal.model import ConfigError

logger = logging.getLogger(__name__)


# How long a write waits for one that is under way in another thread. That happens at shutdown
# only: a healthy disk takes milliseconds, and one that is stuck must not hold up the exit.
_BUSY_WAIT_S = 0.5


class JournalFile:
    """The journal's file, open for appending: an operating system's error never leaves it.

    Each `write` is one system call of whole lines on a descriptor in append mode, so rows of two
    processes do not mix. After a failure the file is opened anew at the next write. A failure is
    counted each time and logged once until a write succeeds again.

    `write` blocks on the disk and belongs in a thread; the other methods may be called from any.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = os.fspath(path)
        self._lock = threading.Lock()
        self._fd = -1
        self._errors = 0
        self._failing = False
        self._torn = False
        self._reopen = False

    @property
    def errors(self) -> int:
        """Failures to open or write since the start."""
        return self._errors

    def open(self) -> None:
        """Open the file at start-up, when there is still somebody to tell.

        Raises:
            ConfigError: it cannot be opened for appending.

        """
        try:
            self._open()
        except OSError as error:
            reason = error.strerror or str(error)
            msg = (
                f"journal: {self._path!r} cannot be opened for appending ({reason}); "
                "name a file in an existing folder that the router may write to"
            )
            raise ConfigError([msg]) from error

    def reopen(self) -> None:
        """Open the path anew at the next write, because a rotation renamed the file."""
        self._reopen = True

    def write(self, data: bytes) -> int:
        """Append whole lines; return how many of them reached the file complete.

        A full disk can take part of a line. The next write then starts on a new line, so that
        exactly one line of the file is not JSON. With another write stuck, nothing is written.
        """
        if not self._lock.acquire(timeout=_BUSY_WAIT_S):
            return 0
        try:
            lead = b"\n" if self._torn else b""
            written = self._append(lead + data) - len(lead)
            return data.count(b"\n", 0, max(written, 0))
        finally:
            self._lock.release()

    def close(self) -> None:
        """Close the file; a later `write` opens it again. Never raises."""
        if self._lock.acquire(timeout=_BUSY_WAIT_S):
            try:
                self._release()
            finally:
                self._lock.release()

    def _open(self) -> None:
        if self._reopen:
            self._reopen = False
            self._release()
        if self._fd < 0:
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
            self._fd = os.open(self._path, flags, 0o640)

    def _append(self, data: bytes) -> int:
        written = 0
        try:
            self._open()
            while written < len(data):  # one round, unless the disk is filling up
                written += os.write(self._fd, data[written:])
        except OSError as error:
            self._failed(error)
        else:
            self._recovered()
        if written:
            self._torn = data[written - 1] != ord("\n")
        return written

    def _failed(self, error: OSError) -> None:
        self._errors += 1
        if not self._failing:
            logger.warning(
                "journal: writing to %s fails (%s); rows are lost and counted until it works again",
                self._path,
                error.strerror or error,
            )
        self._failing = True
        self._release()

    def _recovered(self) -> None:
        if self._failing:
            logger.warning("journal: writing to %s works again", self._path)
        self._failing = False

    def _release(self) -> None:
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            # A late error is about data of a write that was counted as kept: it says so here.
            try:
                os.close(fd)
            except OSError as error:
                logger.warning("journal: closing %s failed (%s)", self._path, error.strerror)
