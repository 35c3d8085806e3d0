"""Predictive admission through the whole router: emulated engines, exact profiles, virtual time."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import attrs
import pytest
import trio

from narwhal import ConfigError, RequestFailed, Router, Terminal, open_router
from narwhal.config import FleetConfig
from narwhal.emulator import text_of
from narwhal.model import Phase, TtftScope
from narwhal.profiles import HandoffCurve
from narwhal.telemetry import RequestRow
from narwhal.testing import MemoryFleet, TimeModel, fleet_config, open_fleet, run_seeded

# A millisecond for a token of the prompt, ten for one of the answer, and nothing else.
STEADY = TimeModel(prefill=(0.0, 0.001, 0.0), decode=(0.01, 0.0, 0.0))
Body = Callable[[MemoryFleet, Router], Awaitable[None]]


def config(*, prefill: int = 1, decode: int = 1, tpot: float = 0.05, **serving: Any) -> FleetConfig:
    if "queue_capacity" in serving:
        serving |= {"handoff_timeout_s": 20.0, "decode_concurrency": 99}
    serving = {"admission": "predictive", "request_timeout_s": 60.0} | serving
    made = fleet_config(
        prefill=prefill,
        decode=decode,
        serving=serving,
        engine={"first_token_timeout_s": 30.0},
    )
    return attrs.evolve(made, slo=attrs.evolve(made.slo, ttft_s=2.0, tpot_s=tpot))


def ask(tokens: int, tag: str = "a", **more: Any) -> dict[str, Any]:
    """A prompt of that many tokens: the first of them is a special one."""
    return {"model": "emulated", "prompt": text_of(tokens - 1, tag), "max_tokens": 1, **more}


def play(body: Body, made: FleetConfig | None = None, *, time: TimeModel = STEADY) -> None:
    async def main() -> None:
        async with open_fleet(made or config(), time=time) as fleet, fleet.open_router() as router:
            await body(fleet, router)
            await trio.sleep(3)
            assert router.core.ledger.total == 0
            assert fleet.idle

    run_seeded(main)


async def refused(router: Router, request: dict[str, Any]) -> RequestFailed:
    with pytest.raises(RequestFailed) as caught:
        await router.complete(request)
    assert caught.value.outcome.terminal is Terminal.REFUSED
    return caught.value


@asynccontextmanager
async def busy_decoders(router: Router, tokens: int = 20_000) -> AsyncIterator[trio.Nursery]:
    """A nursery in which a stream goes on, so that no decode engine is idle."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(router.complete, ask(2, "decodes", max_tokens=tokens))
        await trio.sleep(0.1)
        yield nursery
        nursery.cancel_scope.cancel(reason="seen enough")


def test_the_work_ahead_refuses_and_says_when_to_come_back() -> None:
    async def body(fleet: MemoryFleet, router: Router) -> None:
        async with busy_decoders(router) as nursery:
            for n in range(2):
                nursery.start_soon(router.complete, ask(1000, f"{n}"))
                await trio.sleep(0.1)
            # 0.1 s of the first are done: 1.8 s are ahead, and 1.9 s too many with its own.
            error = await refused(router, ask(1000, "late"))
            assert (error.code, error.status) == ("projected_ttft", 429)
            assert error.outcome.retry_after == 1
            assert "2.80 s" in str(error)
            await router.complete(ask(190, "short"))
            await router.complete(ask(1900, "alone"))
        assert fleet["p0"].stats.prompt_tokens == 2 + 1000 + 1000 + 190 + 1900

    play(body)


def limited(prefill: int) -> FleetConfig:
    """One prefill at a time on each engine, and one seat more than are ever asked for."""
    return config(
        prefill=prefill,
        max_connections=50,
        queue_capacity=5,
        queue_timeout_s=30.0,
        prefill_concurrency=1,
    )


@pytest.mark.parametrize("made", [config(), config(prefill=2), limited(1), limited(2)])
@pytest.mark.parametrize("own", [100, 700, 1900])
def test_who_comes_back_when_told_to_is_let_in(made: FleetConfig, own: int) -> None:
    """Whether the work ahead is on engines already, or still in line for them."""

    async def body(fleet: MemoryFleet, router: Router) -> None:
        done: list[RequestRow] = []
        router.telemetry.listen(done.append)
        async with busy_decoders(router) as nursery:
            for n in range(4):
                # Let in for sure, however much is ahead by then.
                router.core.prices.targets = attrs.evolve(router.core.prices.targets, ttft_s=99.0)
                nursery.start_soon(router.complete, ask(1300, f"{n}"))
                await trio.sleep(0.01)
            router.core.prices.targets = attrs.evolve(router.core.prices.targets, ttft_s=2.0)
            error = await refused(router, ask(own, "late"))
            assert error.code == "projected_ttft"
            assert error.outcome.retry_after is not None
            await trio.sleep(error.outcome.retry_after)
            await router.complete(ask(own, "late"))
        row = next(row for row in done if row.prompt_tokens == own and not row.code)
        assert row.prefill_ttft_s == pytest.approx(row.projected_ttft_s, abs=0.01)

    play(body, made)


def test_those_in_the_queue_come_first_and_those_behind_do_not() -> None:
    """Two wait for the seat with 0.9 s of prefills: that is too much with 1.2 s of one's own."""

    async def body(fleet: MemoryFleet, router: Router) -> None:
        done: list[RequestRow] = []
        router.telemetry.listen(done.append)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(router.complete, ask(10, "seated", max_tokens=20))
            await trio.sleep(0.05)
            for tokens in (600, 300):
                nursery.start_soon(router.complete, ask(tokens, f"{tokens}"))
                await trio.sleep(0.01)
            assert (await refused(router, ask(1200, "third"))).code == "projected_ttft"
            assert trio.current_time() < 0.1, "at once"
            nursery.start_soon(router.complete, ask(800, "fourth"))
        completed = [row for row in done if row.terminal is Terminal.COMPLETED]
        assert [row.prompt_tokens for row in completed] == [10, 600, 300, 800]
        # The first in line is priced again without those behind it.
        assert completed[1].projected_ttft_s == pytest.approx(0.15 + 0.6, abs=0.02)

    made = config(max_connections=1, queue_capacity=5, queue_timeout_s=30.0, prefill_concurrency=1)
    play(body, made)


def test_who_finds_the_seat_taken_is_told_how_long_the_last_one_had_it() -> None:
    async def body(fleet: MemoryFleet, router: Router) -> None:
        await router.complete(ask(10, "one", max_tokens=500))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(router.complete, ask(10, "two", max_tokens=500))
            await trio.sleep(0.1)
            with pytest.raises(RequestFailed) as caught:
                await router.complete(ask(10, "three"))
            assert caught.value.code == "queue_full"
            assert (
                caught.value.outcome.retry_after == 6
            )  # 10 ms for each of 500 tokens, and a prefill
            await trio.sleep(6)
            await router.complete(ask(10, "three"))

    play(body, config(max_connections=1))


def test_what_never_fits_is_not_told_to_come_back() -> None:
    async def body(fleet: MemoryFleet, router: Router) -> None:
        error = await refused(router, ask(2100))
        assert (error.code, error.outcome.retry_after) == ("prompt_too_long", None)
        assert "shorten" in str(error)

    play(body)


def test_a_decode_fleet_that_is_full_refuses() -> None:
    """Three requests decode at 40 ms a token; with a fourth it would be 50."""
    slow = TimeModel(prefill=(0.0, 1e-5, 0.0), decode=(0.01, 0.01, 0.0))

    async def body(fleet: MemoryFleet, router: Router) -> None:
        async with trio.open_nursery() as nursery:
            for n in range(3):
                nursery.start_soon(router.complete, ask(10, f"{n}", max_tokens=100))
                await trio.sleep(0.01)
            error = await refused(router, ask(10, "fourth", max_tokens=100))
            assert (error.code, error.outcome.retry_after) == ("projected_tpot", 1)
        await router.complete(ask(10, "later"))

    play(body, config(tpot=0.045), time=slow)


def test_an_answer_that_no_engine_could_hold() -> None:
    async def main() -> None:
        fleet_ = open_fleet(config(), time=STEADY, kv_capacity_tokens=500, max_model_len=500)
        async with fleet_ as fleet, fleet.open_router() as router:
            error = await refused(router, ask(100, max_tokens=450))
            assert (error.code, error.outcome.retry_after) == ("answer_too_long", None)
            await router.complete(ask(100, max_tokens=300))

    run_seeded(main)


def test_expected_output_is_learned() -> None:
    async def main() -> None:
        fleet_ = open_fleet(config(), time=STEADY, kv_capacity_tokens=500, max_model_len=500)
        async with fleet_ as fleet, fleet.open_router() as router:
            expected = router.core.prices.output.expected
            assert expected(440) == 440
            for n in range(60):
                short = f"{n} out=length:5"
                await router.complete({"model": "emulated", "prompt": short, "max_tokens": 440})
            assert 5 <= expected(440) < 40
            assert fleet.idle

    run_seeded(main)


def test_a_request_that_waits_is_priced_again_when_it_has_a_seat() -> None:
    async def body(fleet: MemoryFleet, router: Router) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(router.complete, ask(1500, "first", max_tokens=13))
            await trio.sleep(0.01)
            # In time as projected now, and too late once the first has had its answer.
            error = await refused(router, ask(400, "second", max_tokens=1))
            assert error.code == "projected_ttft"
            assert trio.current_time() == pytest.approx(1.61, abs=0.02)

    made = config(max_connections=1, queue_capacity=5, queue_timeout_s=30.0, prefill_concurrency=9)
    play(body, made)


def test_a_request_that_waits_leaves_when_it_is_too_late_for_any_engine() -> None:
    async def body(fleet: MemoryFleet, router: Router) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(router.complete, ask(10, "first", max_tokens=500))
            await trio.sleep(0.05)
            error = await refused(router, ask(400, "second"))
            assert error.code == "projected_ttft"
            assert "projected after 2.00 s" in str(error)
            # 2 s less the 0.4 s that it takes itself.
            assert trio.current_time() == pytest.approx(0.05 + 1.6, abs=0.02)

    made = config(max_connections=1, queue_capacity=5, queue_timeout_s=30.0, prefill_concurrency=9)
    play(body, made)


def test_an_idle_decode_engine_takes_both_phases_when_no_prefill_engine_is_in_time() -> None:
    async def body(fleet: MemoryFleet, router: Router) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(router.complete, ask(1900, "first"))
            await trio.sleep(0.01)
            await router.complete(ask(1000, "second"))
            assert fleet["d0"].stats.prompt_tokens == 1000
            assert fleet["d0"].stats.pulled_tokens == 0

    play(body)


def test_but_not_while_something_decodes_there() -> None:
    async def body(fleet: MemoryFleet, router: Router) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(router.complete, ask(10, "decodes", max_tokens=400))
            await trio.sleep(0.5)
            nursery.start_soon(router.complete, ask(1900, "first"))
            await trio.sleep(0.01)
            assert (await refused(router, ask(1000, "second"))).code == "projected_ttft"

    play(body)


def test_work_ahead_does_not_open_a_decode_engine_that_is_spoken_for() -> None:
    """Two that are being prefilled will decode there: a third would have 40 ms a token."""
    time = TimeModel(prefill=(0.0, 0.001, 0.0), decode=(0.01, 0.01, 0.0))

    async def body(fleet: MemoryFleet, router: Router) -> None:
        async with trio.open_nursery() as nursery:
            for n in range(2):
                nursery.start_soon(router.complete, ask(900, f"{n}"))
                await trio.sleep(0.01)
            assert (await refused(router, ask(100, "in time"))).code == "projected_tpot"
            assert (await refused(router, ask(300, "late"))).code == "projected_ttft"
        assert fleet["d0"].stats.prompt_tokens == 0, "it prefilled nothing"

    play(body, config(tpot=0.035), time=time)


@pytest.mark.parametrize("bound", ["pace", "memory"])
def test_no_request_is_in_the_way_of_its_own_decode(bound: str) -> None:
    """One fits and two would not: the one is projected to meet its target, and it does."""
    slow = TimeModel(prefill=(0.0, 0.001, 0.0), decode=(0.01, 0.01, 0.0))
    capacity = 1200 if bound == "memory" else None
    made = config(tpot=0.025 if bound == "pace" else 1.0)

    async def main() -> None:
        fleet_ = open_fleet(made, time=slow, kv_capacity_tokens=capacity, max_model_len=1000)
        async with fleet_ as fleet, fleet.open_router() as router:
            rows: list[RequestRow] = []
            router.telemetry.listen(rows.append)
            await router.complete(ask(700, max_tokens=100))
            assert rows[0].attempts[0].decode_why == "only"

    run_seeded(main)


def test_of_several_idle_decode_engines_the_journal_says_which_came_second() -> None:
    async def body(fleet: MemoryFleet, router: Router) -> None:
        rows: list[RequestRow] = []
        router.telemetry.listen(rows.append)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(router.complete, ask(1900, "first"))
            await trio.sleep(0.01)
            await router.complete(ask(1000, "second"))
        (attempt,) = rows[0].attempts
        assert (attempt.prefill, attempt.decode) == ("d0", "d0")
        assert attempt.prefill_why == attempt.decode_why == "tie_by_iid"
        assert attempt.prefill_runner_up == attempt.decode_runner_up == "d1"
        assert rows[0].projected_ttft_s == pytest.approx(1.0)

    play(body, config(decode=2))


@pytest.mark.parametrize("tokens", [2100, 100])
def test_a_fleet_of_one_role_tells_never_from_not_now(tokens: int) -> None:
    """Each engine runs both phases, one request at a time: no more of that was measured."""

    async def body(fleet: MemoryFleet, router: Router) -> None:
        async with trio.open_nursery() as nursery:
            for n in range(2):
                nursery.start_soon(router.complete, ask(100, f"{n}", max_tokens=100))
                await trio.sleep(0.01)
            error = await refused(router, ask(tokens, "third"))
            expected = ("no_engine", 1) if tokens == 100 else ("prompt_too_long", None)
            assert (error.code, error.outcome.retry_after) == expected
            pools = json.loads(router.telemetry.state(trio.current_time()))["pools"]
            assert pools == {"prefill": ["p0", "p1"], "decode": ["p0", "p1"]}
        assert [fleet[iid].stats.prompt_tokens for iid in ("p0", "p1")] == [100, 100]

    play(body, config(prefill=2, decode=0))


def test_the_cheapest_engine_gets_the_prefill_and_the_journal_says_why() -> None:
    async def body(fleet: MemoryFleet, router: Router) -> None:
        rows: list[RequestRow] = []
        router.telemetry.listen(rows.append)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(router.complete, ask(1000, "long"))
            await trio.sleep(0.01)
            nursery.start_soon(router.complete, ask(100, "short"))
            await trio.sleep(0.01)
            # 0.08 s are ahead on p1 and 0.98 s on p0, which a count of legs would not tell.
            await router.complete(ask(100, "third"))
        third = next(row for row in rows if row.prompt_tokens == 100 and row.arrival > 0.015)
        (attempt,) = third.attempts
        assert (attempt.prefill, attempt.prefill_why) == ("p1", "least_cost")
        assert attempt.prefill_runner_up == "p0"
        assert third.projected_ttft_s == pytest.approx(0.19, abs=0.01)
        assert third.prefill_ttft_s == pytest.approx(third.projected_ttft_s, abs=0.01)

    play(body, config(prefill=2))


def test_orphans_are_priced_on_their_producer_until_the_lease_ends() -> None:
    async def main() -> None:
        fleet_ = open_fleet(config(), time=STEADY, kv_capacity_tokens=4000, max_model_len=4000)
        async with fleet_ as fleet, fleet.open_router() as router, busy_decoders(router, 2000):
            now = trio.current_time()
            router.core.orphans.add("p0", 3500, until=now + 9.0, now=now)
            error = await refused(router, ask(1000))
            assert error.outcome.retry_after == 8  # and 1 s for itself, of the 2
            await trio.sleep(9)
            await router.complete(ask(1000))

    run_seeded(main)


def test_what_a_failed_release_leaves_behind_is_priced_until_the_lease_ends() -> None:
    """Two prompts that nobody pulls fill the producer: a third fits when their leases end."""
    time = TimeModel(prefill=(0.0, 0.0005, 0.0), decode=(0.01, 0.0, 0.0))

    async def main() -> None:
        made = config(request_timeout_s=90.0, decode_concurrency=1)
        fleet_ = open_fleet(made, time=time, kv_capacity_tokens=8000, max_model_len=4000)
        async with fleet_ as fleet, fleet.open_router() as router, busy_decoders(router, 3000):
            fleet.fail_with("early;status(500)", iid="d0")
            for n in range(2):
                # Prefilled after 1.75 s, and then it waits for the place that is taken.
                with trio.move_on_after(1.8):
                    await router.complete(ask(3500, f"{n}"))
            pinned_at = trio.current_time() - 0.05
            await trio.sleep(1)
            fleet.fail_with(iid="d0")
            assert router.core.orphans.tokens("p0", trio.current_time()) == 7000
            (view, _) = router.live_state().engines
            assert (view.orphan_tokens, view.backlog_s) == (7000, 0.0)
            error = await refused(router, ask(1500, "third"))
            assert error.code == "projected_ttft"
            lease_s = made.engine.kv_lease_s
            again = error.outcome.retry_after
            assert again is not None
            # The wait that it is told and the 1.25 s that it may wait itself reach that far.
            assert trio.current_time() + again + 1.25 >= pinned_at + lease_s
            assert trio.current_time() + again < pinned_at + lease_s
            with trio.move_on_after(0.5):
                await router.complete(ask(600, "fits beside them"))
            assert fleet["p0"].stats.prompt_tokens == 2 + 7000 + 600
            await trio.sleep(again - 6)
            assert (await refused(router, ask(1500, "too soon"))).code == "projected_ttft"
            await trio.sleep(6)
            await router.complete(ask(1500, "third"))

    run_seeded(main)


@asynccontextmanager
async def scoped_router(scope: TtftScope) -> AsyncIterator[Router]:
    """One whose target is about `scope`, where the decoder's handoffs are known to take 0.2 s."""
    made = config()
    made = attrs.evolve(made, slo=attrs.evolve(made.slo, ttft_scope=scope))
    async with open_fleet(made, time=STEADY) as fleet:
        profiles = dict(fleet.profiles)
        handoff = HandoffCurve(base_s=0.1, token_s=1e-4)
        profiles["d0"] = attrs.evolve(profiles["d0"], handoff=handoff)
        router = open_router(
            made,
            environ={},
            connect=fleet.connect,
            rng=random.Random(1),
            wall_clock=trio.current_time,
            profiles=profiles,
        )
        async with router as opened:
            yield opened


@pytest.mark.parametrize(
    ("scope", "projected"), [(TtftScope.PREFILL, 1.0), (TtftScope.FIRST_TOKEN, 1.21)]
)
def test_the_target_may_cover_what_a_client_sees(scope: TtftScope, projected: float) -> None:
    """A handoff of 1000 tokens takes 0.2 s by its profile, and a decode step 0.01 s."""

    async def main() -> None:
        rows: list[RequestRow] = []
        async with scoped_router(scope) as router:
            router.telemetry.listen(rows.append)
            await router.complete(ask(1000, max_tokens=50))
            if scope is TtftScope.FIRST_TOKEN:
                assert (await refused(router, ask(1900))).code == "prompt_too_long"
            else:
                await router.complete(ask(1900))
            ratio = router.telemetry.metrics.projection_ratio
        row = rows[0]
        assert row.projected_ttft_s == pytest.approx(projected)
        assert row.prefill_ttft_s == pytest.approx(1.0, abs=0.005)
        assert row.first_token_ttft_s == pytest.approx(1.01, abs=0.005)
        assert row.ttft_s == pytest.approx(1.5, abs=0.01), "all of a whole answer"
        if scope is TtftScope.FIRST_TOKEN:
            assert row.first_token_ttft_s is not None
            assert ratio.total == pytest.approx(row.first_token_ttft_s / 1.21)

    run_seeded(main)


def test_without_profiles_or_one_of_them_it_does_not_start() -> None:
    async def main(missing: str | None) -> None:
        async with open_fleet(config(), time=STEADY) as fleet:
            profiles = {iid: p for iid, p in fleet.profiles.items() if iid != missing}
            async with open_router(config(), environ={}, profiles=profiles if missing else None):
                pass

    with pytest.raises(ConfigError, match="measure them with `narwhal-trio profile"):
        run_seeded(main, None)
    with pytest.raises(ConfigError, match="d0"):
        run_seeded(main, "d0")


@pytest.mark.parametrize("factor", [0.7, 1.0, 1.5, 3.0])
def test_of_those_let_in_all_meet_the_target_at_any_load(factor: float) -> None:
    """Open loop, prompts of very different lengths, exact profiles."""
    time = TimeModel(prefill=(2e-9, 1e-4, 0.01), decode=(0.012, 2e-4, 2e-7))
    lengths = (500, 1000, 2000, 4000)
    capacity = 2 / (sum(time.prefill_seconds(n) for n in lengths) / len(lengths))

    async def body(fleet: MemoryFleet, router: Router) -> None:
        rows: list[RequestRow] = []
        codes: Counter[str] = Counter()
        router.telemetry.listen(rows.append)
        rng = random.Random(7)

        async def one(n: int) -> None:
            try:
                await router.complete(ask(rng.choice(lengths), f"{n}", max_tokens=20))
            except RequestFailed as failed:
                codes[failed.code] += 1

        async with trio.open_nursery() as nursery:
            for n in range(200):
                nursery.start_soon(one, n)
                await trio.sleep(rng.expovariate(factor * capacity))
        done = [row for row in rows if row.terminal is Terminal.COMPLETED]
        late = [row for row in done if (row.prefill_ttft_s or 0.0) > 2.0 + 1e-6]
        assert not late
        assert len(done) + codes.total() == 200
        assert set(codes) <= {"projected_ttft"}
        assert factor >= 1.0 or not codes
        assert factor <= 1.0 or codes
        spent = sum(row.spent.get(Phase.PREFILL, 0.0) for row in done)
        assert spent > 0.0

    play(body, config(prefill=2, decode=2, max_connections=999), time=time)
