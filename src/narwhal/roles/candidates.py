"""Which engine of a pool moves, if one may (sections 7.2, 7.3)."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from narwhal.model import Role
from narwhal.roles.decision import Gate

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from narwhal.roles.snapshot import EngineNow


def candidate(
    pool: Sequence[EngineNow],
    moved_at: Mapping[str, float],
    now: float,
    *,
    dwell_s: float = 0.0,
    most_decodes: int | None = None,
) -> EngineNow | Gate:
    """The engine of the pool with the least work that may leave it, or what keeps them all.

    `most_decodes` is the resident guard. Ties by `iid`.
    """
    free = [engine for engine in pool if not engine.pinned]
    if not free:
        return Gate.UNAVAILABLE
    free = [each for each in free if now - moved_at.get(each.iid, -inf) >= dwell_s]
    if not free:
        return Gate.DWELL
    if most_decodes is not None:
        free = [engine for engine in free if engine.decodes <= most_decodes]
        if not free:
            return Gate.RESIDENTS
    return min(free, key=_work)


def _work(engine: EngineNow) -> tuple[float, int, float, str]:
    if engine.role is Role.DECODE:
        return (engine.kv_tokens, engine.decodes, engine.prefill_s, engine.iid)
    return (engine.prefill_s, engine.decodes, engine.kv_tokens, engine.iid)
