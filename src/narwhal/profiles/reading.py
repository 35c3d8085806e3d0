"""Strict reading of a document's parts, in the words that the fleet file is read with.

Nothing is converted from text, a boolean is no number, an unknown key is a mistake, and the
search goes on after one. `null` is the same as absent where a field may be absent.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, TypeVar

from narwhal.config.document import document_faults, key_name
from narwhal.config.faults import Fault, Faults
from narwhal.config.settings import (
    bounds_complaint,
    default_of,
    fields_of,
    is_required,
    shown,
    type_complaint,
    without_none,
)
from narwhal.config.texts import EngineId

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    import attrs

T = TypeVar("T")


def read_flat(
    value: object, section: type, *, hint: str = ""
) -> tuple[dict[str, Any], list[Fault]]:
    """Read an object whose fields, those of `section`, are numbers and texts.

    Returns the values of the fields that are as they should be, or absent where they may be, and
    every mistake in the others; `hint` is added where a key is unknown. Raises `Faults` if
    `value` is no object.
    """
    if not isinstance(value, Mapping):
        raise Faults.one(f"must be an object, not {shown(value)}")
    fields = fields_of(section)
    faults = unknown_keys(value, [field.name for field in fields], hint=hint)
    values: dict[str, Any] = {}
    for field in fields:
        given = value.get(field.name)
        if given is None and not is_required(field):
            values[field.name] = default_of(field)
        elif field.name not in value:
            faults.append(Fault(field.name, "is missing: it has to be given"))
        elif complaint := type_complaint(field.type, given) or bounds_complaint(field, given):
            faults.append(Fault(field.name, complaint))
        else:
            values[field.name] = _as_declared(given, field)
    return values, faults


def _as_declared(value: Any, field: attrs.Attribute[Any]) -> Any:
    # Zero has no sign: equal values are to be written as equal bytes.
    return float(value) + 0.0 if without_none(field.type) is float else value


def read_list(value: object, read: Callable[[object], T]) -> tuple[list[T | None], list[Fault]]:
    """Read every entry of a list: what it says, `None` where it cannot be read, and all faults."""
    if not isinstance(value, list | tuple):
        return [], [Fault("", f"must be a list, not {shown(value)}")]
    found: list[T | None] = []
    faults: list[Fault] = []
    for index, each in enumerate(value):
        try:
            found.append(read(each))
        except Faults as caught:
            faults += caught.under(f"[{index}]")
            found.append(None)
    return found, faults


def unknown_keys(
    value: Mapping[object, object], known: Sequence[str], *, hint: str = ""
) -> list[Fault]:
    """Complain about each key that is none of `known`."""
    faults = []
    for key in value:
        if isinstance(key, str) and key not in known:
            close = get_close_matches(key[:64], known, n=1)
            advice = f"did you mean {close[0]}?" if close else hint or "take it out"
            faults.append(Fault(key_name(key), f"is not a known key; {advice}"))
    return faults


def head_faults(value: Mapping[object, object], schema: str, version: int) -> list[Fault]:
    """Complain about a `schema` and a `schema_version` that are not the expected ones."""
    faults = []
    given, number = value.get("schema"), value.get("schema_version")
    if given != schema:
        text = f"must be {shown(schema)}" + _not(value, "schema")
        faults.append(Fault("schema", f"{text}: this is another kind of file"))
    if type(number) is not int or number != version:
        text = f"must be {version}" + _not(value, "schema_version")
        faults.append(Fault("schema_version", f"{text}: no other version can be read"))
    return faults


def _not(value: Mapping[object, object], key: str) -> str:
    return f", not {shown(value[key])}" if key in value else ", and is missing"


def engine_names(value: object) -> list[str | None]:
    """The `iid` of each entry in a list of objects, `None` where there is no usable one."""
    entries = value if isinstance(value, list | tuple) else []
    names = [each.get("iid") if isinstance(each, Mapping) else None for each in entries]
    return [
        name if isinstance(name, str) and type_complaint(EngineId, name) is None else None
        for name in names
    ]


def engine_faults(
    path: str, names: Sequence[str | None], iids: Collection[str] | None
) -> list[Fault]:
    """Complain about engines that are in the list `path` twice, or not in the fleet, or missing.

    `names` is what `engine_names` found there. `iids` are the engines of the fleet; `None` if any
    engine will do.
    """
    faults = []
    first: dict[str, int] = {}
    for index, iid in enumerate(names):
        if iid is None:
            continue
        place = f"{path}[{index}].iid"
        if first.setdefault(iid, index) != index:
            text = f"must be unique: {path}[{first[iid]}] has the same; take one of them out"
            faults.append(Fault(place, text))
        elif iids is not None and iid not in iids:
            faults.append(Fault(place, "is no engine of the fleet: take it out, or mend its name"))
    missing = sorted(set(iids or ()) - set(first))
    faults += [
        Fault(path, f"has nothing about engine {shown(iid)} of the fleet: measure it")
        for iid in missing
    ]
    return faults


def judged(document: object, faults: Iterable[Fault]) -> list[Fault]:
    """`faults`, and those that a document has whatever it is for; one for each place."""
    common = document_faults(document)
    # A number that is none was found in both places; one line for it will do.
    known = {fault.path for fault in common}
    return common + [fault for fault in faults if fault.path not in known]


def labelled(fault: Fault, path: str, names: Sequence[str | None]) -> Fault:
    """The same fault, with the engine's name beside its index in the list `path`."""
    found = re.match(rf"{path}\[([0-9]+)\]", fault.path)
    iid = names[int(found[1])] if found else None
    if found is None or iid is None:
        return fault
    return Fault(f"{found[0]} ({iid}){fault.path[found.end() :]}", fault.text)
