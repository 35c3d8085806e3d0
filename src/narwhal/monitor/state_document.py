"""What a router knows that must outlive it, as one JSON document.

Pure. `parse_state` and `state_bytes` are each other's inverse.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import attrs
import msgspec

from narwhal.config.document import parse_json
from narwhal.config.faults import Fault, Faults
from narwhal.config.settings import shown
from narwhal.config.urls import canonical_url
from narwhal.fleet import EngineState, Incarnation
from narwhal.model import Role
from narwhal.monitor.state_counters import counters_document, read_counters
from narwhal.monitor.state_fields import EngineFields, HeadFields
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
from narwhal.roles import Risk
from narwhal.telemetry import Counters

if TYPE_CHECKING:
    from collections.abc import Iterable

SCHEMA = "narwhal.state"
VERSION = 1
_HEAD = ("written_at", "model", "risk", "risk_at")
_KEYS = ("schema", "schema_version", *_HEAD, "engines", "counters", "rejections")


@attrs.frozen(kw_only=True)
class EngineRecord:
    """One engine as it stood. Texts hold no lone surrogates, and numbers are finite."""

    iid: str
    url: str
    role: Role
    state: EngineState
    reason: str = ""
    """Why it was in that state."""
    version: str | None = None
    """Of its process, and `None` if it was never asked."""
    process_start_s: float | None = None
    """Unix time."""

    @property
    def incarnation(self) -> Incarnation | None:
        """The process that it was, if that is known."""
        if self.version is None:
            return None
        return Incarnation(version=self.version, process_start_s=self.process_start_s)


def _by_name(engines: Iterable[EngineRecord]) -> tuple[EngineRecord, ...]:
    return tuple(sorted(engines, key=lambda engine: engine.iid))


@attrs.frozen(kw_only=True)
class SavedState:
    """A router's state at one moment. Engines are in the order of their names."""

    written_at: float
    """Unix time."""
    model: str
    engines: tuple[EngineRecord, ...] = attrs.field(converter=_by_name)
    counters: Counters = attrs.field(factory=Counters)
    risk: Risk | None = None
    """What role control last began to collect evidence anew for."""
    risk_at: float | None = None
    """When that was, Unix time."""

    def tells(self, other: SavedState | None) -> bool:
        """Whether there is anything in it that `other` does not say, its time apart."""
        return other is None or self != attrs.evolve(other, written_at=self.written_at)


def state_bytes(state: SavedState) -> bytes:
    """The content of a file that `parse_state` makes an equal state of.

    Equal states give equal bytes. Blocks for nothing.
    """
    document: dict[str, object] = {
        "schema": SCHEMA,
        "schema_version": VERSION,
        "written_at": state.written_at,
        "model": state.model,
        "risk": state.risk,
        "risk_at": state.risk_at,
        "engines": [attrs.asdict(engine) for engine in state.engines],
        "counters": counters_document(state.counters),
        "rejections": dict(sorted(state.counters.rejections.items())),
    }
    return msgspec.json.format(msgspec.json.encode(document), indent=1) + b"\n"


def parse_state(content: bytes, *, name: str) -> SavedState:
    """Read a state document.

    Raises `ConfigError` with every mistake, a line for each, that begins with `name` and says in
    which field it is. Nothing else is raised.
    """
    try:
        return _read(parse_json(content))
    except Faults as faults:
        raise faults.named(name) from None


# Reading


def _read(document: object) -> SavedState:
    if not isinstance(document, Mapping):
        raise Faults.one(f"must be an object, not {shown(document)}")
    faults = head_faults(document, SCHEMA, VERSION)
    if faults:
        # Another kind of file, or another version of it: what else is in it means nothing here.
        raise Faults(judged(document, faults))
    faults = unknown_keys(document, _KEYS)
    head, found = read_flat({key: document[key] for key in _HEAD if key in document}, HeadFields)
    faults += found
    names = engine_names(document.get("engines"))
    engines, found = _read_engines(document, names)
    faults += found
    counters, found = read_counters(document, [name for name in names if name is not None])
    faults += found
    if faults := judged(document, faults):
        raise Faults([labelled(fault, "engines", names) for fault in faults])
    head["risk"] = None if head["risk"] is None else Risk(head["risk"])
    return SavedState(**head, engines=tuple(engines), counters=counters)


def _read_engines(
    document: Mapping[str, object], names: list[str | None]
) -> tuple[list[EngineRecord], list[Fault]]:
    if "engines" not in document:
        return [], [Fault("engines", "is missing: it is the list of the fleet's engines")]
    listed = document["engines"]
    engines, found = read_list(listed, _read_engine)
    faults = Faults(found).under("engines")
    if isinstance(listed, list):
        faults += engine_faults("engines", names, None)
    return [engine for engine in engines if engine is not None], faults


def _read_engine(value: object) -> EngineRecord:
    values, faults = read_flat(value, EngineFields)
    if faults:
        raise Faults(faults)
    return EngineRecord(**_typed(values))


def _typed(values: dict[str, Any]) -> dict[str, Any]:
    return values | {
        "url": canonical_url(values["url"]),
        "role": Role(values["role"]),
        "state": EngineState(values["state"]),
    }
