"""A router's state as a document: made of what there is now, and taken up by the next router."""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING

import trio

from narwhal.monitor import EngineRecord, SavedState, standing

if TYPE_CHECKING:
    from narwhal.config import EngineSpec
    from narwhal.router.core import Core


def saved_state(core: Core) -> SavedState:
    """What is to outlive this router. Synchronous, so that all of it is of one moment."""
    evidence = core.controller.evidence
    at = evidence.risk_at
    return SavedState(
        written_at=max(0.0, core.wall_clock()),
        model=core.config.model,
        engines=tuple(_record(core, spec) for spec in core.config.engines),
        counters=core.telemetry.counters(),
        risk=evidence.last_risk,
        risk_at=None if at is None else max(0.0, at + core.wall_ahead_s),
    )


def take_up(core: Core, saved: SavedState) -> None:
    """Begin where `saved` ends. It has been checked, so that nothing here fails half-way.

    Roles are not looked at: they are in the configuration that `core` was made with.
    """
    states = {each.iid: standing(each, core.config) for each in saved.engines}
    known = {each.iid: each.incarnation for each in saved.engines}
    processes = {iid: process for iid, process in known.items() if process is not None}
    core.roster.restore(states, processes)
    core.telemetry.resume(saved.counters)
    if saved.risk is not None and saved.risk_at is not None:
        now = trio.current_time()
        # A wall clock may have been set meanwhile; nothing happened in the future.
        ago = max(0.0, now + core.wall_ahead_s - saved.risk_at)
        core.controller.evidence.restore(ago, now, saved.risk)


def _record(core: Core, spec: EngineSpec) -> EngineRecord:
    health, iid = core.health, spec.iid
    process = health.incarnations.get(iid)
    began = None if process is None else process.process_start_s
    return EngineRecord(
        iid=iid,
        url=spec.url,
        role=core.roster.roles[iid],
        state=health.standings.state(iid),
        reason=_clean(health.standings.reason(iid)),
        version=None if process is None else _clean(process.version),
        process_start_s=None if began is None or not isfinite(began) else began,
    )


def _clean(text: str) -> str:
    """Engines may say anything; the document is to be one that can be read."""
    return text.encode("utf-8", "replace").decode()
