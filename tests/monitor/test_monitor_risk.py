"""The risk that role control waits for evidence after outlives the router."""

from __future__ import annotations

import random

import pytest
import trio

from narwhal.app import open_router
from narwhal.monitor import SavedState
from narwhal.monitor.state_document import parse_state, state_bytes
from narwhal.roles import Risk
from narwhal.router.saved import saved_state
from narwhal.testing import MemoryFleet, fleet_config, open_fleet, run_seeded

OFF_S = 1_700_000_000.0
"""What the wall clock is ahead of the router's."""


def wall_clock() -> float:
    return OFF_S + trio.current_time()


def router_of(fleet: MemoryFleet, resume: SavedState | None = None) -> open_router:
    return open_router(
        fleet.config,
        environ=fleet.environ,
        connect=fleet.connect,
        rng=random.Random(0),
        wall_clock=wall_clock,
        resume=resume,
    )


def test_the_window_goes_on_from_when_it_began() -> None:
    async def scene() -> None:
        async with open_fleet(fleet_config()) as fleet:
            async with router_of(fleet) as first:
                await trio.sleep(10)
                first.core.controller.first_token_late(trio.current_time())
                await trio.sleep(7)
                saved = saved_state(first.core)
                assert saved == parse_state(state_bytes(saved), name="state")
                assert saved.risk is Risk.FIRST_TOKEN
                await trio.sleep(1)
                assert saved_state(first.core).risk_at == saved.risk_at, "it is no news"
            await trio.sleep(5)
            async with router_of(fleet, saved) as second:
                state = second.core.controller.evidence.state(trio.current_time())
                assert state.elapsed_s == pytest.approx(13.0, abs=0.1)
                assert state.last_risk is Risk.FIRST_TOKEN

    run_seeded(scene, seed=0)


def test_without_a_risk_there_is_nothing_to_go_on_with() -> None:
    async def scene() -> None:
        async with open_fleet(fleet_config()) as fleet, router_of(fleet) as router:
            saved = saved_state(router.core)
            assert (saved.risk, saved.risk_at) == (None, None)
            document = state_bytes(saved).replace(b' "risk": null,\n "risk_at": null,\n', b"")
            assert b"risk" not in document
            assert parse_state(document, name="of before") == saved

    run_seeded(scene, seed=0)
