from __future__ import annotations

from typing import Any

import attrs
from telemetry_samples import LIVE, ROLES, make_telemetry

from narwhal.fleet import EngineState
from narwhal.telemetry import DrainView, LiveState, Pool, PoolView
from narwhal.telemetry.alerts import alerts
from narwhal.telemetry.totals import Totals

FINE = attrs.evolve(
    LIVE,
    degraded=None,
    engines=tuple(
        attrs.evolve(engine, state=EngineState.SERVING, reason="", pools={})
        for engine in LIVE.engines
    ),
)


def totals(**changes: Any) -> Totals:
    return attrs.evolve(make_telemetry().totals(), **changes)


def on_d1(**changes: Any) -> LiveState:
    return attrs.evolve(
        FINE, engines=(FINE.engines[0], attrs.evolve(FINE.engines[1], iid="d1", **changes))
    )


def test_where_all_is_well_there_is_nothing_to_say() -> None:
    assert alerts(FINE, totals()) == []
    assert alerts(LiveState(retry_credits=0.0), totals()) == [], "none was ever needed"


def test_everything_worth_a_look_is_said() -> None:
    def said(live: LiveState = FINE, **changes: Any) -> list[str]:
        return alerts(live, totals(**changes))

    assert said(attrs.evolve(FINE, not_ready=("it is late",))) == ["it is late"]
    breached = attrs.evolve(ROLES, breaches=("1 decode engine, and the floor is 2",))
    assert said(attrs.evolve(FINE, roles=breached)) == ["1 decode engine, and the floor is 2"]
    held = on_d1(state=EngineState.HELD, reason="3 failures in a row: stream")
    assert said(held) == ["d1 is held for 12 s: 3 failures in a row: stream"]
    assert said(on_d1(state=EngineState.DRAINED, state_s=None)) == ["d1 is drained"]
    assert said(on_d1(suspicion="avoided for decode")) == ["d1 is avoided for decode"]
    waiting = {Pool.SERVING: PoolView(1, 1, 2), Pool.CONTROL: PoolView(0, 0, 1)}
    assert said(on_d1(pools=waiting)) == ["requests that wait for a connection to d1: 3"]
    late = DrainView(since_s=9.0, deadline_s=-1.0, overdue=True, process_start_s=None)
    assert said(on_d1(state=EngineState.DRAINING, drain=late)) == [
        "d1 is draining for 12 s",
        "d1 is not empty by the deadline of its drain",
    ]
    assert said(on_d1(drain=attrs.evolve(late, overdue=False))) == []
    assert said(journal_dropped=7) == ["journal rows lost: 7"]
    assert said(attrs.evolve(FINE, retry_credits=0.5), retries=3) == [
        "no retry credit is left: what fails is not tried again"
    ]


def test_the_gravest_comes_first() -> None:
    said = alerts(attrs.evolve(LIVE, not_ready=("first",)), totals(journal_dropped=1))
    assert said[0] == "first"
    assert said[-1] == "journal rows lost: 1"
