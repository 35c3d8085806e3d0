"""Axes of a chart: where a value lies between the two ends, and which values get a tick."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_TICKS = 6
"""Intervals between ticks, about; no more than that between the outermost values."""
# Values that differ by less than this share of their size are drawn as equal: a difference that
# their sums and quotients would not survive.
_SAME = 1e-9
# Powers of ten that floating point holds without loss, with room for a product on either side.
_EXPONENTS = 300
_MANTISSAS = (1, 2, 5)


@attrs.frozen
class Tick:
    """A value with a label, and where it lies: 0 is the axis' beginning, 1 its end."""

    at: float
    label: str


@attrs.frozen
class LinearAxis:
    """From `low` to `high`, in units of `10 ** exponent`, so that no span is too large."""

    low: float
    high: float
    exponent: int
    ticks: tuple[Tick, ...]

    def at(self, value: float) -> float:
        """Where a value lies."""
        return _between(value / 10.0**self.exponent, self.low, self.high)


@attrs.frozen
class LogAxis:
    """From `10 ** low` to `10 ** high`."""

    low: float
    high: float
    ticks: tuple[Tick, ...]

    def at(self, value: float) -> float:
        """Where a positive value lies."""
        return _between(math.log10(value), self.low, self.high)


Axis = LinearAxis | LogAxis


def axis(values: Sequence[float], *, log: bool, from_zero: bool, to_ticks: bool = True) -> Axis:
    """An axis that has room for finite `values`, positive ones if it is to be logarithmic.

    A linear one ends on ticks, or else at the outermost of `values`.
    """
    if log:
        return _log_axis(values)
    return _linear_axis(values, from_zero=from_zero, to_ticks=to_ticks)


def _between(value: float, low: float, high: float) -> float:
    return (value - low) / (high - low)


# Linear


def _linear_axis(values: Sequence[float], *, from_zero: bool, to_ticks: bool) -> LinearAxis:
    values = [*values, 0.0] if from_zero or not values else values
    largest = max(map(abs, values))
    exponent = _exponent(largest)
    unit = 10.0**exponent
    low, high = _apart(min(values) / unit, max(values) / unit, from_zero=from_zero)
    step = _nice_step((high - low) / _TICKS)
    # An end that is on a tick already stays, whatever rounding has made of it.
    first, last = math.floor(low / step + _SAME), math.ceil(high / step - _SAME)
    if to_ticks:
        low, high = first * step, last * step
    ticks = tuple(
        Tick(_between(n * step, low, high), _label(n, step, exponent))
        for n in range(first, last + 1)
        if low - _SAME * step <= n * step <= high + _SAME * step
    )
    return LinearAxis(low, high, exponent, ticks)


def _exponent(largest: float) -> int:
    """Of the unit to count in: 0 for values that need no other."""
    if not largest:
        return 0
    exponent = math.floor(math.log10(largest))
    return max(-_EXPONENTS, min(_EXPONENTS, exponent))


def _apart(low: float, high: float, *, from_zero: bool) -> tuple[float, float]:
    """The two ends, made to differ."""
    size = max(abs(low), abs(high))
    if high - low > _SAME * size:
        return low, high
    if not size:
        return (0.0, 1.0) if from_zero else (-1.0, 1.0)
    return low - size / 2, high + size / 2


def _nice_step(least: float) -> float:
    """The smallest of 1, 2, 5 times a power of ten that is not below `least`."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(m * power for m in (*_MANTISSAS, 10) if m * power >= least * (1 - _SAME))


def _label(count: int, step: float, exponent: int) -> str:
    """`count * step * 10 ** exponent`, with no digit more than it takes."""
    # A step is one digit and a power of ten, so this is exact.
    value = count * Decimal(f"{step:.0e}").scaleb(exponent)
    return plain(value)


def plain(value: Decimal) -> str:
    """A number for people: digits where there are few, else a power of ten."""
    if not value:
        return "0"
    value = value.normalize()
    if -4 <= value.adjusted() < 7:  # noqa: PLR2004 - from 0.0001 to 9999999
        return f"{value:f}"
    return f"{value:e}".replace("e+", "e")


# Logarithmic


def _log_axis(values: Sequence[float]) -> LogAxis:
    logs = [math.log10(value) for value in values] or [0.0]
    low, high = _log_floor(min(logs)), -_log_floor(-max(logs), mirrored=True)
    if high - low < _SAME:
        low, high = math.floor(low), math.floor(low) + 1
    ticks = tuple(
        Tick(_between(at, low, high), label)
        for at, label in _log_ticks(low, high)
        if low - _SAME <= at <= high + _SAME
    )
    return LogAxis(low, high, ticks)


def _log_floor(log: float, *, mirrored: bool = False) -> float:
    """The greatest 1, 2 or 5 times a power of ten that is not above; all as logarithms."""
    power = math.floor(log)
    steps = [math.log10(m) for m in (*_MANTISSAS, 10)]
    if mirrored:
        steps = [1.0 - step for step in reversed(steps)]
    return max(power + step for step in steps if power + step <= log + _SAME)


def _log_ticks(low: float, high: float) -> Iterable[tuple[float, str]]:
    first, last = math.floor(low), math.ceil(high)
    decades = last - first
    if high - low <= 1:
        mantissas: Sequence[int] = range(1, 10)
    else:
        mantissas = _MANTISSAS if high - low <= 2 else (1,)  # noqa: PLR2004 - decades
    every = max(1, math.ceil(decades / (2 * _TICKS)))
    for power in range(first, last + 1, every):
        for mantissa in mantissas:
            yield power + math.log10(mantissa), plain(Decimal(mantissa).scaleb(power))
