"""From the bytes of a file to a JSON document whose every number and key is what it seems.

The standard reader is lenient where a settings file must not be: it keeps the last of two equal
keys, takes `NaN` for a number, and fails with different exceptions for text nested too deeply
and for integers of thousands of digits. Here each of these becomes a fault with its path.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from narwhal.config.faults import Fault, Faults, join
from narwhal.config.settings import shown

if TYPE_CHECKING:
    import os

# A fleet file of a thousand engines is well below 1 MiB; this stops an endless special file.
MAX_FILE_BYTES = 16 * 1024 * 1024
# The schema itself is four levels deep; the rest is room for notes and for `engine_contract`.
MAX_DEPTH = 64
# `float` holds nothing larger, and `int` refuses text beyond 4300 digits with a `ValueError`.
_MAX_INT_DIGITS = 309

_PLAIN_KEY = re.compile(r"[A-Za-z0-9_.-]{1,64}")


class JsonObject(dict[str, object]):
    """A JSON object that remembers which of its keys the text gave more than once."""

    __slots__ = ("repeated",)

    def __init__(self, pairs: list[tuple[str, object]]) -> None:
        super().__init__(pairs)
        seen: set[str] = set()
        again = [key for key, _ in pairs if key in seen or seen.add(key)]  # type: ignore[func-returns-value]  # add returns None, which is the point
        self.repeated = tuple(dict.fromkeys(again))


def is_note(key: object) -> bool:
    """Whether `key` is a note to the reader, which stands anywhere and means nothing."""
    return isinstance(key, str) and key.startswith("_")


def key_name(key: object) -> str:
    """How a message writes a key: as it is, quoted and escaped if it is not plain."""
    return key if isinstance(key, str) and _PLAIN_KEY.fullmatch(key) else shown(key)


def read_bytes(path: str | os.PathLike[str], kind: str = "fleet file") -> bytes:
    """The content of a file that is to be a `kind`.

    Raises `Faults` with one line, whatever is wrong with it.
    """
    try:
        with Path(path).open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise Faults.one(f"cannot be read: {error.strerror or type(error).__name__}") from error
    except ValueError as error:  # a path with a NUL byte in it
        raise Faults.one(f"cannot be read: {error}") from error
    if len(content) > MAX_FILE_BYTES:
        raise Faults.one(f"is larger than {MAX_FILE_BYTES} bytes, which no {kind} is")
    return content


def parse_json(content: bytes) -> object:
    """The document that `content` holds. Raises `Faults` with one line if it holds none."""
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise Faults.one(
            f"is not UTF-8 text: byte 0x{content[error.start]:02x} in line {line}"
        ) from None
    try:
        return json.loads(text, object_pairs_hook=JsonObject, parse_int=_integer)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise Faults.one(f"is not valid JSON: {where}: {error.msg}") from None
    except RecursionError:
        raise Faults.one(_TOO_DEEP) from None


_TOO_DEEP = f"is nested more than {MAX_DEPTH} levels deep"


def _integer(digits: str) -> int | float:
    return int(digits) if len(digits) <= _MAX_INT_DIGITS else float(digits)


def document_faults(document: object) -> list[Fault]:
    """What is wrong with a document whatever it is for: repeated keys, numbers that are none.

    Raises `Faults` at once if it is nested too deeply to be looked at. What notes hold is for
    people and is not looked at, except that it has to be JSON: `NaN` is not.
    """
    faults: list[Fault] = []
    waiting: list[tuple[str, object, int]] = [("", document, 0)]
    while waiting:
        path, value, depth = waiting.pop()
        if depth > MAX_DEPTH:
            raise Faults.one(_TOO_DEEP)
        if isinstance(value, float) and not math.isfinite(value):
            faults.append(Fault(path, f"must be a finite number, not {shown(value)}"))
        elif isinstance(value, Mapping):
            faults += _key_faults(path, value)
            waiting += [(join(path, key_name(key)), each, depth + 1) for key, each in value.items()]
        elif isinstance(value, list | tuple):
            waiting += [(f"{path}[{index}]", each, depth + 1) for index, each in enumerate(value)]
    return faults[::-1]


def _key_faults(path: str, value: Mapping[object, object]) -> list[Fault]:
    faults = [
        Fault(join(path, key_name(key)), "must have a text for a key")
        for key in value
        if not isinstance(key, str)
    ]
    if isinstance(value, JsonObject):
        # Notes may repeat: "_" is how people write a comment, and nothing reads it.
        faults += [
            Fault(join(path, key_name(key)), "is given more than once in the same object")
            for key in value.repeated
            if not is_note(key)
        ]
    return faults


def without_notes(value: object) -> object:
    """A copy of a document in plain dicts and lists, without its notes."""
    if isinstance(value, Mapping):
        return {key: without_notes(each) for key, each in value.items() if not is_note(key)}
    if isinstance(value, list | tuple):
        return [without_notes(each) for each in value]
    return value
