"""A fleet's effective settings, for `config show`.

Nothing secret can be in it: no address carries a password (the loader refuses that), and the
engines' key is no part of a `FleetConfig`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs

from narwhal.config import effective
from narwhal.config.describe import value_text
from narwhal.config.fleet import FleetConfig
from narwhal.config.settings import fields_of, section_of, setting_of
from narwhal.config.structure import unstructure_fleet

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from narwhal.config.load import Loaded


@attrs.frozen(kw_only=True)
class Row:
    """One setting and its value."""

    path: str
    value: Any
    """As JSON has it."""
    given: bool
    """Whether the file gave it; otherwise it is the default."""
    unit: str


def rows(loaded: Loaded) -> tuple[Row, ...]:
    """Every setting with the value that holds, in the order of the schema."""
    document = unstructure_fleet(loaded.config)
    return tuple(_rows(document, FleetConfig, "", loaded.given))


def derived(config: FleetConfig) -> dict[str, int]:
    """The sizes that follow from the settings, by name."""
    return {
        "control_connections": effective.control_connections(config),
        "retained_limit": effective.retained_limit(config),
    }


def as_json(loaded: Loaded) -> dict[str, object]:
    """The report for a program."""
    return {
        "settings": {
            row.path: {"value": row.value, "origin": _origin(row), "unit": row.unit or None}
            for row in rows(loaded)
        },
        "derived": derived(loaded.config),
        "limits": [
            {
                "limit": limit.limit.value,
                "field": limit.field,
                "seconds": limit.seconds,
                "source": limit.source.value,
                "from": limit.begins,
                "until": limit.ends,
                "fires": limit.fires,
            }
            for limit in effective.limits(loaded.config)
        ],
    }


def as_text(loaded: Loaded) -> str:
    """The report for a person."""
    settings = [[row.path, value_text(row.value), row.unit, _origin(row)] for row in rows(loaded)]
    sizes = [[name, str(value)] for name, value in derived(loaded.config).items()]
    limits = [
        [limit.limit.value, limit.bound, limit.field, f"{limit.begins} -> {limit.ends}"]
        for limit in effective.limits(loaded.config)
    ]
    parts = (
        _table(["setting", "value", "unit", "from"], settings),
        _table(["derived", "value"], sizes),
        _table(["limit", "bound", "setting", "from -> until"], limits),
    )
    return "\n".join(parts)


def _origin(row: Row) -> str:
    return "file" if row.given else "default"


def _rows(
    document: Mapping[str, Any], section: type, prefix: str, given: frozenset[str]
) -> Iterator[Row]:
    for field in fields_of(section):
        path, value, inner = prefix + field.name, document[field.name], section_of(field.type)
        if inner and isinstance(value, list):
            for index, each in enumerate(value):
                yield from _rows(each, inner, f"{path}[{index}].", given)
        elif inner and value is not None:
            yield from _rows(value, inner, f"{path}.", given)
        else:
            yield Row(path=path, value=value, given=path in given, unit=setting_of(field).unit)


def _table(head: list[str], lines: list[list[str]]) -> str:
    """Columns as wide as they need to be, two blanks apart; the last one is left as it is."""
    widths = [max(len(line[column]) for line in [head, *lines]) for column in range(len(head))]
    return "".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        + "\n"
        for line in [head, *lines]
    )
