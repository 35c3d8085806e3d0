"""What the fields of a fleet file declare about themselves, and the check that follows from it.

Each setting is an attrs field whose metadata holds a `Setting`. Type and default are the
field's own; from these five facts come the validation of a file, the validation of values made
in Python, the reference page, the example and `config show`. There is no second list.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from enum import StrEnum
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin

import attrs

from narwhal.model import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from narwhal.config.bounds import Bounds
    from narwhal.config.texts import TextKind

_KEY = "narwhal"
# The largest integer that every JSON reader takes exactly (RFC 8259, section 6).
MAX_INTEGER = 2**53 - 1
_SHOWN = 60
_DIGITS = 40


@attrs.frozen(kw_only=True)
class Setting:
    """One setting, as far as type and default do not say it."""

    help: str
    unit: str = ""
    bounds: Bounds | None = None
    example: Any = attrs.NOTHING
    """Stands in the example file; needed where there is no default."""
    required: bool = False
    """Must be in a file although values made in Python have a default."""


def about(
    help: str,  # noqa: A002  (the word that click and argparse use for it)
    *,
    unit: str = "",
    bounds: Bounds | None = None,
    example: Any = attrs.NOTHING,
    required: bool = False,
) -> dict[str, Setting]:
    """The metadata of a setting, for `attrs.field(metadata=...)`."""
    return {_KEY: Setting(help=help, unit=unit, bounds=bounds, example=example, required=required)}


def setting_of(field: attrs.Attribute[Any]) -> Setting:
    """What `field` declares about itself."""
    setting: Setting = field.metadata[_KEY]
    return setting


def default_of(field: attrs.Attribute[Any]) -> object:
    """The default of `field`, made if it has to be; `attrs.NOTHING` if there is none."""
    factory = getattr(field.default, "factory", None)
    return field.default if factory is None else factory()


def is_required(field: attrs.Attribute[Any]) -> bool:
    """Whether a file must give `field`."""
    return field.default is attrs.NOTHING or setting_of(field).required


def fields_of(section: type) -> tuple[attrs.Attribute[Any], ...]:
    """The fields of a section, in the order they are declared in."""
    return tuple(attrs.fields(section))


def section_of(kind: Any) -> type | None:
    """The section class that a field of type `kind` holds (one or several), else `None`."""
    inner = without_none(kind)
    if get_origin(inner) is tuple:
        inner = get_args(inner)[0]
    return inner if isinstance(inner, type) and attrs.has(inner) else None


def walk(section: type, prefix: str = "") -> Iterator[tuple[str, attrs.Attribute[Any]]]:
    """Every setting below `section` with its path, such as `engines[].iid`, sections left out."""
    for field in fields_of(section):
        path = f"{prefix}.{field.name}" if prefix else field.name
        inner = section_of(field.type)
        if inner is None:
            yield path, field
        else:
            several = get_origin(field.type) is tuple
            yield from walk(inner, f"{path}[]" if several else path)


# Types


def without_none(kind: Any) -> Any:
    """The type that is left of `X | None`."""
    if get_origin(kind) in {Union, UnionType}:
        (kind,) = (each for each in get_args(kind) if each is not NoneType)
    return kind


def text_kind(kind: Any) -> TextKind | None:
    """The kind of text that a field of type `kind` holds, if it is text."""
    inner = without_none(kind)
    return get_args(inner)[1] if get_origin(inner) is Annotated else None


def choices_of(kind: Any) -> tuple[str | int, ...] | None:
    """What a field of type `kind` can be chosen from, if that is a closed list."""
    inner = without_none(kind)
    if get_origin(inner) is Literal:
        return get_args(inner)
    if isinstance(inner, type) and issubclass(inner, StrEnum):
        return tuple(member.value for member in inner)
    return None


def one_of(choices: tuple[str | int, ...]) -> str:
    """How a message lists choices."""
    quoted = [json.dumps(choice) for choice in choices]
    return quoted[0] if len(quoted) == 1 else "one of " + ", ".join(quoted)


# Complaints: what is wrong with a value, to be read after the setting's name


def shown(value: object) -> str:
    """`value` as a file would write it, on one line and not long."""
    if isinstance(value, Mapping):
        return "an object"
    if isinstance(value, list | tuple):
        return "a list"
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
    if isinstance(value, int) and abs(value) >= 10**_DIGITS:
        return f"an integer of more than {_DIGITS} digits"
    if isinstance(value, str):
        cut = value if len(value) <= _SHOWN else value[: _SHOWN - 3] + "..."
        return json.dumps(cut, ensure_ascii=not cut.isprintable())
    if value is None or isinstance(value, int | float):
        return json.dumps(value)
    return f"a Python {type(value).__name__}"


def type_complaint(kind: Any, value: object) -> str | None:
    """What is wrong with the type of `value` in a field of type `kind`.

    Booleans are not numbers, a whole number is accepted where a fraction may stand but not the
    other way round, and nothing is converted from text.
    """
    inner = without_none(kind)
    if value is None and inner is not kind:
        return None
    if inner is bool:
        return None if isinstance(value, bool) else f"must be true or false, not {shown(value)}"
    if inner in {int, float}:
        return _number_complaint(inner, value)
    if get_origin(inner) is Annotated:
        return _text_complaint(get_args(inner)[1], value)
    if choices := choices_of(inner):
        typed = isinstance(value, inner) if isinstance(inner, type) else type(value) in {str, int}
        return (
            None if typed and value in choices else f"must be {one_of(choices)}, not {shown(value)}"
        )
    return None


def _number_complaint(kind: type, value: object) -> str | None:
    wanted = "an integer" if kind is int else "a number"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return f"must be {wanted}, not {shown(value)}"
    if isinstance(value, float) and not math.isfinite(value):
        return f"must be a finite number, not {shown(value)}"
    if kind is int and not isinstance(value, int):
        return f"must be an integer, not {shown(value)}"
    if kind is int and abs(value) > MAX_INTEGER:
        return f"must be at most {MAX_INTEGER} in size, not {shown(value)}"
    try:
        float(value)
    except OverflowError:
        return f"must be a finite number, not {shown(value)}"
    return None


def _text_complaint(kind: TextKind, value: object) -> str | None:
    if not isinstance(value, str):
        return f"must be text in quotes, not {shown(value)}"
    complaint = kind.complaint(value)
    # What may hold a password or a key by mistake is not repeated.
    secret = "@" in value or (kind.from_environ and "?" in value)  # a password; a token in a query
    if complaint is None or kind.names_variable or secret:
        return complaint
    return f"{complaint}{', not' if complaint.startswith('must be') else ':'} {shown(value)}"


def bounds_complaint(field: attrs.Attribute[Any], value: object) -> str | None:
    """What is wrong with the size of `value`, which has the type of `field`."""
    bounds = setting_of(field).bounds
    if bounds is None or not isinstance(value, int | float) or bounds.admits(value):
        return None
    return f"must be {bounds.phrase}, not {shown(value)}"


def checked(_: type, fields: list[attrs.Attribute[Any]]) -> list[attrs.Attribute[Any]]:
    """An attrs field transformer: values made in Python obey the same type and bounds.

    What breaks them raises `ConfigError` with one line. Rules between fields are not checked
    here (a section does not see the others): `narwhal.config.rules.broken_rules` does that.
    """
    return [
        field if section_of(field.type) else field.evolve(validator=_validate) for field in fields
    ]


def _validate(instance: object, field: attrs.Attribute[Any], value: object) -> None:
    complaint = type_complaint(field.type, value) or bounds_complaint(field, value)
    if complaint:
        raise ConfigError([f"{type(instance).__name__}.{field.name} {complaint}"])
