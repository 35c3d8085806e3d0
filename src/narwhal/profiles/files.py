"""Stores and samples on disk. The only module of this package that reads or writes files.

Every function blocks until the disk is done.
"""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from narwhal.config.document import MAX_FILE_BYTES, read_bytes
from narwhal.config.faults import Faults
from narwhal.model import ConfigError
from narwhal.profiles.reading import base_name
from narwhal.profiles.sample_store import SampleStore, parse_samples, sample_bytes
from narwhal.profiles.store import ProfileStore, parse_store, store_bytes

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from narwhal.profiles.rows import ProfileRow
    from narwhal.profiles.samples import EngineSamples

    AnyPath = str | os.PathLike[str]

_MODE = 0o666  # less what the umask takes away
# Names that a writer tries for its new file; one is left over for each time that one was killed.
_MOST_LEFT_OVER = 1000


def load_store(path: AnyPath, *, iids: Collection[str] | None = None) -> ProfileStore:
    """Read the store at `path`, as `parse_store` does. Raises nothing but `ConfigError`."""
    return parse_store(_read(path, "profile store"), name=base_name(path), iids=iids)


def load_samples(path: AnyPath, *, iids: Collection[str] | None = None) -> SampleStore:
    """Read the samples at `path`, as `parse_samples` does. Raises nothing but `ConfigError`."""
    return parse_samples(_read(path, "samples file"), name=base_name(path), iids=iids)


def samples_path(store: AnyPath) -> Path:
    """Where the samples of a store lie: `profiles.samples.json` beside `profiles.json`."""
    path = Path(store)
    return path.with_name(f"{path.name.removesuffix('.json')}.samples.json")


def write_store(path: AnyPath, store: ProfileStore) -> None:
    """Replace the store at `path`, or make one, with its directory if need be.

    Whatever happens meanwhile, a crash of the machine included, there is the old file or the new
    one at `path`, whole. When this returns, the new one is on the disk. A new file has the mode
    that the umask leaves it, a replaced one keeps its own; a symbolic link stays one. Raises
    `ConfigError` if the file cannot be written.
    """
    _replace(path, store_bytes(store))


def write_samples(path: AnyPath, samples: SampleStore) -> None:
    """Replace the samples at `path`, or write the first, with what `write_store` guarantees."""
    _replace(path, sample_bytes(samples))


def update_store(
    path: AnyPath, rows: Iterable[ProfileRow], *, meta: Mapping[str, object] | None = None
) -> ProfileStore:
    """Put `rows` into the store at `path`, which may not exist yet, and return the whole.

    Rows of other engines stay as they are, and so does `meta` unless it is given. A file that is
    no store is not touched: that is the `ConfigError` of `load_store`. Of two updates at one time,
    the rows of one may be lost.
    """
    old = load_store(path) if _is_there(path) else ProfileStore()
    new = old.with_rows(rows)
    if meta is not None:
        new = attrs.evolve(new, meta=meta)
    write_store(path, new)
    return new


def update_samples(path: AnyPath, engines: Iterable[EngineSamples]) -> SampleStore:
    """Put samples into the file at `path`, as `update_store` does with rows into a store."""
    old = load_samples(path) if _is_there(path) else SampleStore()
    new = old.with_engines(engines)
    write_samples(path, new)
    return new


def _read(path: AnyPath, kind: str) -> bytes:
    try:
        return read_bytes(path, kind)
    except Faults as faults:
        raise faults.named(base_name(path)) from None


def _is_there(path: AnyPath) -> bool:
    try:
        Path(path).stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except (OSError, ValueError):
        return True  # reading it says what is wrong
    return True


def _replace(path: AnyPath, content: bytes) -> None:
    """Write beside the file, make sure of it, and only then give it the file's name."""
    name = base_name(path)
    if len(content) > MAX_FILE_BYTES:
        text = f"{len(content)} bytes are more than is ever read, {MAX_FILE_BYTES}"
        raise ConfigError([f"{name}: cannot be written: {text}"])
    try:
        target = Path(os.path.realpath(path))
        with contextlib.suppress(FileExistsError):
            target.parent.mkdir(parents=True)
        new = _write_beside(target, content)
        with _RemovedOnFailure(new):
            new.replace(target)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        text = f"{name}: cannot be written: {reason}; what was there is as it was"
        raise ConfigError([text]) from error
    try:
        _sync_directory(target.parent)
    except OSError as error:
        text = (
            f"{name}: was written, but its directory cannot be synced: {error.strerror}; "
            "the new file may be lost if the machine fails now"
        )
        raise ConfigError([text]) from error


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
