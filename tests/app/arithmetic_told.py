"""What is predicted of a request."""

from __future__ import annotations

from fractions import Fraction

import attrs

from narwhal.model import Limit, Phase, Terminal


@attrs.frozen
class Tried:
    """An attempt in the journal."""

    result: str
    code: str | None = None
    phase: Phase | None = None
    limit: Limit | None = None
    local: bool = False
    handoff_age_s: float | None = None


@attrs.frozen
class Stretch:
    """A time in one phase, and what holds in it."""

    phase: Phase
    begins: float
    ends: float
    credits: Fraction


@attrs.define
class Told:
    """What is predicted. Times count from the request's arrival."""

    terminal: Terminal = Terminal.CANCELLED
    code: str | None = None
    status: int = 200
    limit: Limit | None = None
    retry_after: int | None = None
    end: float = 0.0
    fired: list[Limit] = attrs.field(factory=list)
    tried: list[Tried] = attrs.field(factory=list)
    stretches: list[Stretch] = attrs.field(factory=list)
    legs: list[tuple[str, int, float]] = attrs.field(factory=list)
    """What reaches an engine: kind, attempt, time."""
    text: str = ""
    """What the client has read when it ends."""

    @property
    def spent(self) -> dict[Phase, float]:
        spent: dict[Phase, float] = {}
        for each in self.stretches:
            spent[each.phase] = spent.get(each.phase, 0.0) + each.ends - each.begins
        return spent
