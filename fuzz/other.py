"""JSON as another parser reads it: what one parser lets pass, the next one must understand."""

from __future__ import annotations

import json
from typing import Any

_MOST_DIGITS = 4300  # that `int` takes
_MOST_BRACKETS = 300


def is_deep(body: bytes) -> bool:
    """Whether `body` may be nested too deeply for the standard parser, whose stack is the caller's.

    What the code under test makes of it is checked all the same; what it let pass is not read.
    """
    return body.count(b"[") + body.count(b"{") > _MOST_BRACKETS


def read(body: bytes) -> Any:
    """The value in `body`; integers that are too long for Python, and valid, are infinite."""
    return json.loads(body.decode(), parse_int=_number)


def keys(body: bytes) -> list[str]:
    """The keys of the object in `body`, as often as they are in it."""
    found: list[str] = json.loads(
        body.decode("utf-8-sig"),
        object_pairs_hook=lambda pairs: [key for key, _ in pairs],
        parse_int=str,
    )
    return found


def _number(digits: str) -> float:
    return int(digits) if len(digits.lstrip("-")) <= _MOST_DIGITS else float("inf")
