"""Changes that leave the form of an input intact, beside the fuzzer's own, which mostly do not."""

from __future__ import annotations

import copy
import json
import re
from typing import TYPE_CHECKING, Any

from fuzz import other

if TYPE_CHECKING:
    import random

_EVENT = re.compile(rb"data: (.+)\n\n")
_Place = tuple[Any, Any]
# How often a value makes room for another; otherwise it goes, or its key does.
_KEPT = 0.7

_ODD: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 0.0, 0.5, 1e308, 2**31, 2**53, 2**63, 2**64, -(2**63), 10**30,
    "", " ", "0", "m", "a" * 300, "\x00", "\n", "\ud800", "\u2028", "\U0001f600", "${X}", "http://h",
    [], {}, [0], [[]], [{}], {"": 0},
)  # fmt: skip


def change_json(data: bytes, chance: random.Random) -> bytes | None:
    """The JSON in `data` with another value or key in one place; `None` if there is none in it."""
    if other.is_deep(data):
        return None
    try:
        document = json.loads(data)
    except ValueError:
        return None
    places = _places(document) if isinstance(document, dict | list) else []
    if not places:
        return None
    holder, key = chance.choice(places)
    if chance.random() < _KEPT:
        holder[key] = _instead_of(holder[key], places, chance)
    else:
        value = holder.pop(key)
        if isinstance(holder, dict):
            holder[_name(places, chance)] = value
    return json.dumps(document, separators=chance.choice([(",", ":"), (", ", ": ")])).encode()


def change_stream(data: bytes, chance: random.Random) -> bytes | None:
    """A stream with one event changed, or repeated, dropped or moved; `None` if it has no event."""
    events = list(_EVENT.finditer(data))
    if not events:
        return None
    event = chance.choice(events)
    rest = data[: event.start()] + data[event.end() :]
    if chance.random() < _KEPT:
        changed = change_json(event[1], chance)
        return changed and data[: event.start(1)] + changed + data[event.end(1) :]
    place = chance.choice([0, *(each.start() for each in events)])
    return chance.choice([rest, rest[:place] + event[0] + rest[place:], data + event[0]])


def _instead_of(value: Any, places: list[_Place], chance: random.Random) -> Any:
    holder, key = chance.choice(places)
    odd = chance.choice(_ODD)
    made = chance.choice(
        [odd, odd, holder[key], [value], [value, value], [value, odd], {"x": value}]
    )
    return copy.deepcopy(made)


def _places(value: Any) -> list[_Place]:
    """Every place of a value inside `value`, as what holds it and its key there."""
    found = []
    waiting = [value]
    while waiting:
        holder = waiting.pop()
        keys = list(holder) if isinstance(holder, dict) else range(len(holder))
        for key in keys:
            found.append((holder, key))
            if isinstance(holder[key], dict | list):
                waiting.append(holder[key])
    return found


def _name(places: list[_Place], chance: random.Random) -> str:
    names = [key for _, key in places if isinstance(key, str)]
    return chance.choice([*names, "", "_", "x"])
