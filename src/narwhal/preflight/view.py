"""What one engine said of itself, kept for the gates that come after."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from narwhal.preflight.gates import About

if TYPE_CHECKING:
    from narwhal.config import EngineSpec
    from narwhal.engine import EngineClient, Process, Served
    from narwhal.preflight.asking import Trouble
    from narwhal.preflight.gates import Gate


@attrs.define(kw_only=True)
class View:
    """One engine under preflight; the task that is at a gate with it writes what it says."""

    spec: EngineSpec
    client: EngineClient
    served: list[Served] | Trouble | None = None
    """The models it serves."""
    version: str | None = None
    process: Process | None = None
    context_tokens: int | None = None
    tokens: tuple[int, ...] | None = None
    """What it made of the text that every engine is given."""
    side_channel: str | None = None
    """Where decoders reach its KV cache, as its own handoff says."""
    engine_id: str | None = None
    """Its name among engines, as its own handoff says."""

    @property
    def iid(self) -> str:
        """The engine's name."""
        return self.spec.iid

    def at(self, gate: Gate) -> About:
        """Findings of that gate about it."""
        return About(gate, self.iid)
