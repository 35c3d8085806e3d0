"""What somebody who watches the router should look at, as sentences. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from narwhal.fleet import EngineState

if TYPE_CHECKING:
    from collections.abc import Iterator

    from narwhal.telemetry.live import EngineView, LiveState
    from narwhal.telemetry.totals import Totals

TRUSTED = "trusted"
"""What an engine's `suspicion` says where there is none."""


def alerts(live: LiveState, totals: Totals) -> list[str]:
    """The gravest first; empty for a router with which all is well."""
    return [*live.not_ready, *_floors(live), *_engines(live), *_losses(live, totals)]


def _floors(live: LiveState) -> Iterator[str]:
    if live.roles is not None:
        yield from live.roles.breaches


def _engines(live: LiveState) -> Iterator[str]:
    for engine in live.engines:
        if engine.state is not EngineState.SERVING:
            yield f"{engine.iid} is {engine.state}{_for(engine)}{_because(engine.reason)}"
        if engine.drain is not None and engine.drain.overdue:
            yield f"{engine.iid} is not empty by the deadline of its drain"
    for engine in live.engines:
        if engine.suspicion != TRUSTED:
            yield f"{engine.iid} is {engine.suspicion}"
        if waiting := sum(pool.waiting for pool in engine.pools.values()):
            yield f"requests that wait for a connection to {engine.iid}: {waiting}"


def _for(engine: EngineView) -> str:
    return "" if engine.state_s is None else f" for {engine.state_s:.0f} s"


def _because(reason: str) -> str:
    return f": {reason}" if reason else ""


def _losses(live: LiveState, totals: Totals) -> Iterator[str]:
    if live.retry_credits < 1.0 and totals.retries:
        yield "no retry credit is left: what fails is not tried again"
    if totals.journal_dropped:
        yield f"journal rows lost: {totals.journal_dropped}"
