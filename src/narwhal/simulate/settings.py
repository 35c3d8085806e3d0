"""A fleet file's settings, drawn: any that the loader accepts, the tight ones often."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from narwhal.testing import fleet_config

if TYPE_CHECKING:
    import random

    from narwhal.config import FleetConfig

MODEL = "m"
# Longer than any lease, so that a lease can be the limit that fires.
_LONG_CAP_S = 40.0
_LEASES = (3.0, 30.0)


def draw_config(rng: random.Random, *, engines: int) -> FleetConfig:
    """Settings for a fleet of at least `engines` engines."""
    prefill, decode = _draw_fleet(rng, engines)
    return fleet_config(
        prefill=prefill,
        decode=decode,
        model=MODEL,
        serving=_draw_serving(rng),
        engine=_draw_engine(rng),
        recovery={"failure_quarantine_s": rng.choice((0.0, 0.0, 0.5, 5.0))},
    )


def _draw_fleet(rng: random.Random, least: int) -> tuple[int, int]:
    """How many engines for prefill and for decode; of one kind only, some of the time."""
    count = least + rng.choice((0, 0, 1, 4))
    if rng.random() < 0.8 and count > 1:
        prefill = rng.randint(1, count - 1)
        return prefill, count - prefill
    return rng.choice(((count, 0), (0, count)))


def _draw_serving(rng: random.Random) -> dict[str, Any]:
    serving: dict[str, Any] = {
        "max_connections": rng.choice((1, 5, 50, 200, 200, 512, 512, 512)),
        "prefill_concurrency": rng.choice((0, 0, 1, 2, 8)),
        "decode_concurrency": rng.choice((0, 0, 1, 2, 8)),
        "max_attempts": rng.choice((1, 2, 3, 3)),
        "retry_base_s": rng.choice((0.0, 0.05, 0.1)),
        "retry_cap_s": rng.choice((0.1, 1.0)),
        "retry_budget": rng.choice((0, 3, 10, 50, 50)),
        "retry_replenish": rng.choice((0.0, 0.1, 1.0)),
        "request_timeout_s": rng.choice((0.5, 2.0, 5.0, 20.0, 120.0)),
        "prefill_timeout_s": rng.choice((0.3, 1.0, 5.0, 120.0)),
        "stream_commit": rng.choice(("before_decode", "first_token")),
        "admission": rng.choice(("open", "open", "predictive")),
        "admission_margin": rng.choice((0.0, 0.1)),
    }
    if rng.random() < 0.4:
        serving["queue_capacity"] = rng.choice((1, 10, 100))
        serving["queue_timeout_s"] = rng.choice((0.1, 1.0, 5.0))
        for name in ("prefill_concurrency", "decode_concurrency"):
            serving[name] = serving[name] or 3
    if rng.random() < 0.1:
        serving["max_response_bytes"] = rng.choice((50, 700, 2000, 10_000))
    if rng.random() < 0.1:
        serving["max_request_bytes"] = rng.choice((100, 400))
    serving["handoff_timeout_s"] = rng.choice((0.2, 1.0, 2.9))
    if "queue_capacity" not in serving and serving["max_attempts"] == 1:
        serving["handoff_timeout_s"] = rng.choice((0.0, 0.0, 0.5, 2.0, _LONG_CAP_S))
    return serving


def _draw_engine(rng: random.Random) -> dict[str, Any]:
    return {
        "tokenize": rng.random() < 0.7,
        "tokenize_timeout_s": rng.choice((0.05, 0.5, 2.0)),
        "first_token_timeout_s": rng.choice((0.2, 1.0, 2.5)),
        "decode_read_timeout_s": rng.choice((0, 0.3, 0.3, 2.0)),
        "pool_timeout_s": rng.choice((0.1, 5.0)),
        "connect_timeout_s": rng.choice((0.1, 1.0, 10.0)),
        "kv_lease_s": rng.choice(_LEASES),
        "require_handoff": rng.random() < 0.8,
    }
