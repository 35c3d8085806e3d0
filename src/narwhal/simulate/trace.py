"""What happened in a world, in order, in a form that two runs can be compared in."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import attrs
import msgspec
import trio

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

# Times are compared as text; far finer than any step, far coarser than what addition rounds.
_DIGITS = 9


@attrs.frozen
class Event:
    """Something that happened."""

    at: float
    name: str
    fields: dict[str, Any]

    def line(self) -> bytes:
        """One JSON object, the same bytes in any process."""
        return msgspec.json.encode({"t": round(self.at, _DIGITS), "event": self.name} | self.fields)

    def concerns(self, who: str) -> bool:
        """Whether `who`, a name or an id, is in one of its fields."""
        return any(isinstance(value, str) and who in value for value in self.fields.values())


class Trace:
    """A list of events. Adding one costs little; the text is made when somebody wants it."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def add(self, name: str, **fields: Any) -> None:
        """Note that something happens now. Fields are values that JSON has."""
        self.events.append(Event(trio.current_time(), name, fields))

    def lines(self) -> Iterator[bytes]:
        """Each event as a line of JSON, without its newline."""
        return (event.line() for event in self.events)

    def digest(self) -> str:
        """A hash of all of it: equal for equal runs."""
        digest = hashlib.sha256()
        for line in self.lines():
            digest.update(line + b"\n")
        return digest.hexdigest()

    def last(
        self, count: int, *, about: Sequence[str] = (), until: float = float("inf")
    ) -> list[Event]:
        """The last events up to `until`, those that concern any of `about` if there are such."""
        past = [event for event in self.events if event.at <= until]
        chosen = [event for event in past if any(event.concerns(who) for who in about)]
        return (chosen or past)[-count:]
