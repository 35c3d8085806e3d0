"""The fleet as role control looks at it, at one moment."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from narwhal.fleet import UNPLACED
from narwhal.model import Phase
from narwhal.roles import EngineNow, Snapshot

if TYPE_CHECKING:
    from narwhal.config import EngineSpec
    from narwhal.router.core import Core


def snapshot_of(core: Core) -> Snapshot:
    """Every engine, and the work that has none yet.

    Decodes of requests that wait for admission are not in it: they are demand, offered already.
    """
    ledger, now = core.ledger, trio.current_time()
    return Snapshot(
        engines=[_engine(core, spec, now) for spec in core.config.engines],
        waiting_s=core.desks[Phase.PREFILL].line_s + core.queue.line_s,
        pending=ledger.residents(UNPLACED, Phase.DECODE),
        pending_tokens=ledger.mean_tokens(UNPLACED, Phase.DECODE),
    )


def _engine(core: Core, spec: EngineSpec, now: float) -> EngineNow:
    ledger, health, iid = core.ledger, core.health, spec.iid
    return EngineNow(
        iid=iid,
        role=core.roster.roles[iid],
        live=health.takes_work(iid) and not health.quarantined(iid, now),
        pinned=spec.pin,
        prefill_s=ledger.backlog_s(iid, now),
        decodes=ledger.residents(iid, Phase.DECODE),
        kv_tokens=ledger.mean_tokens(iid, Phase.DECODE),
    )
