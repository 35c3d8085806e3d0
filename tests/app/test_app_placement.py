"""Placement by price through the whole router: emulated engines, exact profiles, virtual time."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import attrs
import pytest
import trio

from narwhal import RequestFailed, Router, open_router
from narwhal.config import FleetConfig
from narwhal.emulator import text_of
from narwhal.model import Phase
from narwhal.telemetry import RequestRow
from narwhal.testing import TimeModel, fleet_config, open_fleet, run_seeded

# A millisecond for a token of the prompt; ten for one of the answer, and five for each neighbour.
STEADY = TimeModel(prefill=(0.0, 0.001, 0.0), decode=(0.005, 0.005, 0.0))
Body = Callable[[Router, list[RequestRow]], Awaitable[None]]


def ask(tokens: int, tag: str, **more: Any) -> dict[str, Any]:
    return {"model": "emulated", "prompt": text_of(tokens - 1, tag), "max_tokens": 1, **more}


def play(body: Body, made: FleetConfig) -> list[RequestRow]:
    """Run `body` with a router that has profiles, and return the journal's rows."""
    rows: list[RequestRow] = []

    async def main() -> None:
        async with open_fleet(made, time=STEADY) as fleet:
            router_ = open_router(
                made,
                environ={},
                connect=fleet.connect,
                rng=random.Random(3),
                wall_clock=trio.current_time,
                profiles=fleet.profiles,
            )
            async with router_ as router:
                router.telemetry.listen(rows.append)
                await body(router, rows)

    run_seeded(main)
    return rows


def row_of(rows: list[RequestRow], tokens: int) -> RequestRow:
    return next(row for row in rows if row.prompt_tokens == tokens)


def test_of_a_running_prefill_only_what_is_left_counts() -> None:
    """p0 has 0.1 s of its 1.5 left, p1 all but 0.1 of its 0.5: neither legs nor lengths tell."""

    async def body(router: Router, rows: list[RequestRow]) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(router.complete, ask(1500, "long"))
            await trio.sleep(1.3)
            nursery.start_soon(router.complete, ask(500, "short"))
            await trio.sleep(0.1)
            views = router.live_state().engines
            assert [view.backlog_s for view in views[:2]] == pytest.approx([0.1, 0.4], abs=0.02)
            await router.complete(ask(300, "third"))

    (attempt,) = row_of(play(body, fleet_config(prefill=2)), 300).attempts
    assert (attempt.prefill, attempt.prefill_why) == ("p0", "least_cost")
    assert attempt.prefill_runner_up == "p1"


def test_equal_prices_are_settled_by_name() -> None:
    async def body(router: Router, rows: list[RequestRow]) -> None:
        await router.complete(ask(10, "alone"))

    made = fleet_config(prefill=3, decode=2)
    backwards = attrs.evolve(made, engines=tuple(reversed(made.engines)))
    for each in (made, backwards):
        (attempt,) = play(body, each)[0].attempts
        assert (attempt.prefill, attempt.prefill_runner_up) == ("p0", "p1")
        assert (attempt.decode, attempt.decode_runner_up) == ("d0", "d1")
        assert attempt.prefill_why == attempt.decode_why == "tie_by_iid"


def test_if_all_are_late_the_least_late_takes_it_and_that_is_counted() -> None:
    """Open admission lets 3 s of work onto one engine and 2.4 s onto the other: 2 s are allowed."""
    counted: list[dict[Phase, int]] = []

    async def body(router: Router, rows: list[RequestRow]) -> None:
        async with trio.open_nursery() as nursery:
            for tokens in (1500, 1200, 1199, 1501):
                nursery.start_soon(router.complete, ask(tokens, f"{tokens}"))
                await trio.sleep(0.01)
            await router.complete(ask(100, "fifth"))
        counted.append(dict(router.telemetry.totals().admission.unserved))

    rows = play(body, fleet_config(prefill=2))
    (attempt,) = row_of(rows, 100).attempts
    assert (attempt.prefill, attempt.prefill_why) == ("p1", "unserved")
    assert attempt.prefill_runner_up == "p0"
    unserved = [row for row in rows if row.attempts[0].prefill_why == "unserved"]
    assert counted == [{"prefill": len(unserved), "decode": 0}]
    assert {row.prompt_tokens for row in unserved} == {1199, 1501, 100}


def test_a_decode_goes_to_where_its_tokens_come_soonest() -> None:
    async def body(router: Router, rows: list[RequestRow]) -> None:
        async with trio.open_nursery() as nursery:
            for n in range(3):
                nursery.start_soon(router.complete, ask(10 + n, f"{n}", max_tokens=100))
                await trio.sleep(0.05)

    rows = play(body, fleet_config(decode=2))
    chosen = [row_of(rows, 10 + n).attempts[0] for n in range(3)]
    assert [each.decode for each in chosen] == ["d0", "d1", "d0"]
    assert [each.decode_why for each in chosen] == ["tie_by_iid", "least_cost", "least_cost"]
    assert all(each.decode_runner_up for each in chosen)


def test_a_leg_goes_to_engines_of_its_role_only() -> None:
    """However busy those are: open admission has no second choice."""

    async def body(router: Router, rows: list[RequestRow]) -> None:
        async with trio.open_nursery() as nursery:
            for n in range(8):
                nursery.start_soon(router.complete, ask(900 + n, f"{n}"))

    attempts = [row.attempts[0] for row in play(body, fleet_config(prefill=2, decode=3))]
    assert {each.prefill for each in attempts} == {"p0", "p1"}
    assert {each.decode for each in attempts} <= {"d0", "d1", "d2"}


@pytest.mark.parametrize("seed", range(4))
def test_decisions_are_the_same_in_any_order_of_the_fleet_file(seed: int) -> None:
    """Arrivals of a busy minute, with predictive admission, on equal engines."""

    def decisions(made: FleetConfig) -> list[Any]:
        async def body(router: Router, rows: list[RequestRow]) -> None:
            rng = random.Random(seed)
            async with trio.open_nursery() as nursery:
                for n in range(60):
                    request = ask(
                        rng.choice((300, 700, 1500)), f"{n}", max_tokens=rng.choice((1, 40))
                    )
                    nursery.start_soon(quietly, router, request)
                    await trio.sleep(rng.expovariate(4.0))

        rows = sorted(play(body, made), key=lambda row: row.arrival)
        return [
            (
                row.prompt_tokens,
                row.code,
                row.projected_ttft_s and round(row.projected_ttft_s, 6),
                [(a.prefill, a.prefill_why, a.decode, a.decode_runner_up) for a in row.attempts],
            )
            for row in rows
        ]

    made = fleet_config(prefill=2, decode=2, serving={"admission": "predictive"})
    made = attrs.evolve(made, slo=attrs.evolve(made.slo, tpot_s=0.03))
    shuffled = list(made.engines)
    random.Random(seed).shuffle(shuffled)
    first = decisions(made)
    assert decisions(attrs.evolve(made, engines=tuple(shuffled))) == first
    assert decisions(attrs.evolve(made, engines=tuple(reversed(made.engines)))) == first
    codes = {code for _, code, _, _ in first}
    assert {None, "projected_ttft"} <= codes


async def quietly(router: Router, request: dict[str, Any]) -> None:
    with suppress(RequestFailed):
        await router.complete(request)
