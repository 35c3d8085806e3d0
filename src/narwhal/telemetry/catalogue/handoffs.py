"""The KV cache between the legs, and signs of a misfit between router and engines."""

from __future__ import annotations

from narwhal.telemetry.catalogue.labels import ENGINE
from narwhal.telemetry.catalogue.shape import Metric
from narwhal.telemetry.kinds import Kind

HANDOFFS: tuple[Metric, ...] = (
    # The KV cache between the legs
    Metric(
        "kv_released_total",
        Kind.COUNTER,
        "handoffs",
        "Handoffs that no decode would use, freed on their producer by a release leg.",
    ),
    Metric(
        "kv_release_failures_total",
        Kind.COUNTER,
        "handoffs",
        "Release legs that failed or took too long; each leaves an orphan.",
    ),
    Metric(
        "kv_orphaned_total",
        Kind.COUNTER,
        "handoffs",
        "Handoffs left on their producer until its lease ends.",
    ),
    Metric(
        "kv_orphan_tokens",
        Kind.GAUGE,
        "tokens",
        "Tokens of orphans whose lease has not ended; they stay priced on the engine.",
        (ENGINE,),
        scraped=True,
    ),
    Metric(
        "handoff_missing_total",
        Kind.COUNTER,
        "handoffs",
        "Prefill answers without a handoff: is the engine's KV connector configured?",
    ),
    Metric(
        "handoff_expired_total",
        Kind.COUNTER,
        "handoffs",
        "Handoffs discarded because they were too old to be safe.",
    ),
    Metric(
        "handoff_incomplete_total",
        Kind.COUNTER,
        "handoffs",
        "Handoffs discarded because a part was missing that a decoder cannot do without.",
    ),
    # Signs of a misfit between router and engines
    Metric(
        "prefill_rewrite_rejected_total",
        Kind.COUNTER,
        "legs",
        "Prefill legs answered 4xx, whose body the router had rewritten: perhaps its own bug.",
    ),
    Metric(
        "tokenize_fallback_total",
        Kind.COUNTER,
        "requests",
        "Prompts sized by their characters because no engine counted them in time.",
    ),
)
