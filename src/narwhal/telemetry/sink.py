"""The journal's file."""

from __future__ import annotations

import errno
import logging
import os
import stat
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
            msg = (
                f"journal: {self._path!r} cannot be opened for appending ({_reason(error)}); "
                "name a file in an existing folder that the router may write to"
            )
            raise ConfigError([msg]) from error

    def reopen(self) -> None:
        """Open the path anew at the next write, because a rotation renamed the file."""
        self._reopen = True

    def removed(self) -> bool:
        """Whether somebody removed the file: what is written to it now would be read by nobody."""
        try:
            return self._fd >= 0 and os.fstat(self._fd).st_nlink == 0
        except OSError:  # it was closed meanwhile
            return False

    def write(self, data: bytes) -> int:
        """Append whole lines; return how many of them reached the file complete.

        A full disk can take part of a line, and a router that was killed can have left one. The
        next write then starts on a new line, so that exactly one line of the file is not JSON.
        With another write stuck, nothing is written.
        """
        if not self._lock.acquire(timeout=_BUSY_WAIT_S):
            return 0
        try:
            return self._append(data)
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
            self._reopen = self._torn = False
            self._release()
        if self._fd < 0:
            # Without waiting for somebody to read, should it be a pipe: nobody may ever come.
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK
            self._fd = os.open(self._path, flags, 0o640)
            os.set_blocking(self._fd, True)
            torn = _is_torn(self._path, self._fd)
            self._torn = self._torn if torn is None else torn

    def _append(self, data: bytes) -> int:
        """Return how many lines of `data` are in the file."""
        lead = written = 0
        try:
            self._open()
            lead = int(self._torn)
            text = b"\n" * lead + data
            while written < len(text):  # one round, unless the disk is filling up
                written += os.write(self._fd, text[written:])
        except OSError as error:
            self._failed(error)
        else:
            self._recovered()
        if written > lead:
            self._torn = data[written - lead - 1] != ord("\n")
        elif written:
            self._torn = False
        return data.count(b"\n", 0, max(written - lead, 0))

    def _failed(self, error: OSError) -> None:
        self._errors += 1
        if not self._failing:
            logger.warning(
                "journal: writing to %s fails (%s); rows are lost and counted until it works again",
                self._path,
                _reason(error),
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


def _is_torn(path: str, fd: int) -> bool | None:
    """Whether the last line of the file is not complete; None if the file does not say."""
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            return None
        with open(path, "rb") as file:  # noqa: PTH123 - `fd` is for writing alone
            file.seek(max(0, found.st_size - 1))
            return file.read(1) not in (b"", b"\n")
    except OSError:  # it may be written, and not read
        return None


def _reason(error: OSError) -> str:
    if error.errno == errno.ENXIO:
        return "it is a pipe that nobody reads"
    return error.strerror or str(error)
