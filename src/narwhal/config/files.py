"""Files that are replaced as a whole: the old one or the new one, whatever happens meanwhile.

Every function blocks until the disk is done.
"""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

from narwhal.config.document import MAX_FILE_BYTES
from narwhal.model import ConfigError

AnyPath = str | os.PathLike[str]

_MODE = 0o666  # less what the umask takes away
# Names that a writer tries for its new file; one is left over for each time that one was killed.
_MOST_LEFT_OVER = 1000


def base_name(path: AnyPath) -> str:
    """A file's base name, fit to be printed."""
    name = Path(path).name or str(Path(path))
    return name if name.isprintable() else ascii(name)


def replace_file(path: AnyPath, content: bytes) -> None:
    """Replace the file at `path`, or make one, with its directory if need be.

    Whatever happens meanwhile, a crash of the machine included, there is the old file or the new
    one at `path`, whole. When this returns, the new one is on the disk. A new file has the mode
    that the umask leaves it, a replaced one keeps its own; a symbolic link stays one. Raises
    nothing but `ConfigError`, with one line, if the file cannot be written.
    """
    name = base_name(path)
    if len(content) > MAX_FILE_BYTES:
        text = f"{len(content)} bytes are more than is ever read, {MAX_FILE_BYTES}"
        raise ConfigError([f"{name}: cannot be written: {text}"])
    try:
        target = _target(path)
        # Write beside the file, make sure of it, and only then give it the file's name.
        new = _write_beside(target, content)
        with _RemovedOnFailure(new):
            new.replace(target)
    except (OSError, ValueError) as error:
        text = f"{name}: cannot be written: {_reason(error)}; what was there is as it was"
        raise ConfigError([text]) from error
    try:
        _sync_directory(target.parent)
    except OSError as error:
        text = (
            f"{name}: was written, but its directory cannot be synced: {error.strerror}; "
            "the new file may be lost if the machine fails now"
        )
        raise ConfigError([text]) from error


def try_place(path: AnyPath) -> None:
    """Find out whether `replace_file` can be expected to work there, without touching the file.

    The directory is made if it is not there. Raises `OSError` or `ValueError` if not.
    """
    target = _target(path)
    if target.is_dir():
        raise IsADirectoryError(None, "Is a directory")
    new, descriptor = _open_beside(target)
    os.close(descriptor)
    new.unlink()


def _target(path: AnyPath) -> Path:
    target = Path(os.path.realpath(path))
    with contextlib.suppress(FileExistsError):
        target.parent.mkdir(parents=True)
    return target


def _reason(error: OSError | ValueError) -> str:
    return getattr(error, "strerror", None) or str(error)


def _write_beside(target: Path, content: bytes) -> Path:
    """Make a new file in the same directory, with `content` on the disk; its path."""
    new, descriptor = _open_beside(target)
    with _RemovedOnFailure(new):
        try:
            with contextlib.suppress(FileNotFoundError):
                os.fchmod(descriptor, stat.S_IMODE(target.stat().st_mode))
            left = memoryview(content)
            while left:
                left = left[os.write(descriptor, left) :]
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    return new


def _open_beside(target: Path) -> tuple[Path, int]:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    for number in range(_MOST_LEFT_OVER):
        new = target.with_name(f".{target.name}.{number}.tmp")
        with contextlib.suppress(FileExistsError):
            return new, os.open(new, flags, _MODE)
    raise OSError(f"{_MOST_LEFT_OVER} files such as {new.name} are left over: delete them")


class _RemovedOnFailure:
    """A context that removes `path`, if that can be done, when it is left by an exception."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:
            with contextlib.suppress(OSError):
                self._path.unlink()


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
