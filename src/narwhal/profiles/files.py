"""Stores and samples on disk. The only module of this package that reads or writes files.

Every function blocks until the disk is done.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from narwhal.config.document import read_bytes
from narwhal.config.faults import Faults
from narwhal.config.files import base_name, replace_file
from narwhal.profiles.sample_store import SampleStore, parse_samples, sample_bytes
from narwhal.profiles.store import ProfileStore, parse_store, store_bytes

if TYPE_CHECKING:
    import os
    from collections.abc import Collection, Iterable, Mapping

    from narwhal.profiles.rows import ProfileRow
    from narwhal.profiles.samples import EngineSamples

    AnyPath = str | os.PathLike[str]


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

    It is the old file or the new one at every instant, with what `replace_file` guarantees. Raises
    `ConfigError` if the file cannot be written.
    """
    replace_file(path, store_bytes(store))


def write_samples(path: AnyPath, samples: SampleStore) -> None:
    """Replace the samples at `path`, or write the first, with what `write_store` guarantees."""
    replace_file(path, sample_bytes(samples))


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
