"""What a seed stands for: the fleet, its settings, and what goes wrong how often."""

from __future__ import annotations

import random
from typing import Any

import attrs

from narwhal.config import FleetConfig

from worlds import fleet_config

LEASES = (3.0, 30.0)
WRITING = {"write", "write_nowait", "flush"}
EXTENSIONS = ("respond", "write", "write_nowait", "on_gone", "flush", "abort")


@attrs.frozen(kw_only=True)
class Plan:
    """A world that chaos runs in. Times in seconds."""

    seed: int
    config: FleetConfig
    buffer_bytes: int
    latency: float
    """The longest one-way delay of a connection."""
    requests: int
    span: float
    """Requests arrive within this time."""
    faults: float
    """Share of engine legs that go wrong."""
    rudeness: float
    """Share of client connections that do not behave."""
    slow: float
    """Scale of an engine's times."""
    drift: float
    """The longest a task may take to run one step; a machine is never infinitely fast."""
    connect_faults: float
    deaths: int
    """How often an engine's process dies, to come back later."""
    callers: int
    """Requests from within the application."""
    extensions: frozenset[str] | None
    """Which of the server's extensions the application is offered; None for all of them."""
    ending: str
    """`quiet`, or what happens in the middle of it all: `drain`; `stop`, which closes the server
    as well; or `leave`, the end of the router's block."""
    end_at: float
    grace: float

    @property
    def peaceful(self) -> bool:
        """Whether engines do nothing worse than to close idle connections when they like."""
        return not (self.faults or self.connect_faults or self.deaths)

    @property
    def slack(self) -> float:
        """By how much times may be off because steps take time, and so do bytes."""
        return 1e-6 + 40 * self.drift + 4 * self.latency


def draw_plan(seed: int) -> Plan:
    rng = random.Random(f"plan {seed}")
    return Plan(
        seed=seed,
        config=draw_config(rng),
        buffer_bytes=rng.choice((600, 4096, 65536, 65536)),
        latency=rng.choice((0.0, 0.0, 0.001, 0.03)),
        requests=rng.randint(20, 60),
        span=rng.choice((0.0, 0.5, 3.0, 10.0)),
        faults=rng.choice((0.0, 0.1, 0.3, 0.5)),
        rudeness=rng.choice((0.0, 0.2, 0.6)),
        slow=rng.choice((0.0, 0.1, 1.0)),
        drift=rng.choice((0.0, 1e-6, 1e-4, 5e-3)),
        connect_faults=rng.choice((0.0, 0.0, 0.05, 0.3)),
        deaths=rng.choice((0, 0, 0, 1, 4)),
        callers=rng.choice((0, 0, 4, 12)),
        extensions=_draw_extensions(rng),
        ending=rng.choice((*["quiet"] * 9, "drain", "stop", "leave")),
        end_at=rng.choice((0.0, 0.05, 1.0, 4.0)) * rng.random(),
        grace=rng.choice((0.0, 0.5, 5.0)),
    )


def _draw_extensions(rng: random.Random) -> frozenset[str] | None:
    """Other servers have none of them; any part of them should do as well."""
    kind = rng.random()
    if kind < 0.7:
        return None
    if kind < 0.9:
        return frozenset()
    offered = {name for name in EXTENSIONS if rng.random() < 0.5}
    if offered & WRITING:  # one set: what one of them leaves, another has to send
        offered |= WRITING
    return frozenset(offered)


def draw_config(rng: random.Random) -> FleetConfig:
    serving: dict[str, Any] = {
        "max_connections": rng.choice((1, 3, 20, 50, 100)),
        "prefill_concurrency": rng.choice((0, 0, 1, 2, 8)),
        "decode_concurrency": rng.choice((0, 0, 1, 2, 8)),
        "max_attempts": rng.choice((1, 2, 3, 3)),
        "retry_base_s": rng.choice((0.0, 0.05, 0.1)),
        "retry_cap_s": rng.choice((0.1, 1.0)),
        "retry_budget": rng.choice((0, 3, 10, 50, 50)),
        "retry_replenish": rng.choice((0.0, 0.1, 1.0)),
        "request_timeout_s": rng.choice((0.5, 2.0, 5.0, 20.0)),
        "prefill_timeout_s": rng.choice((0.3, 1.0, 5.0, 120.0)),
        "stream_commit": rng.choice(("before_decode", "first_token")),
    }
    if rng.random() < 0.4:
        serving["queue_capacity"] = rng.choice((1, 3, 10))
        serving["queue_timeout_s"] = rng.choice((0.1, 1.0, 5.0))
        for name in ("prefill_concurrency", "decode_concurrency"):
            serving[name] = serving[name] or 3
    if rng.random() < 0.1:
        serving["max_response_bytes"] = rng.choice((50, 700, 2000, 10_000))
    if rng.random() < 0.1:
        serving["max_request_bytes"] = rng.choice((100, 400))
    lease = rng.choice(LEASES)
    serving["handoff_timeout_s"] = rng.choice((0.2, 1.0, 2.9))
    if "queue_capacity" not in serving and serving["max_attempts"] == 1:
        serving["handoff_timeout_s"] = rng.choice((0.0, 0.0, 0.5, 2.0, 40.0))
    engine = {
        "tokenize": rng.random() < 0.7,
        "tokenize_timeout_s": rng.choice((0.05, 0.5, 2.0)),
        "first_token_timeout_s": rng.choice((0.2, 1.0, 2.5)),
        "decode_read_timeout_s": rng.choice((0, 0.3, 0.3, 2.0)),
        "pool_timeout_s": rng.choice((0.1, 5.0)),
        "connect_timeout_s": rng.choice((0.1, 1.0, 10.0)),
        "kv_lease_s": lease,
        "require_handoff": rng.random() < 0.8,
    }
    recovery = {"failure_quarantine_s": rng.choice((0.0, 0.0, 0.5, 5.0))}
    return fleet_config(**_draw_fleet(rng), engine=engine, recovery=recovery, **serving)


def _draw_fleet(rng: random.Random) -> dict[str, int]:
    kind = rng.random()
    if kind < 0.7:
        return {"prefill": rng.randint(1, 3), "decode": rng.randint(1, 3)}
    count = 1 if kind < 0.85 else rng.randint(2, 3)
    one = rng.choice(("prefill", "decode"))
    return {"prefill": 0, "decode": 0} | {one: count}
