"""The kinds of values that options of `narwhal-trio simulate replay` and `tune` have."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import attrs
import click

from narwhal.roles import Split

_SPLIT = re.compile(r"([1-9][0-9]{0,3})P([1-9][0-9]{0,3})D", re.IGNORECASE)
_PATH = re.compile(r"[a-z_][a-z0-9_]*(\.[a-z_][a-z0-9_]*)*")
_MOST_SEEDS = 100
_MOST_PHASES = 1000


@attrs.frozen
class TraceFile:
    """A trace, and what it is called."""

    name: str
    path: str


@attrs.frozen
class Setting:
    """A field of the fleet file by its path, and the JSON value that it is to have."""

    path: str
    value: object

    def __str__(self) -> str:
        return f"{self.path}={json.dumps(self.value)}"


class TraceOption(click.ParamType[TraceFile]):
    """A file, or a name and a file."""

    name = "trace"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> TraceFile:
        """Take what stands before the first `=` for the name, unless all of it is a file."""
        if isinstance(value, TraceFile):
            return value
        text = str(value)
        name, equals, path = text.partition("=")
        if not equals or Path(text).exists():
            return TraceFile(Path(text).stem or text, text)
        if not name or not path:
            self.fail(f"{text!r} lacks a name or a file; give NAME=FILE, or FILE alone", param, ctx)
        return TraceFile(name, path)


class SplitOption(click.ParamType[Split]):
    """`4P4D`."""

    name = "split"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> Split:
        """Read both numbers; whether the fleet has as many engines is not known here."""
        if isinstance(value, Split):
            return value
        found = _SPLIT.fullmatch(str(value))
        if found is None:
            self.fail(
                f"{value!r} is no split; give prefill and decode engines, 1 or more, as in 4P4D",
                param,
                ctx,
            )
        return Split(int(found[1]), int(found[2]))


class RatesOption(click.ParamType["dict[str, float]"]):
    """`code=11.6,conv=12.1`."""

    name = "rates"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> dict[str, float]:
        """Read the rates by the names of their traces."""
        if isinstance(value, dict):
            return value
        rates: dict[str, float] = {}
        for part in str(value).split(","):
            name, _, text = part.rpartition("=")
            rate = positive(text)
            if not name or rate is None or name in rates:
                self.fail(
                    f"{part!r} is not the rate of a trace that has none yet; give requests per "
                    "second, above 0, by the names of traces, as in code=11.6,conv=12.1",
                    param,
                    ctx,
                )
            rates[name] = rate
        return rates


class SeedsOption(click.ParamType["tuple[int, ...]"]):
    """`0,1,2`."""

    name = "seeds"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, ...]:
        """Read the numbers in their order, each once."""
        if isinstance(value, tuple):
            return value
        parts = str(value).split(",")
        if len(parts) > _MOST_SEEDS or not all(
            part.isascii() and part.isdecimal() and len(part) < 10  # noqa: PLR2004 - digits
            for part in parts
        ):
            self.fail(
                f"{value!r} is not a list of up to {_MOST_SEEDS} whole numbers from 0, such as "
                "0,1,2",
                param,
                ctx,
            )
        return tuple(dict.fromkeys(int(part) for part in parts))


class PhasesOption(click.ParamType["tuple[str, ...]"]):
    """`code,conv,code`."""

    name = "phases"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, ...]:
        """Read the names; whether there are such traces is not known here."""
        if isinstance(value, tuple):
            return value
        phases = tuple(str(value).split(","))
        if not all(phases) or len(phases) > _MOST_PHASES:
            self.fail(
                f"{value!r} is not a list of up to {_MOST_PHASES} names of traces; give one for "
                "each phase, as in code,conv,code",
                param,
                ctx,
            )
        return phases


class PositiveOption(click.ParamType[float]):
    """A number above 0, and not without end."""

    name = "number"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Read the number."""
        number = positive(str(value))
        if number is None:
            self.fail(f"{value!r} is not a number above 0", param, ctx)
        return number


class SettingOption(click.ParamType[Setting]):
    """`controller.reactive.window_s=20`."""

    name = "setting"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> Setting:
        """Split it at the first `=`."""
        if isinstance(value, Setting):
            return value
        path, equals, text = str(value).partition("=")
        if not equals or not _PATH.fullmatch(path):
            self.fail(
                f"{value!r} is no setting; give a field of the fleet file and its value, as in "
                "controller.reactive.window_s=20",
                param,
                ctx,
            )
        return Setting(path, json_or_text(text))


class GridOption(click.ParamType["tuple[Setting, ...]"]):
    """`controller.reactive.window_s=15,20,30`."""

    name = "grid"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[Setting, ...]:
        """Read one setting with each of its values in turn, each once."""
        if isinstance(value, tuple):
            return value
        path, _, text = str(value).partition("=")
        parts = list(dict.fromkeys(text.split(",")))
        if not _PATH.fullmatch(path) or not all(parts):
            self.fail(
                f"{value!r} is no setting with values; give a field of the fleet file and a list, "
                "as in controller.reactive.window_s=15,20,30",
                param,
                ctx,
            )
        return tuple(Setting(path, json_or_text(part)) for part in parts)


def positive(text: str) -> float | None:
    """The number in `text`, if it is above 0 and has an end."""
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) and number > 0 else None


def json_or_text(text: str) -> object:
    """The JSON value in `text`, or the text itself, as shells take quotes away."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
