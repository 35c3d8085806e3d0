"""What all engines have to say alike. Pure."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Mapping

T = TypeVar("T")


def odd_ones(said: Mapping[str, T]) -> dict[str, tuple[T, T]]:
    """The engines that say something else than most: what they say, and what most say.

    If as many say the one as the other, what was said first counts as usual.
    """
    if not said:
        return {}
    counted = Counter(said.values())
    usual = counted.most_common(1)[0][0]  # of equal ones, the one that came first
    return {iid: (value, usual) for iid, value in said.items() if value != usual}
