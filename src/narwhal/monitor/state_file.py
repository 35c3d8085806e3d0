"""Where a state document lies. `StateFile` is a file; tests and simulations may bring their own."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Protocol

import trio

from narwhal.config.document import read_bytes
from narwhal.config.faults import Faults
from narwhal.config.files import base_name, replace_file, try_place
from narwhal.model import ConfigError
from narwhal.monitor.state_document import SavedState, parse_state

if TYPE_CHECKING:
    from narwhal.config.files import AnyPath

# As for the journal: what an exit gives to a write that is under way in another thread.
_BUSY_WAIT_S = 0.5
_KIND = "state document"


class StateStore(Protocol):
    """Keeps one document: a new one replaces the old one as a whole, or not at all."""

    async def write(self, content: bytes) -> None:
        """Keep `content` from now on. Raises `ConfigError` if that did not work.

        Nothing waits for it but the task that called it. A cancel may leave the old or the new
        one there.
        """

    def write_last(self, content: bytes) -> None:
        """Keep `content`, whatever becomes of a `write` that was cancelled before.

        Blocks, half a second at most for one that hangs. Raises `ConfigError` if it did not work.
        """


class StateFile:
    """A state document in a file. `kill -9` at any instant leaves the old one or the new one."""

    def __init__(self, path: AnyPath) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._asked = 0
        self._kept = 0

    def check(self) -> None:
        """Find out at start-up, when there is still somebody to tell, whether it can be written.

        A file that is there has to be a state document: anything else is somebody's, and would be
        lost. Raises `ConfigError` with a line that names the setting.
        """
        try:
            try_place(self._path)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            text = (
                f"recovery.state_path: {os.fspath(self._path)!r} cannot be written ({reason}); "
                "name a file in a folder that the router may write to"
            )
            raise ConfigError([text]) from error
        if _is_there(self._path):
            self._check_kind()

    def _check_kind(self) -> None:
        try:
            content = read_bytes(self._path, _KIND)
        except Faults as faults:
            raise faults.named(base_name(self._path)) from None
        # Not read through: one that cannot be read is to be replaced all the same.
        if content and b'"narwhal.state"' not in content:
            text = (
                f"recovery.state_path: {os.fspath(self._path)!r} is there and is no state "
                "document, so it is not replaced: name another file, or delete it"
            )
            raise ConfigError([text])

    async def write(self, content: bytes) -> None:
        """Replace the file, in a thread. A cancel does not wait for a disk that hangs."""
        self._asked += 1
        await trio.to_thread.run_sync(self._write, self._asked, content, abandon_on_cancel=True)

    def write_last(self, content: bytes) -> None:
        """Replace the file, here and now; writes of before that are still to come do nothing."""
        self._asked += 1
        self._write(self._asked, content, patience=_BUSY_WAIT_S)

    def _write(self, number: int, content: bytes, patience: float = -1) -> None:
        if not self._lock.acquire(timeout=patience):
            text = f"{base_name(self._path)}: cannot be written: an earlier write hangs"
            raise ConfigError([text])
        try:
            # A thread that was abandoned may have its turn after the last word.
            if number > self._kept:
                replace_file(self._path, content)
                self._kept = number
        finally:
            self._lock.release()


def load_state(path: AnyPath) -> SavedState | None:
    """Read the state document at `path`, as `parse_state` does; `None` if there is no file.

    Blocks. Raises nothing but `ConfigError`.
    """
    name = base_name(path)
    if not _is_there(path):
        return None
    try:
        content = read_bytes(path, _KIND)
    except Faults as faults:
        raise faults.named(name) from None
    return parse_state(content, name=name)


def _is_there(path: AnyPath) -> bool:
    try:
        os.stat(path)  # noqa: PTH116 - a path with a NUL byte is told as such by whoever opens it
    except (FileNotFoundError, NotADirectoryError):
        return False
    except (OSError, ValueError):
        return True  # reading it says what is wrong
    return True
