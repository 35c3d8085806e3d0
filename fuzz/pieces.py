"""Ways in which bytes can arrive. The bytes choose them, so that an input is its own replay."""

from __future__ import annotations

import random
import re
import zlib
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

# Longer inputs are cut into larger steps: the time is linear in the number of pieces.
_MOST_STEPS = 256
_MOST_CUTS = 6
_SHOWN = 12
_LINE_ENDS = re.compile(rb"\r\n\r\n|\n\n|\r\r|\r\n")


def cuttings(data: bytes) -> Iterator[list[bytes]]:
    """Lists of pieces that make `data` again: small steps, between lines, and two by chance.

    No piece is empty, as an empty read is the end. The whole in one piece is not among them: it is
    what the others are compared with.
    """
    step = len(data) // _MOST_STEPS + 1
    yield [data[at : at + step] for at in range(0, len(data), step)]
    ends = [match.end() for match in _LINE_ENDS.finditer(data)]
    yield _cut(data, ends)
    chance = random.Random(zlib.crc32(data))  # noqa: S311 - to repeat, not to surprise
    yield _cut(data, [chance.randint(0, len(data)) for _ in range(chance.randint(1, _MOST_CUTS))])
    yield _cut(data, chance.sample(ends, min(len(ends), chance.randint(1, _MOST_CUTS))))


def take_option(data: bytes) -> tuple[int, bytes]:
    """The first byte as a set of bits, and the rest: digits in a corpus file read as bits."""
    return (data[0] if data else 0), data[1:]


def sizes(pieces: list[bytes]) -> str:
    """How `pieces` were cut, for the message of a failed check."""
    shown = ", ".join(str(len(piece)) for piece in pieces[:_SHOWN])
    return f"pieces of {shown}{', ...' if len(pieces) > _SHOWN else ''} bytes"


def _cut(data: bytes, places: Iterable[int]) -> list[bytes]:
    return [data[a:b] for a, b in pairwise([0, *sorted(places), len(data)]) if a < b]
