"""Which numbers a setting takes, and how a message says so."""

from __future__ import annotations

import attrs


def number(value: float) -> str:
    """`value` as a person writes it: whole numbers without a fraction."""
    return repr(value).removesuffix(".0")


@attrs.frozen(kw_only=True)
class Bounds:
    """An interval of numbers, open or closed at either end; zero may be added to a half-line."""

    low: float
    high: float | None = None
    above: bool = False
    """`low` itself is out."""
    below: bool = False
    """`high` itself is out."""
    or_zero: bool = False

    def admits(self, value: float) -> bool:
        """Whether `value`, a finite number, is one of them."""
        if self.or_zero and value == 0:
            return True
        if value < self.low or (self.above and value == self.low):
            return False
        return self.high is None or (value < self.high if self.below else value <= self.high)

    @property
    def phrase(self) -> str:
        """What a value must be, to be read after "must be"."""
        if self.high is None:
            return self._from_below
        if not self.above and not self.below:
            return f"between {number(self.low)} and {number(self.high)}"
        low = f"greater than {number(self.low)}" if self.above else f"at least {number(self.low)}"
        high = f"less than {number(self.high)}" if self.below else f"at most {number(self.high)}"
        return f"{low} and {high}"

    @property
    def _from_below(self) -> str:
        if self.low == 0:
            return "positive" if self.above else "zero or positive"
        if self.above:
            return f"greater than {number(self.low)}"
        return f"{'0 or ' if self.or_zero else ''}at least {number(self.low)}"


POSITIVE = Bounds(low=0, above=True)
NOT_NEGATIVE = Bounds(low=0)
FRACTION = Bounds(low=0, high=1)
FRACTION_NOT_ZERO = Bounds(low=0, high=1, above=True)
FRACTION_NOT_ONE = Bounds(low=0, high=1, below=True)


def at_least(low: float) -> Bounds:
    """`low` and all above it."""
    return Bounds(low=low)


def above(low: float) -> Bounds:
    """All above `low`, without it."""
    return Bounds(low=low, above=True)


def between(low: float, high: float) -> Bounds:
    """From `low` to `high`, both included."""
    return Bounds(low=low, high=high)


def zero_or_at_least(low: float) -> Bounds:
    """`low` and all above it, and zero, which switches the thing off."""
    return Bounds(low=low, or_zero=True)
