"""Role control."""

from __future__ import annotations

from narwhal.telemetry.catalogue.labels import ENGINE, GATE, HORIZON, ROLE, RULE, VERDICT
from narwhal.telemetry.catalogue.shape import Metric
from narwhal.telemetry.kinds import Kind

ROLES: tuple[Metric, ...] = (
    Metric(
        "role_moves_total",
        Kind.COUNTER,
        "moves",
        "Engines that were moved to a role.",
        (ENGINE, ROLE),
    ),
    Metric(
        "role_decisions_total",
        Kind.COUNTER,
        "decisions",
        "Decisions of role control, by the rule and by what became of the roles.",
        (RULE, VERDICT),
        kept=False,
    ),
    Metric(
        "role_gates_total",
        Kind.COUNTER,
        "decisions",
        "Decisions of role control, by what kept the roles as they are.",
        (GATE,),
        kept=False,
    ),
    Metric(
        "pool_engines",
        Kind.GAUGE,
        "engines",
        "Live engines of a role at the last decision.",
        (ROLE,),
        scraped=True,
    ),
    Metric(
        "proposed_engines",
        Kind.GAUGE,
        "engines",
        "Live engines of a role in the split that was last proposed.",
        (ROLE,),
        scraped=True,
    ),
    Metric(
        "pool_load_ratio",
        Kind.GAUGE,
        "ratio",
        "Load of the engines of a role over their target at the last decision.",
        (ROLE,),
        scraped=True,
    ),
    Metric(
        "projected_ratio",
        Kind.GAUGE,
        "ratio",
        "TTFT (prefill) and TPOT (decode) over their targets, as the present split is projected.",
        (ROLE,),
        scraped=True,
    ),
    Metric(
        "proposed_ratio",
        Kind.GAUGE,
        "ratio",
        "The same of the adjacent split that was compared with it.",
        (ROLE,),
        scraped=True,
    ),
    Metric(
        "demand_arrivals",
        Kind.GAUGE,
        "requests",
        "Requests offered within a horizon, refused ones included.",
        (HORIZON,),
        scraped=True,
    ),
    Metric(
        "demand_prefill_ratio",
        Kind.GAUGE,
        "ratio",
        "Prefill seconds that are asked for in a second.",
        (HORIZON,),
        scraped=True,
    ),
    Metric(
        "demand_output_tokens_per_second",
        Kind.GAUGE,
        "tokens/s",
        "Output tokens that are expected to be asked for in a second.",
        (HORIZON,),
        scraped=True,
    ),
    Metric(
        "evidence_seconds",
        Kind.GAUGE,
        "seconds",
        "Age of the window of arrival evidence.",
        scraped=True,
    ),
    Metric(
        "evidence_closed",
        Kind.GAUGE,
        "",
        "1 while there is evidence enough for decode to give an engine away.",
        scraped=True,
    ),
)
