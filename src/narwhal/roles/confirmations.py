"""How often the same was proposed in a row (section 7.5)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from narwhal.roles.decision import Rule
    from narwhal.roles.snapshot import Split

    Key = tuple[Split, bool, Rule]
    """The proposed split, whether demand is complete, and the rule."""


class Confirmations:
    """Counts a proposal; any other one begins anew."""

    def __init__(self) -> None:
        self._key: Key | None = None
        self._count = 0

    def again(self, key: Key) -> int:
        """It was proposed once more: how often by now."""
        self._count = self._count + 1 if key == self._key else 1
        self._key = key
        return self._count

    def clear(self) -> None:
        """Nothing is proposed."""
        self._key, self._count = None, 0
