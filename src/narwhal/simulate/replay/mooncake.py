"""Traces of the Mooncake project: JSON Lines, an object for each request."""

from __future__ import annotations

from typing import TYPE_CHECKING

from narwhal.simulate.replay.arrivals import Arrival
from narwhal.simulate.replay.lines import Format, Line, Trace, ordered

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

TIME, PROMPT, OUTPUT = "timestamp", "input_length", "output_length"
_PER_SECOND = 1000


def is_mooncake(fields: Mapping[str, object]) -> bool:
    """Whether the first object of a file is one of such a trace."""
    return TIME in fields and PROMPT in fields


def read_mooncake(lines: Iterable[str], *, name: str, kind: str) -> Trace:
    """The trace. `hash_ids` plays no part: emulated engines have no cache of prefixes.

    Raises `TraceError` for the first line that cannot be read.
    """
    arrivals = []
    for number, text in enumerate(lines, start=1):
        if not text.strip():
            continue
        line = Line(name, number)
        fields = line.row(text)
        arrivals.append(
            Arrival(
                at=line.seconds(fields, TIME, per_second=_PER_SECOND),
                prompt=max(1, line.tokens(fields, PROMPT)),
                output=max(1, line.tokens(fields, OUTPUT)),
                kind=kind,
            )
        )
    return Trace(format=Format.MOONCAKE, arrivals=ordered(arrivals))
