"""Traces of the Azure public dataset: CSV with a head, a line for each request."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from narwhal.config.settings import shown
from narwhal.simulate.replay.arrivals import Arrival
from narwhal.simulate.replay.lines import Format, Line, Trace, ordered

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

TIME, PROMPT, OUTPUT = "TIMESTAMP", "ContextTokens", "GeneratedTokens"
COLUMNS = (TIME, PROMPT, OUTPUT)


def is_azure(head: str) -> bool:
    """Whether the first line of a file is the head of such a trace. Case plays no part."""
    return set(map(str.lower, COLUMNS)) <= set(_names(head))


def read_azure(lines: Iterable[str], *, name: str, kind: str) -> Trace:
    """The trace. Columns may be in any order; those that are not needed are not looked at.

    A time without a zone is UTC. Digits of a second beyond the sixth play no part. Raises
    `TraceError` for the first line that cannot be read.
    """
    arrivals = [
        Arrival(
            at=_timestamp(line, fields[TIME]),
            prompt=max(1, _count(line, fields, PROMPT)),
            output=max(1, _count(line, fields, OUTPUT)),
            kind=kind,
        )
        for line, fields in _rows(lines, name)
    ]
    return Trace(format=Format.AZURE, arrivals=ordered(arrivals))


def _rows(lines: Iterable[str], name: str) -> Iterator[tuple[Line, Mapping[str, str]]]:
    """The needed columns of each line that is not empty."""
    rows = enumerate(lines, start=1)
    _, head = next(rows)
    names = _names(head)
    places = {column: names.index(column.lower()) for column in COLUMNS}
    for number, text in rows:
        if not text.strip():
            continue
        line, cells = Line(name, number), text.rstrip("\r\n").split(",")
        if len(cells) != len(names):
            line.fail(f"has {len(cells)} columns, and the head has {len(names)}; delete the line")
        yield line, {column: cells[place].strip() for column, place in places.items()}


def _names(head: str) -> list[str]:
    return [cell.strip().strip('"').lower() for cell in head.split(",")]


def _timestamp(line: Line, text: str) -> float:
    try:
        stamp = datetime.fromisoformat(text)
    except ValueError:
        wanted = "must be a time such as 2023-11-16 18:17:03.9799600"
        line.fail(f"{TIME} {wanted}, not {shown(text)}; mend or delete the line")
    return (stamp if stamp.tzinfo else stamp.replace(tzinfo=UTC)).timestamp()


def _count(line: Line, fields: Mapping[str, str], column: str) -> int:
    text = fields[column]
    value: object = int(text) if text.isascii() and text.isdigit() and len(text) < 16 else text
    return line.tokens({column: value}, column)
