"""Moments and stretches of time as people write them on a command line: callbacks of options."""

from __future__ import annotations

import math
import re
import time
from datetime import UTC, datetime

import click

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_SPAN = re.compile(r"(\d+(?:\.\d+)?)\s*([smhd])")


def span(_context: click.Context, _option: click.Parameter, text: str | None) -> float | None:
    """A stretch of time in seconds, more than none: `90`, `90s`, `5m`, `1.5h`, `2d`.

    Raises `click.BadParameter` for anything else.
    """
    if text is None:
        return None
    found = _seconds(text) or _number(text)
    if not found or found < 0:
        raise click.BadParameter(f"{text!r} is no stretch of time; write 90s, 5m, 1h or 2d")
    return found


def moment(_context: click.Context, _option: click.Parameter, text: str | None) -> float | None:
    """A moment as Unix time: that, ISO 8601 (UTC unless it says otherwise), or `2h` for 2 h ago.

    Raises `click.BadParameter` for anything else.
    """
    if text is None:
        return None
    if (ago := _seconds(text)) is not None:
        return time.time() - ago
    if (unix := _number(text)) is not None:
        return unix
    try:
        found = datetime.fromisoformat(text)
        return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        raise click.BadParameter(
            f"{text!r} is no moment; write 2026-03-01T12:00:00, Unix time, or 2h for two hours ago"
        ) from None


def _seconds(text: str) -> float | None:
    found = _SPAN.fullmatch(text.strip())
    return float(found[1]) * _UNITS[found[2]] if found else None


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None
