"""The fleet at the moment of a pass: everything that a decision about roles may depend on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from narwhal.model import Role

if TYPE_CHECKING:
    from collections.abc import Iterable


@attrs.frozen(kw_only=True)
class EngineNow:
    """One engine."""

    iid: str
    role: Role
    live: bool = True
    """In service and not quarantined."""
    pinned: bool = False
    prefill_s: float = 0.0
    """Predicted seconds until its resident prefills are done."""
    decodes: int = 0
    """Resident decodes; their number counts for the role of the engine as for any other."""
    kv_tokens: float = 0.0
    """KV tokens of those, on average over their lifetimes."""


def _by_iid(engines: Iterable[EngineNow]) -> tuple[EngineNow, ...]:
    return tuple(sorted(engines, key=lambda engine: engine.iid))


@attrs.frozen(kw_only=True)
class Snapshot:
    """The fleet, in an order that no decision depends on."""

    engines: tuple[EngineNow, ...] = attrs.field(converter=_by_iid)
    waiting_s: float = 0.0
    """Predicted seconds of the prefills that wait for an engine."""
    pending: int = 0
    """Decodes that have no engine yet."""
    pending_tokens: float = 0.0
    """KV tokens of those, on average over their lifetimes."""

    def pool(self, role: Role) -> tuple[EngineNow, ...]:
        """The live engines of a role."""
        return tuple(each for each in self.engines if each.live and each.role is role)

    @property
    def split(self) -> Split:
        """Live engines by role."""
        return Split(len(self.pool(Role.PREFILL)), len(self.pool(Role.DECODE)))


@attrs.frozen
class Split:
    """So many live engines prefill, and so many decode."""

    prefill: int
    decode: int

    def __str__(self) -> str:
        return f"{self.prefill}P{self.decode}D"

    def toward(self, role: Role) -> Split:
        """With one engine moved to `role`."""
        change = 1 if role is Role.PREFILL else -1
        return Split(self.prefill + change, self.decode - change)

    def of(self, role: Role) -> int:
        """The engines of a role."""
        return self.prefill if role is Role.PREFILL else self.decode
