"""A router that is killed, and one that resumes: as in the last written document, or not at all."""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from itertools import pairwise
from typing import Any

import attrs
import pytest
import trio
from state_worlds import MemoryStore, running

from narwhal.config import FleetConfig
from narwhal.fleet import TAKES_WORK, EngineState, Transition
from narwhal.model import ConfigError, Phase, RequestFailed, Role, Route, Terminal
from narwhal.monitor import EngineRecord, SavedState, check_fits, standing, with_roles
from narwhal.router import Router
from narwhal.telemetry import Counters
from narwhal.telemetry.kinds import Endpoint, StatusClass
from narwhal.testing import MemoryFleet, fleet_config, open_fleet, run_seeded

ASK = {"model": "emulated", "prompt": "Say it", "max_tokens": 8}
S = EngineState

COMES_BACK_AS = {
    S.SERVING: S.SERVING,
    S.QUARANTINED: S.SERVING,
    S.HELD: S.HELD,
    S.EJECTED: S.EJECTED,
    S.DRAINING: S.DRAINING,
    S.DRAINED: S.DRAINED,
    S.VALIDATING: S.HELD,
    S.BLOCKED: S.BLOCKED,
}


def config(**sections: Any) -> FleetConfig:
    return fleet_config(
        prefill=2,
        decode=2,
        controller={"monitor_interval_s": 0.5, "min_prefill": 1, "min_decode": 1},
        recovery={
            "liveness_every": 2,
            "readmit_every": 2,
            "eject_after": 2,
            "failure_quarantine_s": 1.0,
        },
        **sections,
    )


def saved(fleet: FleetConfig, **states: EngineState) -> SavedState:
    engines = [
        EngineRecord(
            iid=spec.iid,
            url=spec.url,
            role=spec.role,
            state=states.get(spec.iid, S.SERVING),
            reason="because",
        )
        for spec in fleet.engines
    ]
    return SavedState(written_at=5.0, model=fleet.model, engines=engines)


# Killed


async def ask_now_and_then(router: Router, rng: random.Random) -> None:
    async def one() -> None:
        with contextlib.suppress(RequestFailed):
            await router.complete(ASK | {"max_tokens": rng.choice([8, 100])})

    async with trio.open_nursery() as nursery:
        while True:
            await trio.sleep(rng.expovariate(4.0))
            nursery.start_soon(one)


async def trouble(fleet: MemoryFleet, router: Router, rng: random.Random) -> None:
    """Engines die and restart; operators drain them, and want them back."""
    core, health = router.core, router.core.health
    while True:
        await trio.sleep(rng.expovariate(1.5))
        iid, now = rng.choice(sorted(core.engines)), trio.current_time()
        match rng.choice(["power", "drain", "contract", "readmit", "readmit"]):
            case "power":
                fleet[iid].take_down(rng.uniform(0.2, 4.0), new_process=rng.random() < 0.7)
            case "drain":
                core.apply(health.drain(iid, now))
            case "contract":
                core.apply(health.contract(iid, rng.choice([None, "not the model"]), now))
            case "readmit":
                core.apply(health.readmit(iid, now))
                if rng.random() < 0.5:
                    core.apply(health.passed(iid, now))


def assert_resumed(router: Router, last: SavedState) -> None:
    """All that the document says is so, at once and before anything has run."""
    core, health, telemetry = router.core, router.core.health, router.telemetry
    contract = router.config.engine_contract is not None
    for engine in last.engines:
        iid = engine.iid
        assert core.roster.roles[iid] is engine.role is core.engines[iid].role
        expected = COMES_BACK_AS[engine.state]
        if engine.state is S.BLOCKED and not contract:
            expected = S.HELD
        assert health.standings.state(iid) is expected
        assert health.takes_work(iid) is (engine.state in TAKES_WORK)
        if engine.state in (S.HELD, S.EJECTED, S.DRAINING, S.DRAINED):
            assert health.standings.reason(iid) == engine.reason
        assert health.incarnations.get(iid) == engine.incarnation
        assert not health.quarantined(iid, trio.current_time())
    in_service = {engine.iid for engine in last.engines if engine.state in TAKES_WORK}
    takers = {iid for phase in (Phase.PREFILL, Phase.DECODE) for iid in core.roster.takers(phase)}
    assert takers == in_service
    now = telemetry.counters()
    for name, series in last.counters.series.items():
        for key, value in series.items():
            assert now.series[name][key] >= value, (name, key)
    cut = last.counters.total("requests_received_total") - last.counters.total("requests_total")
    assert telemetry.in_flight == 0
    assert now.total("requests_total") == last.counters.total("requests_total") + cut
    assert now.rejections == last.counters.rejections


@pytest.mark.parametrize(("contract", "kills"), [(None, 50), ({"dtype": "bfloat16"}, 200)])
def test_killed_and_resumed_at_two_hundred_instants(contract: Any, kills: int) -> None:
    rng = random.Random(f"kills {contract}")
    seen: Counter[EngineState] = Counter()
    kept: list[SavedState] = []

    async def segment(fleet: MemoryFleet, disk: MemoryStore, resume: SavedState | None) -> None:
        async with running(fleet, disk, resume=resume, seed=rng.getrandbits(32)) as world:
            if resume is not None:
                assert_resumed(world.router, resume)
            seed = rng.getrandbits(32)
            world.nursery.start_soon(ask_now_and_then, world.router, random.Random(seed))
            world.nursery.start_soon(trouble, fleet, world.router, random.Random(seed + 1))
            await trio.sleep(rng.uniform(0.1, 4.0))
            world.kill()

    async def main() -> None:
        content: bytes | None = None
        async with open_fleet(config(engine_contract=contract), seed=1) as fleet:
            for _ in range(kills):
                disk = MemoryStore()
                disk.content = content
                disk.takes = lambda: rng.choice([0.0, 0.0, rng.uniform(0, 0.4)])
                last = None if content is None else disk.state
                await segment(fleet, disk, last)
                content = disk.content
                if content is not None:
                    kept.append(disk.state)
                    seen.update(engine.state for engine in disk.state.engines)

    run_seeded(main, seed=1)
    assert len(kept) > kills * 0.9
    assert set(seen) >= set(S) - {S.QUARANTINED}, seen
    for before, after in pairwise(kept):
        for name, series in before.counters.series.items():
            for key, value in series.items():
                assert after.counters.series[name][key] >= value
    last = kept[-1].counters
    assert last.total("requests_total") > 2 * kills
    assert last.total("engine_restarts_total") > kills / 20


def test_what_was_held_gets_no_work_until_it_is_proved() -> None:
    async def main() -> None:
        fleet_file = config()
        out = {"p0": S.HELD, "d0": S.EJECTED, "d1": S.DRAINED}
        async with (
            open_fleet(fleet_file) as fleet,
            running(fleet, MemoryStore(), resume=saved(fleet.config, **out)) as world,
        ):
            health = world.router.core.health
            changes: list[Transition] = []
            world.router.core.roster._told = changes.append
            await world.router.complete(ASK)
            assert health.standings.state("d1") is S.DRAINED
            await trio.sleep(10)
            assert {(each.iid, each.event) for each in changes} == {
                ("p0", "verified"),
                ("d0", "verified"),
            }
            assert health.standings.state("d1") is S.DRAINED

    run_seeded(main)


def test_a_process_that_changed_meanwhile_is_noticed() -> None:
    async def main() -> None:
        async with open_fleet(config()) as fleet:
            disk = MemoryStore()
            async with running(fleet, disk):
                await trio.sleep(5)
            last = disk.state
            assert all(engine.version is not None for engine in last.engines)
            fleet["d1"].take_down(1.0, new_process=True)
            await trio.sleep(2)
            async with running(fleet, disk, resume=last) as world:
                await trio.sleep(5)
                metrics = world.router.telemetry.metrics
                assert [iid for iid, n in metrics.engine_restarts.items() if n.value] == ["d1"]

    run_seeded(main)


# What is taken up


@pytest.mark.parametrize("contract", [None, {"dtype": "bfloat16"}])
@pytest.mark.parametrize("state", S)
def test_how_each_state_comes_back(state: EngineState, contract: Any) -> None:
    fleet = config(engine_contract=contract)
    engine = saved(fleet, p0=state).engines[2]
    found, reason = standing(engine, fleet)
    blocked_by_nobody = state is S.BLOCKED and contract is None
    assert found is (S.HELD if blocked_by_nobody else COMES_BACK_AS[state])
    assert bool(reason) is (found is not S.SERVING)


def test_roles_come_back_and_pins_win() -> None:
    fleet = config()
    pinned = attrs.evolve(fleet.engines[0], pin=True)
    fleet = attrs.evolve(fleet, engines=(pinned, *fleet.engines[1:]))
    turned = {"p0": Role.DECODE, "p1": Role.DECODE, "d0": Role.PREFILL, "d1": Role.DECODE}
    state = saved(fleet)
    engines = [attrs.evolve(each, role=turned[each.iid]) for each in state.engines]
    state = attrs.evolve(state, engines=engines)
    resumed, notes = with_roles(fleet, state)
    assert {spec.iid: spec.role for spec in resumed.engines} == turned | {"p0": Role.PREFILL}
    assert notes == ["p0 is pinned to prefill in the fleet file; it was decode"]
    assert attrs.evolve(resumed, engines=fleet.engines) == fleet

    async def main() -> None:
        memory = MemoryFleet(config())
        world = running(memory, None, resume=state, config=fleet)
        live = {engine.iid: engine.role for engine in world.router.live_state().engines}
        assert live == turned | {"p0": Role.PREFILL}
        assert world.router.core.roster.roles == live

    run_seeded(main)


def test_requests_that_were_cut_have_failed_and_the_journal_tells_of_this_run() -> None:
    fleet = config()
    counters = Counters(
        series={
            "requests_received_total": {("chat",): 5.0, ("completions",): 2.0},
            "requests_total": {("chat", "completed"): 3.0, ("completions", "refused"): 2.0},
            "limits_fired_total": {("queue",): 4.0},
            "attempts_total": {("completed",): 3.0, ("failed",): 1.0},
            "retries_total": {(): 1.0},
            "kv_released_total": {(): 2.0},
            "kv_orphaned_total": {(): 6.0},
        },
        rejections={"queue_full": 2},
    )
    state = attrs.evolve(saved(fleet), counters=counters)

    async def main() -> None:
        router = running(MemoryFleet(fleet), None, resume=state).router
        totals, metrics = router.telemetry.totals(), router.telemetry.metrics
        assert (totals.received, totals.in_flight) == (7, 0)
        assert totals.terminals[Terminal.FAILED] == 2
        assert metrics.requests[Route.CHAT, Terminal.FAILED].value == 2
        assert metrics.requests_ended["other"].value == 2
        assert metrics.http_responses[Endpoint.CHAT, StatusClass.NONE].value == 2
        assert (totals.attempts, totals.retries) == (4, 1)
        assert (totals.kv_released, totals.kv_orphaned) == (2, 6)
        assert totals.limits_fired["queue"] == 4  # type: ignore[index]  # equal to the member
        assert totals.admission.rejections == {"queue_full": 2}
        row = router.telemetry.stop_row(ts=0.0, now=0.0)
        assert set(row.terminals.values()) == {0}

    run_seeded(main)


# What is refused


def other(fleet: FleetConfig, how: str) -> SavedState:
    state = saved(fleet)
    first, *rest = state.engines
    if how == "model":
        return attrs.evolve(state, model="another")
    if how == "url":
        return attrs.evolve(state, engines=[attrs.evolve(first, url="http://elsewhere:1"), *rest])
    if how == "fewer":
        return attrs.evolve(state, engines=rest)
    return attrs.evolve(state, engines=[*state.engines, attrs.evolve(first, iid="d9")])


@pytest.mark.parametrize(
    ("how", "line"),
    [
        ("model", 's: model is "another", and the fleet\'s is "emulated"'),
        (
            "url",
            (
                "s: engines has d0 at http://elsewhere:1, and in the fleet file it is at "
                "http://decode-0:8000"
            ),
        ),
        ("fewer", "s: engines lacks d0 of the fleet"),
        ("more", "s: engines has d9, which is no engine of the fleet"),
    ],
)
def test_a_state_of_another_fleet_is_refused(how: str, line: str) -> None:
    fleet = config()
    check_fits(saved(fleet), fleet, name="s")
    with pytest.raises(ConfigError) as caught:
        check_fits(other(fleet, how), fleet, name="s")
    assert caught.value.problems[0] == line
    assert len(caught.value.problems) == 2
    assert "start without --resume" in caught.value.problems[1]

    async def main() -> None:
        with pytest.raises(ConfigError, match="the state to resume: "):
            running(MemoryFleet(fleet), None, resume=other(fleet, how))

    run_seeded(main)
