"""The profile store: what is known of the speed of a fleet's engines, as one JSON document."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

import attrs

from narwhal.config.document import parse_json
from narwhal.config.faults import Fault, Faults
from narwhal.config.settings import shown
from narwhal.model import ConfigError
from narwhal.profiles.reading import (
    engine_faults,
    engine_names,
    head_faults,
    judged,
    labelled,
    read_list,
    unknown_keys,
)
from narwhal.profiles.rows import ProfileRow, read_row, row_document

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from narwhal.profiles.profile import Profile

SCHEMA = "narwhal.profiles"
VERSION = 1
_KEYS = ("schema", "schema_version", "meta", "profiles")


def _by_name(rows: Iterable[ProfileRow]) -> tuple[ProfileRow, ...]:
    return tuple(sorted(rows, key=lambda row: row.iid))


@attrs.frozen(kw_only=True)
class ProfileStore:
    """Rows in the order of their engines' names, one for each engine, and notes of the writer."""

    rows: tuple[ProfileRow, ...] = attrs.field(default=(), converter=_by_name)
    # A mapping, although frozen: treat it as a constant. It is no part of the hash.
    meta: Mapping[str, object] = attrs.field(factory=dict, hash=False)
    """What the writer wrote down about the measurements. Nothing reads it."""

    @rows.validator
    def _check_names(self, _field: object, rows: tuple[ProfileRow, ...]) -> None:
        names = [row.iid for row in rows]
        if len(set(names)) < len(names):
            raise ConfigError([f"ProfileStore.rows must have one row for each engine: {names}"])

    @property
    def profiles(self) -> dict[str, Profile]:
        """The profile of each engine, by its name."""
        return {row.iid: row.profile for row in self.rows}

    def row(self, iid: str) -> ProfileRow | None:
        """The row of an engine, if there is one."""
        return next((row for row in self.rows if row.iid == iid), None)

    def with_rows(self, rows: Iterable[ProfileRow]) -> ProfileStore:
        """The store with these rows in place of those of the same engines, all else as it is."""
        changed = {row.iid: row for row in self.rows} | {row.iid: row for row in rows}
        return attrs.evolve(self, rows=tuple(changed.values()))


def parse_store(content: bytes, *, name: str, iids: Collection[str] | None = None) -> ProfileStore:
    """Read a store. `iids` are the fleet's engines: each has to be in it, and no other.

    `None` takes any engines. Raises `ConfigError` with every mistake, a line for each, that begins
    with `name` and says in which engine's row and in which field it is. Nothing else is raised.
    """
    try:
        return _read(parse_json(content), iids)
    except Faults as faults:
        raise faults.named(name) from None


def store_bytes(store: ProfileStore) -> bytes:
    """The content of a file that `parse_store` makes an equal store of.

    The same store gives the same bytes: rows in order of names, keys of `meta` in alphabetical
    order. Raises `ConfigError` if a row cannot be written as one, and `ValueError` or `TypeError`
    if `meta` is not JSON.
    """
    document = {
        "schema": SCHEMA,
        "schema_version": VERSION,
        "meta": _sorted(store.meta),
        "profiles": [row_document(row) for row in store.rows],
    }
    return json.dumps(document, indent=1, allow_nan=False).encode() + b"\n"


def _read(document: object, iids: Collection[str] | None) -> ProfileStore:
    if not isinstance(document, Mapping):
        raise Faults.one(f"must be an object, not {shown(document)}")
    listed = document.get("profiles")
    names = engine_names(listed)
    faults = head_faults(document, SCHEMA, VERSION)
    faults += unknown_keys(document, _KEYS, hint="notes belong into meta")
    meta = document.get("meta", {})
    if not isinstance(meta, Mapping):
        faults.append(Fault("meta", f"must be an object, not {shown(meta)}: empty it"))
    rows: list[ProfileRow | None] = []
    if "profiles" not in document:
        faults.append(Fault("profiles", "is missing: it is the list of rows, one for each engine"))
    else:
        rows, found = read_list(listed, read_row)
        faults += Faults(found).under("profiles")
        faults += engine_faults("profiles", names, iids) if isinstance(listed, list) else []
    if faults := judged(document, faults):
        raise Faults([labelled(fault, "profiles", names) for fault in faults])
    return ProfileStore(rows=tuple(row for row in rows if row is not None), meta=meta)


def _sorted(value: object) -> object:
    if isinstance(value, Mapping):
        return {key: _sorted(value[key]) for key in sorted(value)}
    if isinstance(value, list | tuple):
        return [_sorted(each) for each in value]
    return value
