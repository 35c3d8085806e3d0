"""Credits of retries that are scheduled and never reach an engine."""

from __future__ import annotations

import pytest
import trio

from narwhal.model import Phase, Terminal
from narwhal.placement import Choice, Why

from stub_fleet import Play, good
from worlds import World, fleet_config, leg_of, play

ASK = {"model": "m", "prompt": "hello"}


@pytest.mark.parametrize("ended", ["left", "expired"])
@pytest.mark.parametrize("role", ["prefill", "both"])
@pytest.mark.parametrize("schedule", range(4))
def test_a_retry_that_waits_for_a_place_in_vain_gives_its_credit_back(
    ended: str, role: str, schedule: int
) -> None:
    """Somebody else has the engine's only place when the back-off is over."""
    iid = "p0" if role == "prefill" else "d0"

    async def body(world: World) -> None:
        core = world.router.core

        async def script(leg: Play) -> None:
            if leg.leg in ("prefill", "whole"):
                await leg.status(503, b"{}", Retry_After=1)
            else:
                await good(leg)

        world.script(script)
        client = await world.connect()
        await client.ask(ASK)
        await trio.sleep(0.5)
        place = core.desks[Phase.PREFILL].take_nowait(lambda: Choice(iid, Why.ONLY), leg_of)
        assert place is not None
        assert core.credits.available == 2
        await trio.sleep(1.5)
        (life,) = core.lives
        assert life.watch.phase is Phase.PREFILL
        assert core.credits.available == 2
        await trio.sleep(1.0 if ended == "left" else 2.0)
        client.close()
        await trio.sleep(0.1)
        assert core.credits.available == 3
        place.release()
        terminal = Terminal.CANCELLED if ended == "left" else Terminal.EXPIRED
        assert (world.row.terminal, len(world.row.attempts)) == (terminal, 2)
        assert sum(seen.leg in ("prefill", "whole") for seen in world.stubs.seen) == 1

    config = fleet_config(
        prefill=int(role == "prefill"),
        max_attempts=2,
        retry_budget=3,
        prefill_concurrency=1,
        decode_concurrency=1,
        request_timeout_s=3.75,
        engine={"tokenize": False},
    )
    play(body, config, schedule=schedule)
