"""A program's own tests of what it does when engines are slow, fail, or are left alone."""

from __future__ import annotations

import trio

from narwhal import RequestFailed, Router
from narwhal.testing import AtStep, MemoryFleet, fleet_config, open_fleet, run_seeded

FLEET = fleet_config(
    prefill=1,
    decode=2,
    serving={"max_attempts": 2, "handoff_timeout_s": 10.0, "request_timeout_s": 60.0},
)


async def summarise(router: Router, text: str) -> str | None:
    """The thing under test: a summary, or None if there is none within two seconds."""
    prompt = [{"role": "user", "content": f"Summarise: {text}"}]
    ask = {"model": "emulated", "messages": prompt, "max_tokens": 20}
    with trio.move_on_after(2):
        try:
            answer = await router.complete(ask)
        except RequestFailed:
            return None
        return str(answer["choices"][0]["message"]["content"])
    return None


async def summary_with(*faults: str, iid: str | None = None) -> str | None:
    async with open_fleet(FLEET) as fleet, fleet.open_router() as router:
        fleet.fail_with(*faults, iid=iid)
        summary = await summarise(router, "The sea is salty because of rivers.")
        await at_rest(fleet)
        return summary


async def at_rest(fleet: MemoryFleet) -> None:
    """Nothing of the request is left on any engine."""
    await trio.sleep(1)
    assert fleet.idle


def test_a_summary() -> None:
    summary = run_seeded(summary_with)
    assert summary is not None
    assert len(summary.split()) == 20


def test_a_decode_that_fails_is_tried_again() -> None:
    async def main() -> str | None:
        return await summary_with("decode:tokens(0);rst*1", iid="d0")

    assert run_seeded(main) is not None


def test_an_hour_of_silence_takes_two_seconds() -> None:
    async def main() -> None:
        assert await summary_with("decode:hdr;wait(3600)") is None
        assert 2 < trio.current_time() < 4

    run_seeded(main)


def test_no_step_of_a_cancelled_summary_leaves_anything_behind() -> None:
    at_step = AtStep()

    async def cancelled_at(n: int) -> bool:
        async with open_fleet(FLEET) as fleet, fleet.open_router() as router:
            with trio.CancelScope() as scope:
                at_step.arm(n, lambda: scope.cancel(reason=f"step {n}"))
                await summarise(router, "Rivers carry salt.")
            over = at_step.disarm()
            await at_rest(fleet)
            return over

    n = 1
    while not run_seeded(cancelled_at, n, instruments=[at_step]):
        n += 5
    assert n > 50
