"""Worlds from seeds: they pass, they repeat, and they are not peaceful.

`tox -e check` runs more and larger ones, `tox -e sim` a thousand.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import trio
from simulate_samples import calm_plan, judged

from narwhal.model import Limit, Terminal
from narwhal.simulate import Judged, draw_plan, run, run_world
from narwhal.simulate.incidents import Incident, IncidentKind
from narwhal.simulate.world import World
from narwhal.testing import fleet_config

# Small ones, also of fleets of one or two engines, which the large ones never have.
SMALL = [(seed, engines) for seed in range(2000, 2024) for engines in (1 + seed % 3,)]


def small(seed: int, engines: int) -> Judged:
    return run_world(draw_plan(seed, requests=30, engines=engines))


@pytest.mark.parametrize(("seed", "engines"), SMALL)
def test_a_small_world(seed: int, engines: int) -> None:
    found = small(seed, engines)
    assert found.passed, [f"{each.invariant}: {each.text}" for each in found.violations]


def test_a_calm_world_serves_everybody() -> None:
    # Engines close a few connections that are used again: in this seed none that a decode meets.
    found = judged(calm_plan(3))
    assert found.passed, found.violations
    assert found.evidence is not None
    served = [row for row in found.evidence.rows if row.client_request_id]
    assert {row.terminal for row in served} == {Terminal.COMPLETED}
    assert not found.evidence.abandoned


@pytest.mark.parametrize("kind", IncidentKind)
def test_any_kind_of_incident_is_survived(kind: IncidentKind) -> None:
    incidents = [
        Incident(at=1.0 + n, engine=engine, kind=kind, seconds=1.5)
        for n, engine in enumerate(("p0", "d0", "d1"))
    ]
    found = run_world(calm_plan(3, incidents=tuple(incidents)))
    assert found.passed, [f"{each.invariant}: {each.text}" for each in found.violations]
    told = [event for event in found.trace.events if event.name == "incident"]
    assert [event.fields["kind"] for event in told] == [kind] * 3


@pytest.mark.parametrize("kind", IncidentKind)
def test_so_is_any_kind_on_all_engines_at_once(kind: IncidentKind) -> None:
    """Long enough for all of them to be out of service, where that is what it comes to."""
    plan = calm_plan(3)
    incidents = [
        Incident(at=1.0, engine=spec.iid, kind=kind, seconds=25.0) for spec in plan.config.engines
    ]
    found = run_world(calm_plan(3, span=60.0, incidents=tuple(incidents)))
    assert found.passed, [f"{each.invariant}: {each.text}" for each in found.violations]
    assert found.evidence is not None
    # One decode may be lost on a connection that died meanwhile: only its use tells, and it has
    # no second attempt.
    last = sorted(found.evidence.rows, key=lambda row: row.arrival)[-4:]
    lost = [row for row in last if row.terminal is not Terminal.COMPLETED]
    assert [row.code for row in lost] in ([], ["engine_closed"]), lost


CROWDED = fleet_config(
    model="m",
    serving={
        "max_connections": 1,
        "queue_capacity": 50,
        "queue_timeout_s": 0.1,
        "prefill_concurrency": 1,
        "decode_concurrency": 1,
        "handoff_timeout_s": 10.0,
    },
)


def test_worlds_are_not_peaceful() -> None:
    """Chaos that meets no trouble would pass whatever is broken."""
    terminals: Counter[Terminal] = Counter()
    limits: Counter[Limit] = Counter()
    lines: Counter[str] = Counter()
    faults: Counter[str] = Counter()
    retries = 0
    plans = [draw_plan(seed, requests=40) for seed in range(3000, 3032)]
    for plan in [*plans, calm_plan(config=CROWDED, span=0.0, speed=0.5)]:
        found = run_world(plan)
        assert found.passed, (plan.seed, found.violations)
        assert found.evidence is not None
        terminals.update(row.terminal for row in found.evidence.rows)
        limits.update(limit for row in found.evidence.rows for limit in row.limits_fired)
        retries += sum(len(row.attempts) > 1 for row in found.evidence.rows)
        lines.update(e.fields["fault"] for e in found.trace.events if e.name == "line")
        for record in found.evidence.records:
            acts = record.fault.actions if record.fault is not None else ()
            faults.update(type(action).__name__ for action in acts)
    assert set(terminals) == set(Terminal)
    assert set(limits) >= set(Limit) - {Limit.POOL, Limit.HEALTH, Limit.GRACE}
    assert {"refused", "lost", "late", "sever", "reset"} <= set(lines)
    assert len(set(lines)) > 6
    assert {"Status", "Hang", "Rst", "Cut", "Fin", "Kv", "Malformed", "Unread"} <= set(faults)
    assert retries > 20


def trace_in_a_process(tmp_path: Path, hash_seed: str) -> bytes:
    path = tmp_path / f"trace-{hash_seed}.jsonl"
    command = [sys.executable, "-m", "narwhal", "simulate", "chaos", "--seed", "11"]
    subprocess.run(  # noqa: S603 - this project's own command
        [*command, "--requests", "60", "--trace", str(path)],
        check=True,
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        timeout=120,
    )
    return path.read_bytes()


def test_the_same_seed_gives_the_same_bytes_in_any_process(tmp_path: Path) -> None:
    one, other = (trace_in_a_process(tmp_path, hash_seed) for hash_seed in ("1", "4242"))
    assert one == other
    assert one.count(b"\n") > 200


def test_another_seed_gives_another_world() -> None:
    plans = [draw_plan(seed, requests=10) for seed in (5, 5, 6)]
    assert plans[0] == plans[1]
    digests = [run_world(plan).trace.digest() for plan in plans]
    assert digests[0] == digests[1] != digests[2]


def goes_round_in_circles(self: object) -> bool:
    while True:
        pass


async def waits_for_ever() -> None:
    await trio.sleep_forever()


async def never_waits() -> None:
    while True:
        await trio.lowlevel.checkpoint()


def test_a_world_that_does_not_end_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "MOST_REAL_SECONDS", 0.2)
    monkeypatch.setattr(World, "_spoil_engines", goes_round_in_circles)
    (found,) = run_world(calm_plan(7)).violations
    assert found.invariant == "a world comes to its end"
    assert found.text.startswith("Stuck: a step did not end")
    assert "goes_round_in_circles" in found.text


@pytest.mark.parametrize(
    ("end", "steps", "complaint"),
    [
        (waits_for_ever, 1_000_000, "TooSlowError"),  # the monitor's passes go on meanwhile
        (never_waits, 100_000, "not within 100000"),
    ],
)
def test_nor_may_it_wait_or_run_for_ever(
    end: Callable[[], Awaitable[None]],
    steps: int,
    complaint: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(run, "MOST_STEPS", steps)
    monkeypatch.setattr(run, "MOST_SECONDS", 600.0)
    monkeypatch.setattr(World, "_end", lambda self: end())
    (found,) = run_world(calm_plan(7)).violations
    assert found.invariant == "a world comes to its end"
    assert complaint in found.text


def test_a_concern_does_not_disturb_another() -> None:
    """More requests make no other engines, settings or incidents."""
    few, many = draw_plan(9, requests=10), draw_plan(9, requests=500)
    assert (few.config, few.incidents, few.ending) == (many.config, many.incidents, many.ending)
