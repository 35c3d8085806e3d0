"""Every metric of the router, declared once, as data.

The Prometheus objects (`narwhal.telemetry.metrics`), the values read at a scrape
(`narwhal.telemetry.scrape`) and the reference page (docs/metrics.md) are all made from
`CATALOGUE`. Guarantees:

- every label has a closed set of values: an enumeration of `narwhal.model` or of this module,
  the engines of the fleet, the version. Nothing a client sends can make a series;
- so the number of series is known before the first request and never changes.
"""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

import attrs

from narwhal.admission import Cause
from narwhal.fleet import EngineState
from narwhal.model import ClientLimit, FailureClass, Limit, Phase, Role, Route, Terminal
from narwhal.roles import Gate, Rule, Verdict
from narwhal.telemetry.codes import CODE_LABELS
from narwhal.telemetry.kinds import (
    AttemptResult,
    Denial,
    Door,
    Endpoint,
    Horizon,
    Kind,
    PassResult,
    Pool,
    PoolSlot,
    Probe,
    ProbeResult,
    Scale,
    StatusClass,
    Target,
    TargetResult,
    TokenKind,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

PREFIX = "narwhal_"

LEGS = (Phase.PREFILL, Phase.DECODE)
"""The phases in which a request sits on an engine."""


@attrs.frozen
class Label:
    """A label and the closed set of its values; an empty set is filled in by the fleet."""

    name: str
    values: tuple[str, ...] = ()
    meaning: str = ""


ENGINE = Label("engine", meaning="the fleet's engines, by `iid`")
VERSION = Label("version", meaning="the running version")
ROUTE = Label("route", tuple(Route))
LEG = Label("phase", LEGS)
PHASE = Label("phase", tuple(Phase))
LIMIT = Label("limit", tuple(Limit))
CLIENT_LIMIT = Label("limit", tuple(ClientLimit))
DOOR = Label("listener", tuple(Door))
STATE = Label("state", tuple(EngineState))
ROLE = Label("role", tuple(Role))
RULE = Label("rule", tuple(Rule))
GATE = Label("gate", tuple(Gate))
VERDICT = Label("verdict", tuple(Verdict))
TARGET = Label("target", tuple(Target))
HORIZON = Label("horizon", tuple(Horizon))
CODE = Label("code", CODE_LABELS, meaning="the codes of the error reference, `ok` and `other`")


@attrs.frozen
class Metric:
    """One metric: its name without the prefix, and all that is needed to build and document it."""

    name: str
    kind: Kind
    unit: str
    help: str
    labels: tuple[Label, ...] = ()
    scale: Scale | None = attrs.field(default=None, kw_only=True)
    scraped: bool = attrs.field(default=False, kw_only=True)
    """Whether it is read from the router's state at each scrape rather than counted."""
    kept: bool = attrs.field(default=True, kw_only=True)
    """Whether a router that is started again counts on from it. What is counted with every
    evaluation is not: the state file would have to be written for nothing else."""

    @property
    def full_name(self) -> str:
        """The name a scraper sees."""
        return PREFIX + self.name

    def series(self, open_labels: Mapping[str, Sequence[str]]) -> Iterator[tuple[str, ...]]:
        """All combinations of label values; `open_labels` fills the sets left empty here."""
        return product(*(label.values or tuple(open_labels[label.name]) for label in self.labels))


CATALOGUE: tuple[Metric, ...] = (
    # One request, one terminal
    Metric(
        "requests_received_total",
        Kind.COUNTER,
        "requests",
        "Completion requests received. Equals requests_total plus requests_in_flight.",
        (ROUTE,),
    ),
    Metric(
        "requests_total",
        Kind.COUNTER,
        "requests",
        "Completion requests ended, by the one terminal each reached.",
        (ROUTE, Label("terminal", tuple(Terminal))),
    ),
    Metric(
        "requests_ended_total",
        Kind.COUNTER,
        "requests",
        "Completion requests ended, by the code that the client was told or would have been.",
        (CODE,),
    ),
    Metric(
        "requests_in_flight",
        Kind.GAUGE,
        "requests",
        "Completion requests received and not ended.",
        scraped=True,
    ),
    Metric(
        "http_responses_total",
        Kind.COUNTER,
        "responses",
        "HTTP answers by class of status; `none`: the client left before there was one.",
        (Label("endpoint", tuple(Endpoint)), Label("class", tuple(StatusClass))),
    ),
    Metric(
        "limits_fired_total",
        Kind.COUNTER,
        "limits",
        "Time limits that fired, whether or not they ended a request.",
        (LIMIT,),
    ),
    # Who is let in
    Metric(
        "denied_total",
        Kind.COUNTER,
        "requests",
        "Requests that were denied for want of a key, or that control routes do not take.",
        (DOOR, Label("denial", tuple(Denial))),
    ),
    Metric(
        "client_limits_fired_total",
        Kind.COUNTER,
        "limits",
        "Limits on single clients that fired, mostly before anything was known of a request.",
        (DOOR, CLIENT_LIMIT),
    ),
    Metric(
        "certificate_expiry_timestamp_seconds",
        Kind.GAUGE,
        "seconds",
        "When a listener's TLS certificate expires, in Unix time; 0: it speaks no TLS.",
        (DOOR,),
    ),
    # Attempts
    Metric(
        "attempts_total",
        Kind.COUNTER,
        "attempts",
        "Attempts ended: each is a whole prefill and decode.",
        (Label("result", tuple(AttemptResult)),),
    ),
    Metric("retries_total", Kind.COUNTER, "attempts", "Attempts after the first of their request."),
    Metric("retry_credits", Kind.GAUGE, "credits", "Retry credits left.", scraped=True),
    # Admission
    Metric(
        "offers_total",
        Kind.COUNTER,
        "requests",
        "Requests offered to admission, admitted or not.",
    ),
    Metric(
        "unsized_offers_total",
        Kind.COUNTER,
        "requests",
        "Offers turned away before their body was read, whose size is therefore unknown.",
    ),
    Metric(
        "refusals_total",
        Kind.COUNTER,
        "requests",
        "Requests that predictive admission refused, by cause.",
        (Label("cause", tuple(Cause)),),
    ),
    Metric(
        "unserved_placements_total",
        Kind.COUNTER,
        "legs",
        "Legs placed on an engine that is projected to miss their target: no other was better.",
        (LEG,),
    ),
    Metric(
        "ttft_projection_ratio",
        Kind.HISTOGRAM,
        "ratio",
        "Actual over projected TTFT, both as slo.ttft_scope has it, of requests with one attempt.",
        scale=Scale.RATIO,
    ),
    Metric(
        "admission_seats",
        Kind.GAUGE,
        "requests",
        "Requests that are admitted at a time, serving.max_connections.",
        scraped=True,
    ),
    Metric(
        "admitted_requests",
        Kind.GAUGE,
        "requests",
        "Requests that have one of those places.",
        scraped=True,
    ),
    Metric(
        "queue_capacity",
        Kind.GAUGE,
        "requests",
        "Requests that may wait to be admitted, serving.queue_capacity.",
        scraped=True,
    ),
    Metric("queue_depth", Kind.GAUGE, "requests", "Requests waiting to be admitted.", scraped=True),
    Metric(
        "queue_wait_seconds",
        Kind.HISTOGRAM,
        "seconds",
        "Time spent waiting to be admitted, of requests that waited.",
        scale=Scale.TTFT,
    ),
    Metric(
        "retained_requests",
        Kind.GAUGE,
        "requests",
        "Requests held in memory, from before the body is read to the end of the answer.",
        scraped=True,
    ),
    # Engines
    Metric(
        "engine_role",
        Kind.GAUGE,
        "",
        "1 for the role that an engine has, 0 for the other.",
        (ENGINE, ROLE),
        scraped=True,
    ),
    Metric("seats", Kind.GAUGE, "seats", "Seats taken on an engine.", (ENGINE, LEG), scraped=True),
    Metric(
        "seat_limit",
        Kind.GAUGE,
        "seats",
        "Most seats on an engine; 0: no limit.",
        (ENGINE, LEG),
        scraped=True,
    ),
    Metric(
        "seats_waited_for",
        Kind.GAUGE,
        "legs",
        "Legs of admitted requests that wait for a seat on an engine.",
        (LEG,),
        scraped=True,
    ),
    Metric(
        "seat_wait_seconds",
        Kind.HISTOGRAM,
        "seconds",
        "Time that legs of admitted requests waited for a seat, of legs that waited.",
        (LEG,),
        scale=Scale.TTFT,
    ),
    Metric(
        "residents",
        Kind.GAUGE,
        "requests",
        "Requests whose work is priced on an engine.",
        (ENGINE, LEG),
        scraped=True,
    ),
    Metric(
        "prefill_backlog_seconds",
        Kind.GAUGE,
        "seconds",
        "Predicted work of an engine's resident prefills; 0 without profiles.",
        (ENGINE,),
        scraped=True,
    ),
    Metric(
        "pace_ratio",
        Kind.GAUGE,
        "ratio",
        "What an engine's work takes over what its profile says, of late; 1 until that is known.",
        (ENGINE, LEG),
        scraped=True,
    ),
    Metric(
        "kv_tokens",
        Kind.GAUGE,
        "tokens",
        "KV tokens that an engine's resident legs will hold at their ends.",
        (ENGINE,),
        scraped=True,
    ),
    Metric(
        "engine_failures_total",
        Kind.COUNTER,
        "legs",
        "Failed legs by what they say about the engine; `neutral` and `local` say nothing.",
        (ENGINE, Label("class", tuple(FailureClass))),
    ),
    Metric(
        "engine_state",
        Kind.GAUGE,
        "",
        "1 for the state that an engine is in, 0 for the others.",
        (ENGINE, STATE),
        scraped=True,
    ),
    Metric(
        "engine_transitions_total",
        Kind.COUNTER,
        "changes",
        "Changes of an engine's state, by the state that it came into.",
        (ENGINE, STATE),
    ),
    Metric(
        "engine_failure_streak",
        Kind.GAUGE,
        "legs",
        "Failures of an engine in a row, by what they say about it.",
        (ENGINE, Label("class", tuple(FailureClass))),
        scraped=True,
    ),
    Metric(
        "engine_restarts_total",
        Kind.COUNTER,
        "processes",
        "Times that another process was found at an engine's address.",
        (ENGINE,),
    ),
    Metric(
        "probes_total",
        Kind.COUNTER,
        "probes",
        "What engines were asked on purpose, and what came of it.",
        (Label("probe", tuple(Probe)), Label("result", tuple(ProbeResult))),
    ),
    Metric(
        "monitor_passes_total",
        Kind.COUNTER,
        "passes",
        "Passes of the monitor; with nothing counted for a while, it does not run.",
        (Label("result", tuple(PassResult)),),
        kept=False,
    ),
    Metric(
        "monitor_pass_seconds",
        Kind.HISTOGRAM,
        "seconds",
        "Time that a monitor pass took, in which nothing else ran.",
        scale=Scale.LAG,
    ),
    Metric(
        "monitor_degraded",
        Kind.GAUGE,
        "",
        "1 while no new requests are taken because too many monitor passes in a row went wrong.",
        scraped=True,
    ),
    Metric(
        "pool_connections",
        Kind.GAUGE,
        "connections",
        "Connections to an engine by use, and requests waiting for one.",
        (ENGINE, Label("pool", tuple(Pool)), Label("state", tuple(PoolSlot))),
        scraped=True,
    ),
    # Time
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
    # Role control
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
    # The router itself
    Metric("ready", Kind.GAUGE, "", "1 while new requests are taken.", scraped=True),
    Metric("draining", Kind.GAUGE, "", "1 once shutdown has begun.", scraped=True),
    Metric(
        "loop_lag_seconds",
        Kind.HISTOGRAM,
        "seconds",
        "How late the event loop woke the monitor, once each controller.monitor_interval_s.",
        scale=Scale.LAG,
    ),
    Metric(
        "journal_dropped_total",
        Kind.COUNTER,
        "rows",
        "Journal rows lost, to a full buffer or a failed write.",
        scraped=True,
    ),
    Metric(
        "journal_write_errors_total",
        Kind.COUNTER,
        "errors",
        "Failures to open or write the journal file.",
        scraped=True,
    ),
    Metric(
        "state_write_errors_total",
        Kind.COUNTER,
        "errors",
        "Failures to write the state file.",
    ),
    Metric(
        "traces_exported_total",
        Kind.COUNTER,
        "requests",
        "Traced requests whose spans were sent.",
    ),
    Metric(
        "traces_dropped_total",
        Kind.COUNTER,
        "requests",
        "Traced requests whose spans were lost: the buffer was full, or nobody took them.",
    ),
    Metric("build_info", Kind.GAUGE, "", "Always 1.", (VERSION,)),
)

PROCESS = {
    "process_cpu_seconds_total": "CPU time that the process took.",
    "process_max_fds": "Most file descriptors that it may have open.",
    "process_open_fds": "File descriptors that it has open.",
    "process_resident_memory_bytes": "Memory that it has.",
    "process_start_time_seconds": "When it was started, in Unix time.",
    "process_virtual_memory_bytes": "Address space that it has.",
}
"""What `serve` adds of its own process. Names and values are those of prometheus_client, as every
dashboard knows them; Linux only."""

# Fractions of a target, dense around it: the share of requests that met the target is read off
# exactly, because 1.0 is a bucket's edge, and the share that missed it by little is seen too.
_AROUND_TARGET = (0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 3.0, 5.0, 10.0)
# From what a loop at rest is late by (a millisecond) to what clients notice as an outage.
_LATE = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
_OUTPUT_TOKENS = (1, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)


def buckets(scale: Scale, *, ttft_s: float, tpot_s: float) -> tuple[float, ...]:
    """Return a histogram's upper edges in seconds, for the targets of this fleet.

    TTFT and TPOT: fractions of the target. REQUEST: what a request of so many output tokens
    takes if it just meets both targets. RATIO: the fractions themselves. LAG is not scaled.
    """
    if scale is Scale.RATIO:
        edges = list(_AROUND_TARGET)
    elif scale is Scale.LAG:
        edges = list(_LATE)
    elif scale is Scale.REQUEST:
        edges = [ttft_s + (tokens - 1) * tpot_s for tokens in _OUTPUT_TOKENS]
    else:
        target = ttft_s if scale is Scale.TTFT else tpot_s
        edges = [target * fraction for fraction in _AROUND_TARGET]
    # 6 digits: 0.1 * 3 is to read 0.3 in a label. Edges that round to one are one.
    return tuple(dict.fromkeys(float(f"{edge:.6g}") for edge in edges))
