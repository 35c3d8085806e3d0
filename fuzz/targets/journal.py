"""Any lines are counted once each, as a row or as none, and come to a report that can be shown."""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

from fuzz import other
from fuzz.mutate import change_json
from narwhal.cli.report_json import as_json
from narwhal.cli.report_page import as_page
from narwhal.cli.report_tables import as_text
from narwhal.telemetry.report import Reading, SchemaError, Wanted, figures_of

if TYPE_CHECKING:
    import random

    from narwhal.telemetry.report import Figures


_FEW_WINDOWS_S = 1e9  # a dozen at the most: forty-eight lines are no other than one
_KNOWN = frozenset({"request", "start", "rotated", "stop", "engine", "role", "router"})


def change(data: bytes, chance: random.Random) -> bytes | None:
    """One line's JSON with another value in one place."""
    lines = io.BytesIO(data).readlines()
    if not lines:
        return None
    place = chance.randrange(len(lines))
    changed = change_json(lines[place], chance)
    if changed is None:
        return None
    lines[place] = changed.rstrip(b"\n") + b"\n"
    return b"".join(lines)


def check(data: bytes) -> None:
    reading = Reading(Wanted())
    reading.begin("journal")
    lines = io.BytesIO(data).readlines()
    try:
        for line in lines:
            reading.add(line)
    except SchemaError:
        return
    figures = figures_of(reading)
    _check_counts(figures, reading, [line for line in lines if line.strip()])
    _check_shown(figures_of(reading, width_s=_FEW_WINDOWS_S))


def _check_counts(figures: Figures, reading: Reading, lines: list[bytes]) -> None:
    events = list(map(_event, lines))
    assert reading.unknown <= sum(event is not None and event not in _KNOWN for event in events)
    assert figures.requests <= events.count("request")
    rows = figures.requests + len(figures.router) + figures.changes + len(figures.roles)
    none = figures.bad + figures.torn + reading.unknown
    # That a file was rotated is no event of its own.
    assert rows + none <= figures.lines == len(lines) <= rows + none + events.count("rotated")
    assert figures.torn <= 1, "only the last line can be torn"
    assert figures.requests == len(reading.requests)
    assert figures.requests == sum(window.requests for window in figures.windows)
    assert figures.requests == sum(each.requests for each in figures.terminals)
    assert figures.attained.part <= figures.attained.whole <= figures.requests
    for times in figures.times.values():
        known = [times.p50, times.p90, times.p95, times.p99, times.most]
        ordered = [value for value in known if value is not None]
        assert ordered == sorted(ordered)
        assert (times.count > 0) == (len(ordered) == len(known))


def _check_shown(figures: Figures) -> None:
    for line in as_text(figures).splitlines():
        assert line.isprintable(), "a line would steer the terminal"
    assert json.loads(as_json(figures))["requests"] == figures.requests
    if figures.bad:
        return  # a page takes most of the time, and of bad lines it has no more than the text
    page = as_page(figures)
    root = ET.fromstring(page.removeprefix("<!DOCTYPE html>"))  # noqa: S314 - our own text
    assert not list(root.iter("script")), "text became markup"


def _event(line: bytes) -> str | None:
    """What another parser says that the line is.

    The one under test does not look closely at what no field is wanted of; so does this one.
    """
    if other.is_deep(line):
        return None
    try:
        row = json.loads(line.decode(errors="replace"), strict=False, parse_int=float)
    except ValueError:
        return None
    event = row.get("event") if isinstance(row, dict) else None
    return event if isinstance(event, str) else None
