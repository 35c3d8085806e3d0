"""The text form of faults. See `narwhal.emulator.faults` for the language."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import attrs

from narwhal.emulator import faults as f

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ACTIONS: dict[str, Callable[..., f.Action | tuple[f.Action, ...]]] = {
    "wait": f.Wait,
    "hang": f.Hang,
    "status": f.Status,
    "hdr": f.Hdr,
    "header": f.Header,
    "tokens": f.Tokens,
    "send": f.Send,
    "huge": f.Huge,
    "malformed": f.Malformed,
    "error": f.InBandError,
    "end": f.End,
    "fin": f.Fin,
    "rst": f.Rst,
    "cut": f.Cut,
    "die": f.Die,
    "nodone": f.NoDone,
    "tail": f.Tail,
    "late": f.Late,
    "nofinish": f.NoFinish,
    "nousage": f.NoUsage,
    "nokv": f.NoKv,
    "kv": f.Kv,
    "nopull": f.NoPull,
    "pace": f.Pace,
    "drip": f.Drip,
    "bytewise": f.Bytewise,
    "split": f.Split,
    "onewrite": f.OneWrite,
    "early": f.Early,
    "unread": f.Unread,
    "onreuse": f.OnReuse,
    "stall": lambda count: (f.Tokens(count), f.Hang()),
    "drop": lambda count: (f.Tokens(count), f.Rst()),
}
# The arguments that are numbers: what stands there must be one, and not below zero.
_NUMBERS = {
    "seconds", "status", "retry_after", "count", "size", "bytes_per_second", "gap", "at",
}  # fmt: skip
_NAME = re.compile(r"[a-z]+")
_BARE = re.compile(r"[^,()\s]+")
_COUNT = re.compile(r"\*(\d+)$")
_PHASE = re.compile(r"([a-z]+):")
_DECODER = json.JSONDecoder()


class _Unreadable(ValueError):
    """Raised and caught in this module only."""


def parse_fault(text: str) -> f.Fault:
    """Read the text form; `ValueError` says what is wrong with it and where."""
    try:
        return _fault(text.strip())
    except ValueError as error:
        raise ValueError(f"fault {text!r}: {error}") from error


def _fault(text: str) -> f.Fault:
    phase = f.FaultPhase.ANY
    count = None
    if named := _PHASE.match(text):
        if named[1] not in list(f.FaultPhase):
            raise _Unreadable(f"no phase is called {named[1]!r}: use {', '.join(f.FaultPhase)}")
        phase = f.FaultPhase(named[1])
        text = text[named.end() :]
    if counted := _COUNT.search(text):
        count = int(counted[1])
        text = text[: counted.start()]
        if count < 1:
            raise _Unreadable("the count must be at least 1")
    return f.Fault(tuple(_script(text)), phase, count=count)


def _script(text: str) -> Iterator[f.Action]:
    at = 0
    while True:
        named = _NAME.match(text, at)
        if named is None or named[0] not in ACTIONS:
            raise _Unreadable(f"no action is called {text[at:][:20]!r}")
        arguments, at = _arguments(text, named.end())
        try:
            made = ACTIONS[named[0]](*arguments)
        except TypeError as error:
            raise _Unreadable(f"{named[0]} does not take {len(arguments)} arguments") from error
        for action in made if isinstance(made, tuple) else (made,):
            _check(named[0], action)
            yield action
        if at == len(text):
            return
        if text[at] != ";":
            raise _Unreadable(f"';' is missing before {text[at:][:20]!r}")
        at += 1


def _arguments(text: str, at: int) -> tuple[list[Any], int]:
    arguments: list[Any] = []
    if not text.startswith("(", at):
        return arguments, at
    while True:
        value, at = _value(text, at + 1)
        arguments.append(value)
        if text.startswith(")", at):
            return arguments, at + 1
        if not text.startswith(",", at):
            raise _Unreadable(f"',' or ')' is missing before {text[at:][:20]!r}")


def _value(text: str, at: int) -> tuple[Any, int]:
    try:
        value, end = _DECODER.raw_decode(text, at)
    except json.JSONDecodeError:
        end = -1
    except RecursionError as error:
        raise _Unreadable("an argument is nested too deeply") from error
    if text[end : end + 1] in (",", ")") and end > at:
        return value, end
    bare = _BARE.match(text, at)
    if bare is None:
        raise _Unreadable(f"an argument is missing before {text[at:][:20]!r}")
    return bare[0], bare.end()


def _check(name: str, action: Any) -> None:
    for field in attrs.fields(type(action)):
        value = getattr(action, field.name)
        if field.name not in _NUMBERS or value is None:
            continue
        if type(value) not in (int, float) or not 0 <= value < float("inf"):
            raise _Unreadable(f"{name}: {field.name} must be a number from 0, not {value!r}")
