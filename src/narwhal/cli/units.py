"""Times in the units that people like to read them in."""

from __future__ import annotations

from datetime import UTC, datetime


def seconds(value: float | None) -> str:
    """In the unit that suits, with three digits."""
    if value is None:
        return "-"
    if value < 0.9995:  # noqa: PLR2004 - what three digits do not round up to a second
        return f"{1e3 * value:.3g} ms"
    return f"{value:.3g} s" if value < 1000 else f"{value:.0f} s"  # noqa: PLR2004 - no exponents


def moment(ts: float) -> str:
    """A time of day, in UTC, to a second."""
    try:
        return datetime.fromtimestamp(ts, tz=UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (ValueError, OverflowError):
        return f"{ts:.0f}"


def span(length_s: float) -> str:
    """A stretch of time, in the two largest units of it."""
    whole = round(length_s)
    for unit, size, smaller, part in (("d", 86400, "h", 3600), ("h", 3600, "min", 60)):
        if whole >= size:
            rest = whole % size // part
            return f"{whole // size} {unit} {rest} {smaller}" if rest else f"{whole // size} {unit}"
    if whole >= 60:  # noqa: PLR2004 - a minute
        return f"{whole // 60} min {whole % 60} s" if whole % 60 else f"{whole // 60} min"
    return f"{length_s:.3g} s"
