"""A setting in words: what it takes, what it is unless given. For reference, example and `show`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, get_origin

import attrs

from narwhal.config.bounds import number
from narwhal.config.settings import (
    choices_of,
    default_of,
    is_required,
    section_of,
    setting_of,
    text_kind,
    without_none,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

_TYPES = {bool: "true or false", int: "integer", float: "number"}


def accepts(field: attrs.Attribute[Any]) -> str:
    """What a field takes, such as `integer, between 1 and 3`."""
    kind = without_none(field.type)
    optional = "" if kind is field.type else ", or null"
    if choices := choices_of(kind):
        return _either(json.dumps(choice) for choice in choices) + optional
    if text := text_kind(kind):
        return f"{text.name} ({text.form}){optional}"
    if section_of(kind):
        return ("list of objects" if get_origin(kind) is tuple else "object") + optional
    if get_origin(kind) is Mapping:
        return "object" + optional
    bounds = setting_of(field).bounds
    return _TYPES[kind] + (f", {bounds.phrase}" if bounds else "") + optional


def default_text(field: attrs.Attribute[Any]) -> str:
    """What a field is unless given, as a file would write it.

    `required` if it must be given, empty for a section that may be left out: it has the defaults
    of its own fields.
    """
    if is_required(field):
        return "required"
    default = default_of(field)
    return "" if attrs.has(type(default)) else value_text(default)


def value_text(value: object) -> str:
    """A setting's value as a file would write it; whole numbers without a fraction."""
    if isinstance(value, float):
        return number(value)
    text = json.dumps(value, ensure_ascii=False)
    return text if text.isprintable() else json.dumps(value)


def note(field: attrs.Attribute[Any]) -> str:
    """All there is to say about a field, in a line of plain text."""
    setting = setting_of(field)
    unit = f" Unit: {setting.unit}." if setting.unit else ""
    if section_of(field.type):
        return setting.help.replace("`", "'")
    text = f"{setting.help} Takes: {accepts(field)}.{unit} Default: {default_text(field)}."
    return text.replace(" Default: required.", " Required.").replace("`", "'")


def _either(choices: Iterable[str]) -> str:
    return " or ".join(choices)
