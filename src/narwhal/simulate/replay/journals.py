"""Our own journal as a trace: what clients asked for, whatever became of it.

Demand is every request whose prompt was sized, the refused ones included: they are what another
setting might have served. Those that were never sized say nothing but that somebody came, and are
left out.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from statistics import median
from typing import TYPE_CHECKING

import attrs

from narwhal.config.settings import shown
from narwhal.model import Terminal
from narwhal.simulate.replay.arrivals import Arrival
from narwhal.simulate.replay.lines import Format, Line, Trace, TraceError, ordered
from narwhal.simulate.replay.outputs import Outputs
from narwhal.telemetry.rows import SCHEMA

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

# A start of the router counts seconds from a point of its own, drawn between days. Two readings of
# one start are apart by no more than the wall clock was set; those of two starts by far more.
_ONE_START_S = 5.0

UNSIZED = "requests whose prompt was never sized"
INVALID = "requests that were not valid"
TORN = "lines that a full disk cut off"
LOST = "rows that the journal says it lost"


@attrs.frozen(kw_only=True)
class _Asked:
    """A request of the journal, before its output is known."""

    clock: float
    """Its arrival on the clock of that start of the router."""
    wall: float
    """The same by the wall clock, which is less exact, and common to all starts."""
    prompt: int
    cap: int | None
    seen: int
    """Tokens that it was answered with, as far as it got."""
    whole: bool


def is_journal(fields: Mapping[str, object]) -> bool:
    """Whether the first object of a file is a row of a journal."""
    return "event" in fields


def read_journal(lines: Iterable[str], *, name: str, kind: str) -> Trace:
    """The trace of the requests of a journal, of one start of the router or of several.

    - Arrivals of one start are as far apart as the router's own clock says. Starts are placed by
      the wall clock, and what lies between them stays as it was. Files of one router may be put
      together in any order; several routers may have shared one.
    - A completed request asks again for what it got. Of any other nobody knows; it gets the output
      of a completed one with the same `max_tokens` (see `Outputs`), and never less than it had
      already got.
    - A line that is cut off is left out, as are requests that were not valid, or not sized.

    Raises `TraceError` for a row with a field that cannot be read, and for a journal of a later
    format.
    """
    left: Counter[str] = Counter()
    asked = [one for line, row in _rows(lines, name, left) if (one := _asked(line, row, left))]
    outputs = Outputs.of((one.cap, one.seen) for one in asked if one.whole)
    placed = sorted(zip(_times(asked), asked, strict=True), key=lambda pair: pair[0])
    arrivals = [_arrival(at, one, outputs, kind) for at, one in placed]
    return Trace(
        format=Format.JOURNAL,
        arrivals=ordered(arrivals),
        left_out={why: count for why, count in left.items() if count},
        estimated=sum(not one.whole for one in asked),
    )


def _rows(
    lines: Iterable[str], name: str, left: Counter[str]
) -> Iterator[tuple[Line, Mapping[str, object]]]:
    """The rows of requests."""
    for number, text in enumerate(lines, start=1):
        if not text.strip():
            continue
        line = Line(name, number)
        try:
            row = line.row(text)
        except TraceError:
            left[TORN] += 1
            continue
        event = row.get("event")
        if event == "request":
            yield line, row
        elif event in ("start", "rotated"):
            _check_schema(line, row)
        elif event == "stop":
            left[LOST] += line.tokens_or_none(row, "dropped") or 0


def _check_schema(line: Line, row: Mapping[str, object]) -> None:
    schema = row.get("schema")
    if schema != SCHEMA:
        line.fail(
            f"schema must be {SCHEMA}, not {shown(schema)}; replay it with the version that wrote "
            "the journal"
        )


def _asked(line: Line, row: Mapping[str, object], left: Counter[str]) -> _Asked | None:
    terminal = row.get("terminal")
    if terminal not in {*Terminal}:
        known = ", ".join(Terminal)
        line.fail(f"terminal must be one of {known}, not {shown(terminal)}; delete the line")
    prompt = line.tokens_or_none(row, "prompt_tokens")
    if terminal == Terminal.INVALID or not prompt:
        left[INVALID if terminal == Terminal.INVALID else UNSIZED] += 1
        return None
    return _Asked(
        clock=line.seconds(row, "arrival"),
        wall=line.seconds(row, "ts") - line.seconds(row, "request_s"),
        prompt=prompt,
        cap=line.tokens_or_none(row, "max_tokens"),
        seen=line.tokens(row, "completion_tokens"),
        whole=terminal == Terminal.COMPLETED,
    )


def _times(asked: Sequence[_Asked]) -> list[float]:
    """When each came, all on one clock.

    What the wall clock is ahead of the router's tells the starts apart. Of one start it is the
    same up to the wall clock's own errors, and the median of them counts.
    """
    ahead = sorted(one.wall - one.clock for one in asked)
    begins = [i for i, each in enumerate(ahead) if not i or each - ahead[i - 1] > _ONE_START_S]
    ends = [*begins[1:], len(ahead)]
    starts = [ahead[begin:end] for begin, end in zip(begins, ends, strict=False)]
    least, offsets = [start[0] for start in starts], [median(start) for start in starts]
    return [one.clock + offsets[bisect_right(least, one.wall - one.clock) - 1] for one in asked]


def _arrival(at: float, one: _Asked, outputs: Outputs, kind: str) -> Arrival:
    output = one.seen if one.whole else max(one.seen, outputs.draw(one.cap))
    output = max(1, output)
    # Several choices, or an engine that counts otherwise: more than the cap can have been seen.
    cap = None if one.cap is None else max(one.cap, output)
    return Arrival(at=at, prompt=one.prompt, output=output, cap=cap, kind=kind)
