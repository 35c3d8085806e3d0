"""The samples file, beside a store: what was measured, so that it can be fitted again.

A list of engines, each with its identity and four lists of samples, whose objects have the field
names of the classes in `narwhal.profiles.samples`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import attrs

from narwhal.config.document import parse_json
from narwhal.config.faults import Fault, Faults
from narwhal.config.settings import fields_of, shown
from narwhal.model import ConfigError
from narwhal.profiles.reading import (
    engine_faults,
    engine_names,
    head_faults,
    judged,
    labelled,
    read_flat,
    read_list,
    unknown_keys,
)
from narwhal.profiles.samples import (
    DecodeSample,
    EngineSamples,
    HandoffSample,
    Measured,
    PrefillSample,
    TextSample,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

SCHEMA = "narwhal.profile_samples"
VERSION = 1
_KEYS = ("schema", "schema_version", "engines")
_LISTS: dict[str, type] = {
    "prefill": PrefillSample,
    "decode": DecodeSample,
    "handoff": HandoffSample,
    "text": TextSample,
}


def _by_name(engines: Iterable[EngineSamples]) -> tuple[EngineSamples, ...]:
    return tuple(sorted(engines, key=lambda each: each.engine.iid))


@attrs.frozen
class SampleStore:
    """The samples of several engines, in the order of their names, once for each engine."""

    engines: tuple[EngineSamples, ...] = attrs.field(default=(), converter=_by_name)

    @engines.validator
    def _check_names(self, _field: object, engines: tuple[EngineSamples, ...]) -> None:
        names = [each.engine.iid for each in engines]
        if len(set(names)) < len(names):
            raise ConfigError([f"SampleStore.engines must have each engine once: {names}"])

    def with_engines(self, engines: Iterable[EngineSamples]) -> SampleStore:
        """The store with these samples in place of those of the same engines."""
        changed = {each.engine.iid: each for each in self.engines}
        changed |= {each.engine.iid: each for each in engines}
        return SampleStore(tuple(changed.values()))


def parse_samples(content: bytes, *, name: str, iids: Collection[str] | None = None) -> SampleStore:
    """Read samples. `iids` are the fleet's engines: each has to be in it, and no other.

    `None` takes any engines. Raises `ConfigError` with every mistake, a line for each, that begins
    with `name` and says of which engine and in which field it is. Nothing else is raised.
    """
    try:
        return _read(parse_json(content), iids)
    except Faults as faults:
        raise faults.named(name) from None


def sample_bytes(store: SampleStore) -> bytes:
    """The content of a file that `parse_samples` makes an equal store of.

    The same store gives the same bytes: engines in order of names, samples in theirs.
    """
    document = {
        "schema": SCHEMA,
        "schema_version": VERSION,
        "engines": [_engine_document(each) for each in store.engines],
    }
    return json.dumps(document, indent=1, allow_nan=False).encode() + b"\n"


def _read(document: object, iids: Collection[str] | None) -> SampleStore:
    if not isinstance(document, Mapping):
        raise Faults.one(f"must be an object, not {shown(document)}")
    listed = document.get("engines")
    names = engine_names(listed)
    faults = head_faults(document, SCHEMA, VERSION) + unknown_keys(document, _KEYS)
    engines: list[EngineSamples | None] = []
    if "engines" not in document:
        faults.append(Fault("engines", "is missing: it is the list of what was measured"))
    else:
        engines, found = read_list(listed, _read_engine)
        faults += Faults(found).under("engines")
        faults += engine_faults("engines", names, iids) if isinstance(listed, list) else []
    if faults := judged(document, faults):
        raise Faults([labelled(fault, "engines", names) for fault in faults])
    return SampleStore(tuple(each for each in engines if each is not None))


def _read_engine(value: object) -> EngineSamples:
    if not isinstance(value, Mapping):
        raise Faults.one(f"must be an object, not {shown(value)}")
    known = [field.name for field in fields_of(Measured)]
    faults = unknown_keys(value, [*known, *_LISTS])
    values, found = read_flat({key: value[key] for key in known if key in value}, Measured)
    faults += found
    lists: dict[str, Any] = {}
    for key, kind in _LISTS.items():
        lists[key], found = read_list(value.get(key, []), _sample_reader(kind))
        faults += Faults(found).under(key)
    if faults:
        raise Faults(faults)
    samples = {key: tuple(each) for key, each in lists.items()}
    return EngineSamples(engine=Measured(**values), **samples)


def _sample_reader(kind: type) -> Any:
    def read(value: object) -> object:
        values, faults = read_flat(value, kind)
        if faults:
            raise Faults(faults)
        return kind(**values)

    return read


def _engine_document(samples: EngineSamples) -> dict[str, object]:
    document = {
        key: value for key, value in attrs.asdict(samples.engine).items() if value is not None
    }
    for key in _LISTS:
        document[key] = [attrs.asdict(each) for each in getattr(samples, key)]
    return document
