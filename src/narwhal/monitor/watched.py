"""What a monitor needs of its router."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable

    from narwhal.fleet import Health, Transition
    from narwhal.model import Role


class Watched(Protocol):
    """What a monitor needs of its router. All of it is synchronous."""

    health: Health
    degraded: str | None
    """Why no new requests are to be taken, if none are; the monitor writes it."""

    def apply(self, changes: Iterable[Transition]) -> None:
        """Take up changes of engines' standings."""

    def role(self, iid: str) -> Role:
        """The engine's role now."""

    def residents(self, iid: str) -> int:
        """Legs that are on the engine now."""

    def restarted(self, iid: str) -> None:
        """Another process answers there: what was known of the old one is over."""

    def proved(self, iid: str) -> None:
        """The engine was seen to generate: nothing is held against it any more."""
