"""Loading a fleet file: all that is wrong with it, in one error."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from narwhal.config.document import document_faults, is_note, parse_json, read_bytes
from narwhal.config.faults import Fault, Faults, join
from narwhal.config.fleet import EngineSpec, FleetConfig
from narwhal.config.presets import overruled, with_preset
from narwhal.config.rules import broken_rules
from narwhal.config.settings import type_complaint
from narwhal.config.structure import structure_fleet

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator

_ENGINE = re.compile(r"engines\[([0-9]+)\]")


@attrs.frozen
class Loaded:
    """A fleet file that was read: what it means, and which settings it gave itself."""

    name: str
    """The file's base name, fit to be printed."""
    config: FleetConfig
    given: frozenset[str]
    """Paths such as `serving.max_attempts` and `engines[0].role`; all others are defaults."""

    @property
    def remarks(self) -> tuple[str, ...]:
        """What is right, and probably not what was meant: a line for each."""
        names = overruled(self.config, self.given)
        if not names:
            return ()
        others = f" and {len(names) - 1} more" if len(names) > 1 else ""
        text = (
            f'{self.name}: controller.preset "{self.config.controller.preset}" has no say in what '
            f'the file gives itself, with the values of "reference": {names[0]}{others}; leave '
            "them out"
        )
        return (text,)


def load_fleet(path: str | os.PathLike[str], *, environ: Mapping[str, str]) -> FleetConfig:
    """Read the fleet file at `path`; `environ` is where `${NAME}` and the engines' key come from.

    Raises `ConfigError` with every mistake in the file, a line each, and nothing else. Reads the
    file in one go and blocks while it does.
    """
    return read_fleet(path, environ=environ).config


def parse_fleet(document: object, *, name: str, environ: Mapping[str, str]) -> FleetConfig:
    """The same from a document that was parsed already; `name` stands at the head of each line."""
    try:
        return _judge(document, environ)
    except Faults as faults:
        raise faults.named(name) from None


def read_fleet(path: str | os.PathLike[str], *, environ: Mapping[str, str]) -> Loaded:
    """Like `load_fleet`, and tells which settings the file gave."""
    name = Path(path).name or str(Path(path))
    name = name if name.isprintable() else ascii(name)
    try:
        document = parse_json(read_bytes(path))
        return Loaded(name, _judge(document, environ), frozenset(_given(document)))
    except Faults as faults:
        raise faults.named(name) from None


def _judge(document: object, environ: Mapping[str, str]) -> FleetConfig:
    faults = document_faults(document)
    document = with_preset(document)
    try:
        config = structure_fleet(document, environ)
    except Faults as caught:
        # A number that is none was found in both places; one line for it will do.
        known = {fault.path for fault in faults}
        faults += [fault for fault in caught.faults if fault.path not in known]
        partial = caught.partial
    else:
        partial = config
    if isinstance(partial, FleetConfig):
        faults += broken_rules(partial, unread={fault.path for fault in faults})
    if faults:
        raise Faults([_labelled(fault, document) for fault in faults])
    return config


def _labelled(fault: Fault, document: object) -> Fault:
    """The same fault, its engine called by name as well if the document gives a usable one."""
    found = _ENGINE.match(fault.path)
    if found is None or not isinstance(document, Mapping):
        return fault
    engine = document["engines"][int(found[1])]
    iid = engine.get("iid") if isinstance(engine, Mapping) else None
    if iid is None or type_complaint(attrs.fields(EngineSpec).iid.type, iid):
        return fault
    return Fault(f"{found[0]} ({iid}){fault.path[found.end() :]}", fault.text)


def _given(value: object, path: str = "") -> Iterator[str]:
    """The paths of all settings in a document, notes left out."""
    if isinstance(value, dict) and path != "engine_contract":
        for key, each in value.items():
            if not is_note(key):
                yield from _given(each, join(path, key))
    elif isinstance(value, list) and path == "engines":
        for index, each in enumerate(value):
            yield from _given(each, f"{path}[{index}]")
    else:
        yield path
