"""The kinds of values that options of `narwhal-trio profile` have."""

from __future__ import annotations

import json
from pathlib import Path

import click


class Numbers(click.ParamType[tuple[int, ...]]):
    """Whole numbers from 1, with commas between them."""

    name = "numbers"

    def __init__(self, example: str) -> None:
        self._example = example

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, ...]:
        """Read the numbers, or say how they are to be written."""
        if isinstance(value, tuple):
            return value
        try:
            numbers = tuple(int(part) for part in str(value).split(","))
        except ValueError:
            numbers = ()
        if not numbers or min(numbers) < 1:
            text = f"{value!r} is not a list of whole numbers from 1, such as {self._example}"
            self.fail(text, param, ctx)
        return numbers


class Limits(click.ParamType["int | dict[str, int]"]):
    """One number for all engines, or a JSON file with one for each."""

    name = "limits"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> int | dict[str, int]:
        """Read the number or the file."""
        if isinstance(value, int | dict):
            return value
        text = str(value)
        limits: object = int(text) if text.isdecimal() else _json(text)
        each = limits.values() if isinstance(limits, dict) else [limits]
        if limits is None or not all(type(most) is int and most > 0 for most in each):
            self.fail(
                f"{text!r} is neither a whole number from 1 nor a JSON file with an object of such "
                'numbers, for example {"p0": 64, "d0": 256}',
                param,
                ctx,
            )
        assert isinstance(limits, int | dict)  # noqa: S101 - checked above
        return limits


class TextFile(click.ParamType[str]):
    """The text in a file."""

    name = "file"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> str:
        """Read the file, or say why that cannot be done."""
        try:
            text = Path(str(value)).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            self.fail(f"{value}: cannot be read as UTF-8 text ({error})", param, ctx)
        if not text.strip():
            self.fail(f"{value}: is empty, and there is nothing to count in it", param, ctx)
        return text


def _json(path: str) -> object:
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
