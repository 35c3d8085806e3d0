"""What the readers of all trace formats have in common: lines, fields, and what is wrong there."""

from __future__ import annotations

import json
import math
from enum import StrEnum
from typing import TYPE_CHECKING, NoReturn

import attrs

from narwhal.config.settings import shown
from narwhal.model import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from narwhal.simulate.replay.arrivals import Arrival

MOST_SECONDS = 1e10
"""No clock of a trace is beyond this: the year 2286, in seconds since 1970."""


class TraceError(ConfigError):
    """A trace that cannot be read: one line, with the file, the line in it, and what to do."""


class Format(StrEnum):
    """What a trace file is."""

    AZURE = "azure"
    """CSV of the Azure public dataset: `TIMESTAMP,ContextTokens,GeneratedTokens`."""
    MOONCAKE = "mooncake"
    """JSON Lines: `timestamp` in milliseconds, `input_length`, `output_length`."""
    JOURNAL = "journal"
    """What `serve --journal` writes."""


@attrs.frozen(kw_only=True)
class Trace:
    """The requests of one file."""

    format: Format
    arrivals: tuple[Arrival, ...]
    """In the order in which they came, the first at 0; at least one."""
    left_out: Mapping[str, int] = attrs.field(factory=dict)
    """What was in the file and is no arrival: how much of it, by the reason in words."""
    estimated: int = 0
    """Arrivals whose output nobody saw, so that it was taken from others."""

    @property
    def seconds(self) -> float:
        """From the first arrival to the last."""
        return self.arrivals[-1].at


@attrs.frozen
class Line:
    """One line of a file, by its number from 1, for messages about it."""

    name: str
    number: int

    def fail(self, text: str) -> NoReturn:
        """Raise `TraceError` with the place in front of the text."""
        raise TraceError([f"{self.name}: line {self.number}: {text}"])

    def row(self, text: str) -> Mapping[str, object]:
        """The JSON object that the line is."""
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            self.fail(f"is not JSON: {shown(text.strip())}; delete the line or mend it")
        if not isinstance(value, dict):
            self.fail(f"must be a JSON object, not {shown(value)}; delete the line")
        return value

    def seconds(self, fields: Mapping[str, object], name: str, *, per_second: float = 1.0) -> float:
        """A time of the line in seconds, zero or positive."""
        value = self._given(fields, name)
        if isinstance(value, bool) or not isinstance(value, int | float):
            self.fail(f"{name} must be a number, not {shown(value)}; mend or delete the line")
        # An integer of more digits than a float holds is too large as well.
        if not 0 <= value <= MOST_SECONDS * per_second or not math.isfinite(value):
            most = f"{MOST_SECONDS * per_second:g}"
            self.fail(f"{name} must be from 0 to {most}, not {shown(value)}; mend the line")
        return value / per_second

    def tokens(self, fields: Mapping[str, object], name: str) -> int:
        """A number of tokens of the line, zero or positive."""
        value = self._given(fields, name)
        if isinstance(value, bool) or not isinstance(value, int):
            self.fail(f"{name} must be an integer, not {shown(value)}; mend or delete the line")
        if not 0 <= value <= MOST_TOKENS:
            self.fail(f"{name} must be from 0 to {MOST_TOKENS}, not {shown(value)}; mend the line")
        return value

    def tokens_or_none(self, fields: Mapping[str, object], name: str) -> int | None:
        """As `tokens`, where null says that it is not known."""
        return None if fields.get(name) is None else self.tokens(fields, name)

    def _given(self, fields: Mapping[str, object], name: str) -> object:
        if name not in fields:
            self.fail(f"{name} is missing; mend or delete the line")
        return fields[name]


MOST_TOKENS = 100_000_000
"""A hundred times the longest context there is; more is a mistake."""


def ordered(arrivals: list[Arrival]) -> tuple[Arrival, ...]:
    """The same by time, counted from the first; those of one moment keep their order."""
    arrivals = sorted(arrivals, key=lambda arrival: arrival.at)
    if not arrivals:
        return ()
    begin = arrivals[0].at
    return tuple(attrs.evolve(arrival, at=arrival.at - begin) for arrival in arrivals)
