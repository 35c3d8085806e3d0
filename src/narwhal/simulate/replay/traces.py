"""From a file to the requests that it tells of, whichever of three formats it has."""

from __future__ import annotations

from contextlib import closing
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from narwhal.config.files import base_name
from narwhal.config.settings import shown
from narwhal.simulate.replay.azure import COLUMNS, is_azure, read_azure
from narwhal.simulate.replay.journals import is_journal, read_journal
from narwhal.simulate.replay.lines import Format, Line, Trace, TraceError
from narwhal.simulate.replay.mooncake import is_mooncake, read_mooncake

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

__all__ = ["Format", "Trace", "TraceError", "read_trace"]

_FORMATS = (
    f"it begins neither with the head of an Azure trace ({','.join(COLUMNS)}), nor with an object "
    "of a Mooncake trace (timestamp, input_length, output_length), nor with a row of a journal "
    '("event")'
)
# A head or a row is a few kilobytes at the most; a binary file may have no line breaks at all.
_MOST_CHARS = 1_000_000


def read_trace(path: str | Path, *, kind: str | None = None) -> Trace:
    """Read a trace. What format it has is told by its first line, not by its name.

    Every arrival gets `kind`, by default the file's name without its ending. Lines need not be in
    the order of time. Prompts and outputs of 0 tokens become 1. Blocks until the file is read.
    Raises nothing but `TraceError`, with one line for a person: an unreadable file, a format that
    is none of the three, a line that is wrong, or not one request.
    """
    name = base_name(path)
    with closing(_lines(path, name)) as lines:
        trace = _read(lines, name, Path(path).stem if kind is None else kind)
    if not trace.arrivals:
        left = "".join(f"; {count} {why}" for why, count in trace.left_out.items())
        raise TraceError([f"{name}: holds no request{left}; give a trace that has one"])
    return trace


def _read(lines: Iterator[str], name: str, kind: str) -> Trace:
    first = next(lines, None)
    if first is None:
        raise TraceError([f"{name}: is empty; give a trace that has a request"])
    whole = chain([first], lines)
    if is_azure(first):
        return read_azure(whole, name=name, kind=kind)
    line = Line(name, 1)
    if not first.lstrip().startswith("{"):
        line.fail(f"is no line of a trace, {shown(first.strip())}: {_FORMATS}")
    fields = line.row(first)
    if is_journal(fields):
        return read_journal(whole, name=name, kind=kind)
    if is_mooncake(fields):
        return read_mooncake(whole, name=name, kind=kind)
    return line.fail(f"is no row of a trace, with {', '.join(map(shown, fields))}: {_FORMATS}")


def _lines(path: str | Path, name: str) -> Generator[str, None, None]:
    """The lines of the file, none of which is endless; close it when it is no longer needed."""
    try:
        with Path(path).open(encoding="utf-8-sig", newline="\n") as file:
            for number, text in enumerate(file, start=1):
                if len(text) > _MOST_CHARS:
                    line = Line(name, number)
                    line.fail(f"has more than {_MOST_CHARS} characters; mend or delete it")
                yield text
    except UnicodeDecodeError as error:
        raise TraceError([f"{name}: is not UTF-8 text; unpack it if it is packed"]) from error
    except (OSError, ValueError) as error:  # ValueError: a path with a NUL byte in it
        reason = getattr(error, "strerror", None) or str(error)
        raise TraceError([f"{name}: cannot be read: {reason}; check the path"]) from error
