"""Invariants of the router's own account: time, attempts, credits, counters, what it holds."""

from __future__ import annotations

import math
from collections import Counter
from math import inf
from typing import TYPE_CHECKING

from narwhal.admission import Cause
from narwhal.model import FailureClass, Limit, Phase, Terminal
from narwhal.simulate.invariants import invariant
from narwhal.telemetry import AttemptResult, AttemptRow, encode

if TYPE_CHECKING:
    from collections.abc import Iterator

    from narwhal.simulate.evidence import Evidence
    from narwhal.simulate.invariants import Finding
    from narwhal.telemetry import RequestRow

GRACE_S = 1.0
"""What a request may last beyond its deadline, for its client to be told."""
_EARLY = 1e-6
CLIENT_GONE = 499


def _about(row: RequestRow) -> tuple[str, ...]:
    return (row.request_id,)


@invariant(
    "no request outlives its deadline",
    "A request is over at its deadline, and at most a second later if a client is to be "
    "told; nothing but the deadline itself ends one after it, and it ends none before.",
)
def _deadlines_hold(evidence: Evidence) -> Iterator[Finding]:
    serving, slack = evidence.plan.config.serving, evidence.plan.slack
    most = serving.request_timeout_s
    for row in evidence.rows:
        end = row.arrival + row.request_s
        if row.request_s > most + GRACE_S + slack:
            yield f"{row.request_id} lasted {row.request_s:.3f} s, of {most:g}", _about(row), end
        worked = row.request_s - row.spent.get(Phase.RESPOND, 0.0)
        if row.limit is Limit.REQUEST:
            if row.request_s < most - _EARLY:
                yield f"{row.request_id} expired after {row.request_s:.3f} s", _about(row), end
        elif row.terminal not in (Terminal.COMPLETED, Terminal.CANCELLED) and worked > most + slack:
            yield f"{row.request_id} met {row.limit} after its deadline", _about(row), end


@invariant(
    "the phases sum to the lifetime",
    "The time ledger of a request adds up to the time from its arrival to its end.",
)
def _phases_sum_up(evidence: Evidence) -> Iterator[Finding]:
    for row in evidence.rows:
        lasted = row.ts - row.arrival  # a world's wall clock is its only clock
        if abs(row.request_s - lasted) > _EARLY + evidence.plan.jitter:
            yield f"{row.request_id}: {row.request_s} s in phases, {lasted} s", _about(row), row.ts


@invariant(
    "limits hold",
    "No phase of a request or an attempt lasts longer than its limit.",
)
def _limits_hold(evidence: Evidence) -> Iterator[Finding]:
    config, slack = evidence.plan.config, evidence.plan.slack
    serving, engine = config.serving, config.engine
    bounds = {Phase.QUEUE: serving.queue_timeout_s, Phase.TOKENIZE: engine.tokenize_timeout_s}
    for row in evidence.rows:
        end = row.arrival + row.request_s
        for phase, bound in bounds.items():
            if row.spent.get(phase, 0.0) > bound + slack:
                yield f"{row.request_id}: {phase} took {row.spent[phase]:.3f} s", _about(row), end
        if row.limit is Limit.QUEUE and row.spent[Phase.QUEUE] < serving.queue_timeout_s - _EARLY:
            yield f"{row.request_id} was turned away early", _about(row), end
        for attempt in row.attempts:
            for problem in _too_long(evidence, attempt):
                yield f"{row.request_id}-{attempt.n}: {problem}", _about(row), end


def _too_long(evidence: Evidence, attempt: AttemptRow) -> Iterator[str]:
    config, slack = evidence.plan.config, evidence.plan.slack
    cap = config.serving.handoff_timeout_s or inf
    if attempt.prefill_s is not None:
        cap = min(cap, attempt.prefill_s + config.engine.kv_lease_s)
    bounds = {
        "prefill": (attempt.prefill_s, config.serving.prefill_timeout_s),
        "first token": (attempt.first_token_s, config.engine.first_token_timeout_s),
        "handoff": (attempt.handoff_age_s, cap),
    }
    for name, (took, most) in bounds.items():
        if took is not None and took > most + slack:
            yield f"{name} took {took:.3f} s, of {most:g}"


@invariant(
    "limits do not fire early",
    "An attempt that a limit ended had as long as the limit says.",
)
def _limits_are_not_early(evidence: Evidence) -> Iterator[Finding]:
    config = evidence.plan.config
    silent = _silences(evidence)
    waits = {
        # In one leg for both phases, decode begins while its prefill is waited for.
        Limit.PREFILL: ((Phase.PREFILL, Phase.DECODE), config.serving.prefill_timeout_s),
        Limit.FIRST_TOKEN: (
            (Phase.PREFILL, Phase.HANDOFF, Phase.DECODE),
            config.engine.first_token_timeout_s,
        ),
    }
    for row in evidence.rows:
        fired = Counter(attempt.limit for attempt in row.attempts)
        for limit, (phases, seconds) in waits.items():
            spent = sum(row.spent.get(phase, 0.0) for phase in phases)
            if spent < fired[limit] * seconds - _EARLY:
                yield f"{row.request_id} met {limit} after {spent:.3f} s", _about(row), row.ts
        for attempt in row.attempts:
            silence = silent.get((row.request_id, attempt.n), inf)
            early = silence < config.engine.decode_read_timeout_s - _EARLY
            if attempt.limit is Limit.READ_GAP and early:
                yield f"{row.request_id} met a gap of {silence:.3f} s", _about(row), row.ts


def _silences(evidence: Evidence) -> dict[tuple[str, int], float]:
    """For how long each attempt's engine had said nothing when its decode leg ended.

    Known only where both ends see everything at one moment: else something may be on its way.
    """
    if not evidence.plan.instant:
        return {}
    return {
        (leg.name.request, leg.name.attempt): leg.record.ended - leg.record.last_sent
        for leg in evidence.legs
        if leg.name.leg == "decode"
        and leg.record.peer not in evidence.severed
        and leg.record.ended is not None
        and leg.record.last_sent is not None
    }


@invariant(
    "attempts are within bounds",
    "No more attempts than allowed, and none after a failure that another cannot mend.",
)
def _attempts_are_bounded(evidence: Evidence) -> Iterator[Finding]:
    most = evidence.plan.config.serving.max_attempts
    for row in evidence.rows:
        attempts = row.attempts
        if len(attempts) > most:
            yield f"{row.request_id} had {len(attempts)} attempts, of {most}", _about(row), inf
        for attempt in attempts[:-1]:
            final = attempt.failure is FailureClass.NEUTRAL or attempt.limit is Limit.POOL
            if final or attempt.result is not AttemptResult.FAILED:
                what = attempt.code or attempt.result
                yield f"{row.request_id} was tried again after {what}", _about(row), inf
        ends_in_backoff = attempts and attempts[-1].result is AttemptResult.FAILED
        if row.limit is Limit.REQUEST and ends_in_backoff and not _told_late(row):
            yield f"{row.request_id} scheduled a retry that came too late", _about(row), inf


def _told_late(row: RequestRow) -> bool:
    """Whether its last attempt failed for good, and the deadline passed as that was told."""
    return row.spent.get(Phase.BACKOFF, 0.0) == 0.0 or Phase.RESPOND in row.spent


@invariant(
    "only a router that stops turns away for that",
    "No request is told that the router shuts down before it does.",
)
def _stops_are_true(evidence: Evidence) -> Iterator[Finding]:
    plan = evidence.plan
    for row in evidence.rows:
        if row.code in ("draining", "shutdown") and (
            plan.ending == "quiet" or row.ts < plan.end_at - _EARLY
        ):
            yield f"{row.request_id} was told {row.code}", _about(row), row.ts


@invariant(
    "retry credits are conserved",
    "Each retry costs one credit, each success earns its share, none are made or lost.",
)
def _credits_are_conserved(evidence: Evidence) -> Iterator[Finding]:
    serving = evidence.plan.config.serving
    counts = Counter(evidence.credit_changes)
    retries = sum(max(len(row.attempts) - 1, 0) for row in evidence.rows)
    completed = sum(row.terminal is Terminal.COMPLETED for row in evidence.rows)
    spent = counts["taken"] - counts["given back"]
    # A retry that was scheduled and never reached an engine may have an attempt, and costs none.
    sent = {(leg.name.request, leg.name.attempt) for leg in evidence.legs if leg.name.attempt > 1}
    if not len(sent) <= spent <= retries:
        yield f"{spent} credits for {retries} retries, {len(sent)} of them sent", (), inf
    if counts["succeeded"] != completed:
        yield f"{completed} successes earned {counts['succeeded']} times", (), inf
    available = budget = float(serving.retry_budget)
    change = {"taken": -1.0, "given back": 1.0, "succeeded": serving.retry_replenish}
    for each in evidence.credit_changes:
        available = min(budget, available + change[each])
        if available < -1e-9:
            yield "a credit was taken that was not there", (), inf
    if not math.isclose(available, evidence.credits_left, abs_tol=1e-9):
        yield f"{evidence.credits_left} credits are left, not {available}", (), inf


@invariant(
    "the queue is first come, first served",
    "Those that wait are admitted in the order in which they came, and no more wait than may.",
)
def _queue_is_fair(evidence: Evidence) -> Iterator[Finding]:
    order = list(evidence.admitted_in_order)
    if evidence.passed or order != sorted(order):
        yield "somebody passed a waiting request", (), inf
    capacity = evidence.plan.config.serving.queue_capacity
    if evidence.most_waiting > capacity:
        yield f"{evidence.most_waiting} waited, of {capacity}", (), inf


@invariant(
    "everything is given back",
    "A router without requests holds no seat, place, reservation, connection or task.",
)
def _all_is_given_back(evidence: Evidence) -> Iterator[Finding]:
    for what, count in evidence.rest.items():
        if count:
            yield f"{count} {what} left", (), inf
    if evidence.open_streams:
        yield f"{evidence.open_streams} ends of connections were never closed", (), inf
    for text in evidence.errors:
        yield f"logged as an error: {text}", (), inf


@invariant(
    "counters equal the journal",
    "Metrics and totals add up to the rows of the journal.",
)
def _counters_equal_the_journal(evidence: Evidence) -> Iterator[Finding]:
    rows, totals = evidence.rows, evidence.totals
    if not sum(totals.terminals.values()) == totals.received == len(rows):
        yield f"{totals.received} received, {len(rows)} rows", (), inf
    if encode(rows).count(b"\n") != len(rows):
        yield "a row is not one line", (), inf
    for name, labels, wanted in _expected(evidence):
        counted = evidence.value(name, **labels)
        if not math.isclose(counted, wanted, abs_tol=1e-3):
            yield f"{name} {labels} is {counted}, not {wanted}", (), inf
    refused = sum(row.terminal is Terminal.REFUSED for row in rows)
    told = sum(evidence.value("refusals_total", cause=cause) for cause in Cause)
    if told != refused:
        yield f"{refused} requests were refused, {told:g} counted", (), inf
    offers = evidence.value("offers_total") - evidence.value("unsized_offers_total")
    if not sum(bool(row.attempts) for row in rows) <= offers <= len(rows):
        yield f"{offers} sized offers for {len(rows)} requests", (), inf


def _expected(evidence: Evidence) -> Iterator[tuple[str, dict[str, object], float]]:
    rows = evidence.rows
    for (route, terminal), n in Counter((r.route, r.terminal) for r in rows).items():
        yield "requests_total", {"route": route, "terminal": terminal}, n
    for limit, n in Counter(limit for r in rows for limit in r.limits_fired).items():
        yield "limits_fired_total", {"limit": limit}, n
    for result, n in Counter(a.result for r in rows for a in r.attempts).items():
        yield "attempts_total", {"result": result}, n
    for (route, kind), n in Counter((r.route, _class(r.status)) for r in rows).items():
        yield "http_responses_total", {"endpoint": route, "class": kind}, n
    yield "retries_total", {}, sum(max(len(r.attempts) - 1, 0) for r in rows)
    yield "tokens_total", {"kind": "completion"}, sum(r.completion_tokens for r in rows)
    yield "requests_in_flight", {}, 0
    yield "kv_orphaned_total", {}, evidence.totals.kv_orphaned
    yield "kv_released_total", {}, evidence.totals.kv_released
    for phase in Phase:
        yield "phase_seconds_total", {"phase": phase}, sum(r.spent.get(phase, 0.0) for r in rows)


def _class(status: int | None) -> str:
    return "none" if status is None or status == CLIENT_GONE else f"{status // 100}xx"


@invariant(
    "engines are blamed for what they did",
    "An engine is blamed for each leg that it failed, and for no others.",
)
def _blame_is_just(evidence: Evidence) -> Iterator[Finding]:
    blamed: Counter[tuple[str, FailureClass]] = Counter()
    for row in evidence.rows:
        for attempt in row.attempts:
            if attempt.engine is not None and attempt.failure not in (None, FailureClass.LOCAL):
                blamed[attempt.engine, attempt.failure] += 1
    counting = 0.0
    for spec in evidence.plan.config.engines:
        for failure in FailureClass:
            told = evidence.value("engine_failures_total", engine=spec.iid, **{"class": failure})
            more = told - blamed[spec.iid, failure]
            if more < 0 or (more and failure is FailureClass.LOCAL):
                yield f"{spec.iid}: {told:g} times {failure}, not {told - more:g}", (), inf
            counting += more
    fallbacks = sum(row.tokenize_fallback for row in evidence.rows)
    if counting > fallbacks:
        yield f"{counting:g} failures to count, of {fallbacks}", (), inf


@invariant(
    "a dying idle connection is no failure",
    "Where engines do no worse than to close idle connections, no prefill fails for that.",
)
def _idle_connections_may_die(evidence: Evidence) -> Iterator[Finding]:
    if not evidence.plan.peaceful:
        return
    for row in evidence.rows:
        for attempt in row.attempts:
            if attempt.phase is Phase.PREFILL and attempt.code == "engine_closed":
                yield f"{row.request_id}: a prefill was not sent again", _about(row), inf
