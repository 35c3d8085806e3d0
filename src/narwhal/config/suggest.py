"""Which key was meant."""

from __future__ import annotations

from difflib import SequenceMatcher, get_close_matches
from functools import cache
from typing import TYPE_CHECKING

from narwhal.config.fleet import FleetConfig
from narwhal.config.settings import fields_of, walk

if TYPE_CHECKING:
    from collections.abc import Mapping

# difflib's own threshold for "close". A key of another section must be closer, because there
# are many of them.
_CLOSE = 0.6
_CLOSE_ELSEWHERE = 0.8
# `SequenceMatcher` takes quadratic time; no key of ours is longer.
_LONGEST = 64


def nearest_key(key: str, section: type) -> str:
    """A clause that names the known key nearest to `key`, with its path if it is elsewhere."""
    known = [field.name for field in fields_of(section)]
    wanted = key[:_LONGEST].lower()
    if close := get_close_matches(wanted, known, n=1, cutoff=_CLOSE):
        return f"did you mean {close[0]}?"
    if close := get_close_matches(wanted, _everywhere(), n=1, cutoff=_CLOSE_ELSEWHERE):
        return f"did you mean {_everywhere()[close[0]]}?"
    nearest = max(known, key=lambda each: SequenceMatcher(None, wanted, each).ratio())
    return f"the nearest known key is {nearest}"


@cache
def _everywhere() -> Mapping[str, str]:
    """Every key of the schema with a path to it, sections among them."""
    paths: dict[str, str] = {}
    for path, _ in walk(FleetConfig):
        steps = path.split(".")
        for depth in range(1, len(steps) + 1):
            paths.setdefault(steps[depth - 1].removesuffix("[]"), ".".join(steps[:depth]))
    return paths
