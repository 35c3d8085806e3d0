"""How long things take, and how that compares with the targets."""

from __future__ import annotations

from narwhal.telemetry.catalogue.labels import PHASE, TARGET
from narwhal.telemetry.catalogue.shape import Label, Metric
from narwhal.telemetry.kinds import Kind, Scale, TargetResult, TokenKind

TIMES: tuple[Metric, ...] = (
    Metric(
        "ttft_seconds",
        Kind.HISTOGRAM,
        "seconds",
        "Arrival to the first token handed to the client; of a whole answer, to all of it.",
        scale=Scale.TTFT,
    ),
    Metric(
        "prefill_ttft_seconds",
        Kind.HISTOGRAM,
        "seconds",
        "Arrival to the end of the prefill that the answer was generated from.",
        scale=Scale.TTFT,
    ),
    Metric(
        "first_token_ttft_seconds",
        Kind.HISTOGRAM,
        "seconds",
        "Arrival to the first token that an engine generated for the answer, streamed or not.",
        scale=Scale.TTFT,
    ),
    Metric(
        "tpot_seconds",
        Kind.HISTOGRAM,
        "seconds",
        "Mean time between output tokens, of requests with at least two.",
        scale=Scale.TPOT,
    ),
    Metric(
        "target_seconds",
        Kind.GAUGE,
        "seconds",
        "The targets of the fleet file, slo.ttft_s and slo.tpot_s.",
        (TARGET,),
    ),
    Metric(
        "target_results_total",
        Kind.COUNTER,
        "requests",
        "Requests that met a target, or missed it, of those in which it could be measured.",
        (TARGET, Label("result", tuple(TargetResult))),
    ),
    Metric(
        "request_seconds",
        Kind.HISTOGRAM,
        "seconds",
        "Arrival to the last byte, of completed requests.",
        scale=Scale.REQUEST,
    ),
    Metric(
        "phase_seconds_total",
        Kind.COUNTER,
        "seconds",
        "Time that ended requests spent in each phase; the phases sum to their lifetimes.",
        (PHASE,),
    ),
    Metric(
        "tokens_total",
        Kind.COUNTER,
        "tokens",
        "Tokens of prompts that were prefilled (once per request), and tokens generated.",
        (Label("kind", tuple(TokenKind)),),
    ),
)
