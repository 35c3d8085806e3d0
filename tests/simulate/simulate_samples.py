"""Worlds that several tests look at; each is run once."""

from __future__ import annotations

from functools import cache

import attrs

from narwhal.simulate import Evidence, Judged, Plan, draw_plan, run_world
from narwhal.simulate.plan import Lines
from narwhal.testing import fleet_config

INF = float("inf")


def calm_plan(seed: int = 1, **changes: object) -> Plan:
    """A world in which nothing goes wrong, unless `changes` say so."""
    plan = attrs.evolve(
        draw_plan(seed, requests=40),
        config=fleet_config(
            prefill=2,
            decode=2,
            model="m",
            serving={
                "max_attempts": 3,
                "handoff_timeout_s": 10.0,
                "prefill_concurrency": 8,
                "decode_concurrency": 8,
                "queue_capacity": 20,
                "queue_timeout_s": 5.0,
                "max_connections": 20,
            },
        ),
        lines=Lines(delay_s=0.0, bytes_per_s=INF, segmented=False, buffer_bytes=65536),
        leg_faults=0.0,
        line_faults=0.0,
        rudeness=0.0,
        jitter=0.0,
        incidents=(),
        callers=6,
        extensions=None,
        ending="quiet",
        span=5.0,
        speed=5.0,
    )
    return attrs.evolve(plan, **changes)  # type: ignore[arg-type]  # names of fields


@cache
def judged(plan: Plan) -> Judged:
    return run_world(plan)


@cache
def troubled() -> Evidence:
    """A world with retries, abandoned handoffs, cancelled requests, a queue; and no violation."""
    plan = calm_plan(2, leg_faults=0.3, rudeness=0.3, callers=20, span=1.0)
    found = judged(plan)
    assert found.passed, found.violations
    assert found.evidence is not None
    return found.evidence
