"""A preflight of an emulated fleet, in virtual time."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

import trio

from narwhal.config import FleetConfig
from narwhal.engine import engine_clients
from narwhal.preflight import Finding, Gate, Grade, Options, Preflight, Report
from narwhal.profiles import ProfileRow, ProfileStore, generation_digest
from narwhal.testing import MemoryFleet, fleet_config, open_fleet, run_seeded

LEASE_S = 3.0
EPOCH = 1_700_000_000.0
Store = ProfileStore | tuple[str, ...] | None
ENGINE = {"kv_lease_s": LEASE_S}


def pinned(**sections: Any) -> FleetConfig:
    """Two engines that keep their roles: p0 prefills, d0 decodes."""
    engines = [
        {"iid": iid, "url": f"http://{iid}:8000", "role": role, "pin": True}
        for iid, role in (("p0", "prefill"), ("d0", "decode"))
    ]
    sections = {"engine": ENGINE, **sections}
    return fleet_config(**{**sections, "engines": engines})


def exact_store(fleet: MemoryFleet, *, version: str = "0.32.0") -> ProfileStore:
    """What a profiler that makes no mistakes would have written."""
    digest = generation_digest(version, fleet.config.model, fleet.config.engine_contract)
    return ProfileStore(
        rows=tuple(
            ProfileRow(iid=iid, profile=profile, generation_digest=digest)
            for iid, profile in fleet.profiles.items()
        )
    )


def check(
    config: FleetConfig | None = None,
    *,
    faults: Mapping[str, str] | None = None,
    options: Options | None = None,
    store: Callable[[MemoryFleet], Store] = exact_store,
    before: Callable[[MemoryFleet], object] = lambda _fleet: None,
    on_gate: Callable[[MemoryFleet, Gate], None] = lambda _fleet, _gate: None,
    environ: Mapping[str, str] | None = None,
    cancel_after: float | None = None,
    left: bool = False,
    **changes: Any,
) -> Report:
    """Run a preflight; afterwards no engine holds anything, unless it may be `left` with some."""

    async def main() -> Report:
        async with open_fleet(config or pinned(), **changes) as fleet:
            for iid, fault in (faults or {}).items():
                fleet.fail_with(fault, iid=iid)
            before(fleet)
            clients = engine_clients(
                fleet.config,
                environ={**fleet.environ, **(environ or {})},
                connect=fleet.connect,
                data_connections=8,
            )
            preflight = Preflight(
                config=fleet.config,
                clients=clients,
                store=store(fleet),
                rng=random.Random(11),
                wall_clock=lambda: EPOCH + trio.current_time(),
                options=options or Options(lease_wait_s=100.0),
                on_gate=lambda gate: on_gate(fleet, gate),
            )
            with trio.move_on_after(cancel_after or 1e6):
                await preflight.run()
            await trio.sleep(0.2)  # aborts are on their way
            assert left or fleet.idle
            for client in clients.values():
                for pool in (client.pools.data, client.pools.counting, client.pools.control):
                    assert (pool.busy, pool.waiting) == (0, 0)
                client.close()
            return preflight.report()

    return run_seeded(main, seed=3)


def found(report: Report, gate: Gate, subject: str | None = None) -> list[Finding]:
    return [
        each for each in report.findings if each.gate is gate and subject in (None, each.subject)
    ]


def worst(report: Report, gate: Gate) -> list[Finding]:
    """What failed at a gate."""
    return [each for each in found(report, gate) if each.grade is Grade.FAIL]
