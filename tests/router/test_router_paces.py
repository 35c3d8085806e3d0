"""Prices follow what engines turn out to take, and nothing else."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress

import attrs
import pytest
import trio

from narwhal.app import open_router
from narwhal.emulator import text_of
from narwhal.model import Phase, RequestFailed
from narwhal.profiles import Profile
from narwhal.router import Router
from narwhal.testing import MemoryFleet, fleet_config, open_fleet, run_seeded


def slower(profile: Profile, factor: float) -> Profile:
    """What a profiler would say of an engine that is `factor` times as slow as it was."""
    prefill, decode = profile.prefill, profile.decode
    return attrs.evolve(
        profile,
        prefill=attrs.evolve(
            prefill, a=prefill.a / factor, b=prefill.b / factor, c=prefill.c / factor
        ),
        decode=attrs.evolve(
            decode, t0=decode.t0 / factor, tr=decode.tr / factor, tk=decode.tk / factor
        ),
    )


Script = Callable[[Router, MemoryFleet], Awaitable[None]]


def play(script: Script, *, factor: float = 1.0) -> None:
    """Run a script on a fleet that is `factor` times as slow as its profiles say."""
    config = fleet_config(slo={"ttft_s": 30.0, "tpot_s": 1.0}, serving={"admission": "predictive"})

    async def main() -> None:
        async with open_fleet(config) as fleet:
            profiles = {iid: slower(each, factor) for iid, each in fleet.profiles.items()}
            async with open_router(
                fleet.config,
                connect=fleet.connect,
                environ=fleet.environ,
                wall_clock=trio.current_time,
                profiles=profiles,
            ) as router:
                await script(router, fleet)

    run_seeded(main)


def ask(n: int, tokens: int = 60) -> dict[str, object]:
    prompt = f"out=length:{tokens} {text_of(800, str(n))}"
    return {"prompt": prompt, "max_tokens": tokens, "model": "emulated"}


async def ask_all(router: Router, count: int) -> None:
    async with trio.open_nursery() as nursery:
        for n in range(count):
            nursery.start_soon(router.complete, ask(n))


def test_an_engine_that_is_slower_than_its_profile_is_priced_so() -> None:
    async def script(router: Router, fleet: MemoryFleet) -> None:
        before = price(router)
        await ask_all(router, 120)
        prices = router.core.prices
        assert prices.paces.of("p0", Phase.PREFILL) == pytest.approx(1.25, rel=0.01)
        assert prices.paces.of("d0", Phase.DECODE) == pytest.approx(1.25, rel=0.05)
        after = price(router)
        assert after[0] == pytest.approx(1.25 * before[0], rel=0.01)
        assert after[1] == pytest.approx(1.25 * before[1], rel=0.05)
        assert (prices.paces.of("d0", Phase.PREFILL), prices.paces.of("p0", Phase.DECODE)) == (
            1.0,
            1.0,
        )

    play(script, factor=1.25)


def price(router: Router) -> tuple[float, float]:
    prices, now = router.core.prices, trio.current_time()
    (prefill,) = prices.prefill_paths(["p0"], 1000, now, decoders=["d0"])
    (decode,) = prices.decode_paths(["d0"], 1000, 100, now=now)
    return prefill.price_s, decode.interval_s


def test_one_that_is_as_its_profile_says_is_left_as_it_is() -> None:
    async def script(router: Router, fleet: MemoryFleet) -> None:
        await ask_all(router, 60)
        assert router.core.prices.paces.of("p0", Phase.PREFILL) == pytest.approx(1.0, abs=1e-6)
        assert router.core.prices.paces.of("d0", Phase.DECODE) == pytest.approx(1.0, abs=0.03)
        assert router.core.prices.paces.caution == 1.0

    play(script)


def test_a_client_that_reads_slowly_makes_no_engine_slow() -> None:
    async def script(router: Router, fleet: MemoryFleet) -> None:
        for n in range(8):
            async with router.stream(ask(n)) as events:
                async for _ in events:
                    await trio.sleep(0.5)
        assert router.core.prices.paces.of("d0", Phase.DECODE) == pytest.approx(1.0, abs=0.01)

    play(script)


def test_a_prefill_that_fails_or_is_left_makes_no_engine_slow() -> None:
    async def script(router: Router, fleet: MemoryFleet) -> None:
        fleet.fail_with("prefill:wait(5);status(500)")
        for n in range(3):
            with suppress(RequestFailed):
                await router.complete(ask(n))
        fleet.fail_with("prefill:wait(5)")
        with trio.move_on_after(3):
            await router.complete(ask(4))
        assert router.core.prices.paces.of("p0", Phase.PREFILL) == 1.0

    play(script)
