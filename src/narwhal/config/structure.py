"""Between documents and values: strict structuring on cattrs, and the way back.

cattrs picks the hook by type; the hooks are ours, because the built-in ones convert (`"7"` to
7, `true` to 1.0) and stop at the first mistake. A hook that cannot read its part raises
`Faults` with what it could read, and the section around it goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin

import attrs
from cattrs import Converter

from narwhal.config.document import is_note, key_name, without_notes
from narwhal.config.environment import resolve, variable_complaint
from narwhal.config.faults import Fault, Faults
from narwhal.config.fleet import EngineSpec, FleetConfig
from narwhal.config.settings import (
    bounds_complaint,
    choices_of,
    default_of,
    fields_of,
    is_required,
    one_of,
    section_of,
    setting_of,
    shown,
    type_complaint,
    walk,
)
from narwhal.config.suggest import nearest_key

if TYPE_CHECKING:
    from collections.abc import Collection, Hashable, Sequence

    from narwhal.config.texts import TextKind

Hook = Callable[[Any, Any], Any]


def structure_fleet(document: object, environ: Mapping[str, str]) -> FleetConfig:
    """Read a fleet from a document, types and bounds only.

    Raises `Faults` with all mistakes; its `partial` is then a whole `FleetConfig` all the same,
    unless the document is no object at all.
    """
    config: FleetConfig = _converter(environ).structure(document, FleetConfig)
    return config


def unstructure_fleet(config: FleetConfig) -> dict[str, object]:
    """The document that `parse_fleet` makes an equal `config` of, every default written out."""
    document: dict[str, object] = _converter({}).unstructure(config)
    return document


def _converter(environ: Mapping[str, str]) -> Converter:
    converter = Converter(detailed_validation=False, unstruct_collection_overrides={tuple: list})
    for scalar in (bool, int, float):
        converter.register_structure_hook(scalar, _read_scalar)
    for choice in _enums():
        converter.register_structure_hook(choice, _read_enum)
        converter.register_unstructure_hook(choice, lambda member: member.value)

    def read_text(value: object, kind: Any) -> str:
        return _read_text(value, kind, environ)

    def read_section(value: object, kind: Any) -> object:
        return _read_section(value, kind, converter)

    def read_engines(value: object, _: Any) -> tuple[EngineSpec, ...]:
        return _read_engines(value, converter)

    hooks: list[tuple[Callable[[Any], bool], Hook]] = [
        (lambda kind: get_origin(kind) is Annotated, read_text),
        (lambda kind: get_origin(kind) is Literal, _read_scalar),
        (lambda kind: get_origin(kind) is Mapping, _read_object),
        (lambda kind: get_origin(kind) is tuple, read_engines),
        (attrs.has, read_section),
    ]
    for wanted, hook in hooks:
        converter.register_structure_hook_func(wanted, hook)
    return converter


def _enums() -> set[type[StrEnum]]:
    kinds = (field.type for _, field in walk(FleetConfig))
    return {kind for kind in kinds if isinstance(kind, type) and issubclass(kind, StrEnum)}


# Scalars


def _read_scalar(value: object, kind: Any) -> object:
    if complaint := type_complaint(kind, value):
        raise Faults.one(complaint)
    return float(value) if kind is float else value  # type: ignore[arg-type]  # a number: just checked


def _read_enum(value: object, kind: type[StrEnum]) -> StrEnum:
    choices = choices_of(kind)
    if choices is None or not isinstance(value, str) or value not in choices:
        raise Faults.one(f"must be {one_of(choices or ())}, not {shown(value)}")
    return kind(value)


def _read_text(value: object, kind: Any, environ: Mapping[str, str]) -> str:
    text: TextKind = get_args(kind)[1]
    if text.from_environ and isinstance(value, str) and "${" in value:
        return resolve(value, text, environ)
    complaint = type_complaint(kind, value)
    if complaint is None and text.names_variable:
        complaint = variable_complaint(str(value), environ, several=text.several)
    if complaint:
        raise Faults.one(complaint)
    return str(value)


def _read_object(value: object, _: Any) -> object:
    if not isinstance(value, Mapping):
        raise Faults.one(f"must be an object, not {shown(value)}")
    return without_notes(value)


# Sections


def _placeholder(field: attrs.Attribute[Any]) -> object:
    """Something valid to go on with where a field could not be read."""
    default = default_of(field)
    return setting_of(field).example if default is attrs.NOTHING else default


def _read_section(value: object, section: type, converter: Converter) -> object:
    if not isinstance(value, Mapping):
        raise Faults.one(f"must be an object, not {shown(value)}")
    faults = _unknown_keys(value, section)
    values = {}
    for field in fields_of(section):
        if field.name in value:
            values[field.name] = _read_field(value[field.name], field, converter, faults)
        else:
            values[field.name] = _placeholder(field)
            if is_required(field):
                faults.append(Fault(field.name, _missing(field)))
    read: object = section(**values)
    if faults:
        raise Faults(faults, read)
    return read


def _read_field(
    value: object, field: attrs.Attribute[Any], converter: Converter, faults: list[Fault]
) -> object:
    try:
        read = converter.structure(value, field.type)  # type: ignore[arg-type]  # sections are all annotated
    except Faults as caught:
        faults += caught.under(field.name)
        return _placeholder(field) if caught.partial is None else caught.partial
    if complaint := bounds_complaint(field, value):
        faults.append(Fault(field.name, complaint))
        return _placeholder(field)
    return read


def _missing(field: attrs.Attribute[Any]) -> str:
    choices = choices_of(field.type)
    section = section_of(field.type)
    if choices:
        return f"is required: {one_of(choices)}"
    if section:
        required = [each.name for each in fields_of(section) if is_required(each)]
        return f"is required, with {' and '.join(required)}"
    return "is required"


def _unknown_keys(value: Mapping[object, object], section: type) -> list[Fault]:
    known = {field.name for field in fields_of(section)}
    return [
        Fault(key_name(key), f"is not a known key; {nearest_key(key, section)}")
        for key in value
        if isinstance(key, str) and key not in known and not is_note(key)
    ]


# Engines


def _read_engines(value: object, converter: Converter) -> tuple[EngineSpec, ...]:
    if not isinstance(value, list | tuple):
        raise Faults.one(f"must be a list, not {shown(value)}")
    if not value:
        raise Faults.one("must hold at least one engine")
    faults: list[Fault] = []
    engines: list[EngineSpec] = []
    for index, each in enumerate(value):
        try:
            engine = converter.structure(each, EngineSpec)
        except Faults as caught:
            faults += caught.under(f"[{index}]")
            engine = caught.partial if isinstance(caught.partial, EngineSpec) else _UNREAD
        engines.append(engine)
    unread = {fault.path for fault in faults}
    faults += _repeated("iid", [engine.iid for engine in engines], unread)
    faults += _repeated("url", [(engine.host, engine.port) for engine in engines], unread)
    if faults:
        raise Faults(faults, tuple(engines))
    return tuple(engines)


_UNREAD = EngineSpec(iid="unread", url="http://unread")


def _repeated(key: str, values: Sequence[Hashable], unread: Collection[str]) -> list[Fault]:
    """Complain about each engine whose name or address an earlier engine has."""
    faults = []
    first: dict[Hashable, int] = {}
    for index, value in enumerate(values):
        path = f"[{index}].{key}"
        if path in unread or f"[{index}]" in unread:
            continue
        other = first.setdefault(value, index)
        if other != index:
            faults.append(Fault(path, f"must be unique: engines[{other}] has the same"))
    return faults
