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
    pending, now = core.ledger.load(UNPLACED, Phase.DECODE), trio.current_time()
    return Snapshot(
        engines=[_engine(core, spec, now) for spec in core.config.engines],
        waiting_s=core.desks[Phase.PREFILL].line_s + core.queue.line_s,
        pending=pending.requests,
        pending_tokens=pending.mean_tokens,
    )


def _engine(core: Core, spec: EngineSpec, now: float) -> EngineNow:
    health, iid = core.health, spec.iid
    decodes = core.ledger.load(iid, Phase.DECODE)
    return EngineNow(
        iid=iid,
        role=core.roster.roles[iid],
        live=health.takes_work(iid) and not health.quarantined(iid, now),
        pinned=spec.pin,
        prefill_s=core.ledger.backlog_s(iid, now),
        decodes=decodes.requests,
        kv_tokens=decodes.mean_tokens,
    )
