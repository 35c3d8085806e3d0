"""Role control in the whole router: what a decision changes, and what it leaves alone."""

from __future__ import annotations

import json
from typing import Any

import attrs
import pytest
import trio
from lifecycle_stage import Stage, play
from state_worlds import MemoryStore, running

from narwhal.config import FleetConfig
from narwhal.fleet import EngineState
from narwhal.model import Phase, Role
from narwhal.roles import Gate
from narwhal.telemetry import RoleRow
from narwhal.testing import TimeModel, fleet_config, open_fleet, run_seeded

S = EngineState
SLOW = TimeModel(prefill=(0.0, 0.001, 0.0), decode=(0.02, 0.002, 1e-6), handoff=(0.0, 0.0))
"""1 ms a prompt token; 20 ms a step, 2 ms a request of it and 1 us a KV token."""


def config(
    prefill: int = 2, decode: int = 2, *, pinned: tuple[str, ...] = (), **controller: Any
) -> FleetConfig:
    """Exact profiles, and nobody is refused by projection."""
    made = fleet_config(
        prefill=prefill,
        decode=decode,
        serving={
            "admission": "predictive",
            "admission_margin": 1000.0,
            "max_attempts": 2,
            "handoff_timeout_s": 20.0,
        },
        controller=controller,
        recovery={"liveness_every": 2},
    )
    engines = tuple(attrs.evolve(each, pin=each.iid in pinned) for each in made.engines)
    return attrs.evolve(made, engines=engines)


def role_rows(stage: Stage) -> list[RoleRow]:
    rows = stage.router.telemetry.journal.drain(10_000)
    return [row for row in rows if isinstance(row, RoleRow)]


def roles(stage: Stage) -> dict[str, Role]:
    return dict(stage.router.core.roster.roles)


async def ask_for_tokens(stage: Stage, seconds: float) -> None:
    """More decode than two engines bear, for so long; what was asked is then left alone."""
    with trio.move_on_after(seconds):
        await stage.load(every=0.5, tokens=220)


def test_a_decision_moves_an_engine_and_the_journal_says_why() -> None:
    async def body(stage: Stage) -> None:
        await ask_for_tokens(stage, 30.0)
        assert sorted(roles(stage).values()).count(Role.DECODE) == 3
        (row,) = role_rows(stage)
        assert (row.to, row.verdict, row.rule) == (Role.DECODE, "moved", "toward_decode")
        assert (str(row.split), str(row.proposed)) == ("2P2D", "1P3D")
        assert roles(stage)[row.engine] is Role.DECODE
        moves = stage.router.telemetry.metrics.role_moves
        assert moves[row.engine, Role.DECODE].value == 1

    play(body, config(), time=SLOW)


def test_new_legs_follow_a_move_at_once_and_residents_stay_and_finish() -> None:
    async def body(stage: Stage) -> None:
        core = stage.router.core
        async with trio.open_nursery() as nursery:
            for n in range(4):
                nursery.start_soon(stage.ask, f"early {n}", 200)
            await trio.sleep(1.0)
            stayed = core.ledger.residents("d0", Phase.DECODE)
            assert stayed == 2
            core.move("d0", Role.PREFILL)
            assert core.roster.takers(Phase.PREFILL) == ["p0", "p1", "d0"]
            assert core.roster.takers(Phase.DECODE) == ["d1"]
            for n in range(4):
                nursery.start_soon(stage.ask, f"late {n}", 20)
            await trio.sleep(1.0)
            assert core.ledger.residents("d0", Phase.DECODE) == stayed
        assert not stage.failed
        decoders = [row.attempts[-1].decode for row in stage.rows]
        assert sorted(row.completion_tokens for row in stage.rows) == [20] * 4 + [200] * 4
        assert all(len(row.attempts) == 1 for row in stage.rows)
        assert sorted(decoders, key=str) == ["d0"] * 2 + ["d1"] * 6

    play(body, config(), time=SLOW)


@pytest.mark.parametrize("to", [Role.PREFILL, Role.DECODE])
def test_a_drain_goes_on_through_a_change_of_role(to: Role) -> None:
    async def body(stage: Stage) -> None:
        core = stage.router.core
        async with trio.open_nursery() as nursery:
            for n in range(4):
                nursery.start_soon(stage.ask, f"{n}", 200)
            await trio.sleep(1.0)
            await stage.router.lifecycle.drain(["d0"])
            assert stage.state("d0") is S.DRAINING
            core.move("d0", to)
            assert stage.state("d0") is S.DRAINING
            await stage.until_stoppable("d0")
        assert stage.state("d0") is S.DRAINED
        assert "d0" not in core.roster.takers(Phase.PREFILL)
        assert "d0" not in core.roster.takers(Phase.DECODE)
        assert roles(stage)["d0"] is to
        assert not stage.failed

    play(body, config(), time=SLOW)


def test_what_is_held_against_an_engine_stays_when_its_role_does_not() -> None:
    async def body(stage: Stage) -> None:
        core = stage.router.core
        now = trio.current_time()
        core.apply(core.health.lost("d0", now, "it is gone"))
        core.move("d0", Role.PREFILL)
        assert stage.state("d0") is S.EJECTED
        assert core.roster.takers(Phase.PREFILL) == ["p0", "p1"]
        assert stage.reason("d0") == "it is gone"

    play(body, config(), time=SLOW)


def test_an_engine_that_comes_back_has_the_role_that_it_had_last() -> None:
    async def body(stage: Stage) -> None:
        core = stage.router.core
        core.move("d0", Role.PREFILL)
        stage.fleet["d0"].take_down()
        with trio.fail_after(60):
            while stage.state("d0") is not S.EJECTED:  # noqa: ASYNC110 - time is virtual
                await trio.sleep(0.1)
        stage.fleet["d0"].restart()
        with trio.fail_after(60):
            while stage.state("d0") is not S.SERVING:  # noqa: ASYNC110 - time is virtual
                await trio.sleep(0.1)
        assert core.roster.takers(Phase.PREFILL) == ["p0", "p1", "d0"]

    play(body, config(), time=SLOW)


def test_a_floor_is_restored_by_one_engine_a_pass() -> None:
    async def body(stage: Stage) -> None:
        core = stage.router.core
        for iid in ("p0", "p1"):
            stage.fleet[iid].take_down()
        await trio.sleep(20.0)
        assert (stage.state("p0"), stage.state("p1")) == (S.EJECTED, S.EJECTED)
        rows = role_rows(stage)
        assert [(row.engine, row.to, row.rule) for row in rows] == [
            ("d0", Role.PREFILL, "prefill_floor"),
            ("d1", Role.PREFILL, "prefill_floor"),
        ]
        assert rows[1].ts - rows[0].ts >= 1.0
        assert core.roster.takers(Phase.PREFILL) == ["d0", "d1"]

    play(body, config(2, 4, min_prefill=2, pinned=("p0", "p1")), time=SLOW)


def test_pins_hold_while_demand_asks_for_the_contrary() -> None:
    async def body(stage: Stage) -> None:
        await ask_for_tokens(stage, 30.0)
        assert roles(stage) == {
            "p0": Role.PREFILL,
            "p1": Role.PREFILL,
            "d0": Role.DECODE,
            "d1": Role.DECODE,
        }
        gates = stage.router.telemetry.metrics.role_gates
        assert gates[Gate.UNAVAILABLE].value > 0

    play(body, config(pinned=("p0", "p1")), time=SLOW)


def test_advisory_changes_nothing_and_is_shown() -> None:
    async def body(stage: Stage) -> None:
        before = roles(stage)
        await ask_for_tokens(stage, 40.0)
        assert roles(stage) == before
        assert {row.verdict for row in role_rows(stage)} == {"advised"}
        document: Any = json.loads(stage.router.telemetry.state(trio.current_time()))
        shown = document["roles"]
        assert shown["advisory"] is True
        assert shown["flips"] == []
        assert (shown["proposal"]["rule"], shown["proposal"]["proposed"]) == (
            "toward_decode",
            "1P3D",
        )
        assert "toward_decode" in shown["proposal"]["reason"]

    play(body, config(advisory=True), time=SLOW)


def test_roles_outlive_the_router() -> None:
    async def main() -> None:
        async with open_fleet(config(), time=SLOW) as fleet:
            store = MemoryStore()
            async with running(fleet, store, config=fleet_config(prefill=2, decode=2)) as world:
                await trio.sleep(1.5)
                world.router.core.move("d0", Role.PREFILL)
            async with running(
                fleet, store, resume=store.state, config=fleet_config(prefill=2, decode=2)
            ) as world:
                await trio.sleep(5.0)
                assert world.router.core.roster.takers(Phase.PREFILL) == ["p0", "p1", "d0"]

    run_seeded(main)
