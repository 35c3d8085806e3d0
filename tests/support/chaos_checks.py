"""What must hold after every world, whatever went wrong in it."""

from __future__ import annotations

import itertools
import json
import math
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from chaos_callers import Caller
from chaos_clients import Ask
from chaos_engines import Leg

from narwhal.model import FailureClass, Limit, Phase, Terminal
from narwhal.telemetry import AttemptResult

if TYPE_CHECKING:
    from chaos import ChaosWorld

CLOSED_WITHIN = 0.05
"""Seconds after a request's end at which its engine legs must be closed."""
GRACE = 1.0


def check(world: ChaosWorld) -> None:
    """Every invariant, each with what broke it."""
    rows = {row.request_id: row for row in world.rows}
    clients = {row.client_request_id: row for row in world.rows if row.client_request_id}
    own = [row for row in world.rows if row.client_request_id is None]
    assert len(rows) == len(world.rows), "two terminals for one request"
    assert len(clients) + len(own) == len(world.rows), "two terminals for one request"
    assert len(own) == sum(caller.begun for caller in world.callers)
    for ask in world.asks:
        check_ask(world, ask, clients.get(ask.name))
    for caller in world.callers:
        check_caller(world, caller, rows)
    for row in world.rows:
        check_row(world, row)
    totals = world.router.telemetry.totals()
    assert sum(totals.terminals.values()) == totals.received == len(world.rows)
    check_legs(world, rows)
    check_places(world, rows)
    check_handoffs(world)
    check_credits(world)
    check_metrics(world)


# The client's side


def check_ask(world: ChaosWorld, ask: Ask, row: Any) -> None:
    response = ask.response
    if ask.begun_at is None or not ask.head_sent:
        assert row is None or not ask.head_sent, f"{ask.name}: a row for what was never asked"
        return
    if response is None:
        return
    if "nothing" in ask.path:
        assert response.status == 404
        assert row is None
        return
    assert row is not None, f"{ask.name}: answered {response.status} and not journaled"
    assert response.status == row.status, f"{ask.name}: {response.status} told as {row.status}"
    if not ask.good:
        assert row.terminal in (Terminal.INVALID, Terminal.REJECTED, Terminal.CANCELLED) or (
            row.limit in (Limit.REQUEST, Limit.GRACE)
        ), f"{ask.name}: {row.terminal} for a bad request"
    if row.terminal is Terminal.COMPLETED:
        assert response.status == 200
        if ask.left_at is None and ask.ended_at is not None:
            late = ask.ended_at  # readers that stop are never told
            assert response.complete or late > row.arrival + row.request_s, f"{ask.name}: cut"
    if response.complete and response.status == 200:
        assert row.terminal is Terminal.COMPLETED, f"{ask.name}: whole, and called {row.terminal}"
    if response.is_stream:
        check_stream(world, ask, row)
    elif response.complete:
        check_document(world, ask, row)


def check_stream(world: ChaosWorld, ask: Ask, row: Any) -> None:
    """Byte for byte one leg's output, or the beginning of it and one error."""
    assert ask.response is not None
    body = bytes(ask.response.body)
    legs = [leg for leg in world.stubs.played if leg.user == ask.name and leg.payload]
    wanted = {leg.number: stripped(leg, usage=ask.include_usage) for leg in legs}
    if ask.response.complete:
        assert body in wanted.values(), f"{ask.name}: not the output of any one leg"
        return
    at = body.rfind(b'data: {"error":{')
    output, error = (body, b"") if at < 0 else (body[:at], body[at:])
    if error.endswith(b"\n\n"):
        told = json.loads(error[6:])["error"]
        account = told["narwhal"]
        assert account["limit"] == row.limit, f"{ask.name}: told {account['limit']}"
        assert row.terminal is not Terminal.COMPLETED
        if row.terminal is not Terminal.INVALID:
            assert told["code"] == row.code
    sources = [number for number, whole in wanted.items() if whole.startswith(output)]
    assert sources or not output, f"{ask.name}: not the beginning of any one leg's output"
    if b'"text"' in output or b'"content": "' in output or b'"content":"' in output:
        attempts = {leg.attempt for leg in legs if leg.number in sources}
        assert len(row.attempts) in attempts, f"{ask.name}: a retry after visible output"


def stripped(leg: Leg, *, usage: bool) -> bytes:
    return b"".join(e for e in leg.payload if usage or b'"completion_tokens"' not in e)


def check_document(world: ChaosWorld, ask: Ask, row: Any) -> None:
    assert ask.response is not None
    document = json.loads(ask.response.body)
    if ask.response.status != 200:
        account = document["error"].get("narwhal")
        if account is not None:
            assert account["limit"] == row.limit
            assert account["attempts"] == len(row.attempts)
            told = row.request_s - row.spent.get(Phase.RESPOND, 0.0)  # it is still being told
            assert abs(sum(account["spent_s"].values()) - told) < 0.01 + world.plan.slack
        if ask.response.status == 429 and row.code == "queue_full":
            assert int(ask.response.headers["retry-after"]) >= 1
        return
    (choice,) = document["choices"]
    text = choice["message"]["content"] if ask.chat else choice["text"]
    last = len(row.attempts)
    legs = [
        leg
        for leg in world.stubs.played
        if leg.user == ask.name and leg.payload and leg.attempt == last
    ]
    assert text in [texts(leg) for leg in legs], f"{ask.name}: not the text of its last leg"


def texts(leg: Leg) -> str:
    found = []
    for event in leg.payload:
        payload = event.strip().removeprefix(b"data: ")
        if not payload.startswith(b"{"):
            continue
        choices = json.loads(payload).get("choices", ())
        found += [c["text"] if "text" in c else c["delta"].get("content") for c in choices]
    return "".join(text for text in found if text)


def check_caller(world: ChaosWorld, caller: Caller, rows: dict[str, Any]) -> None:
    """What the application got is one leg's text, or the beginning of it."""
    legs = [leg for leg in world.stubs.played if leg.user == caller.name and leg.payload]
    found = [leg for leg in legs if texts(leg).startswith(caller.text)]
    assert found or not caller.text, f"{caller.name}: {caller.text!r} is no leg's text"
    if caller.text:
        attempts = {leg.attempt for leg in found}
        assert len(rows[found[0].request].attempts) in attempts, f"{caller.name}: said twice"
    if caller.complete:
        assert caller.text in [texts(leg) for leg in found]
        row = rows[found[0].request]
        assert row.terminal is Terminal.COMPLETED
    if caller.failed is not None:
        assert caller.failed.outcome.terminal is not Terminal.COMPLETED
        assert caller.failed.code is not None


# The router's own account


def check_row(world: ChaosWorld, row: Any) -> None:
    serving, engine = world.config.serving, world.config.engine
    slack = world.plan.slack
    name = row.client_request_id
    assert row.request_s <= serving.request_timeout_s + GRACE + slack, f"{name}: outlived"
    assert len(row.attempts) <= serving.max_attempts
    if row.limit is Limit.REQUEST:
        assert row.request_s >= serving.request_timeout_s - 1e-6, f"{name}: expired early"
    elif row.terminal not in (Terminal.COMPLETED, Terminal.CANCELLED):
        told = row.request_s - row.spent.get(Phase.RESPOND, 0.0)
        assert told <= serving.request_timeout_s + slack, f"{name}: {row.limit} after the deadline"
    bounds = {Phase.QUEUE: serving.queue_timeout_s, Phase.TOKENIZE: engine.tokenize_timeout_s}
    for phase, bound in bounds.items():
        assert row.spent.get(phase, 0.0) <= bound + slack, f"{name}: {phase} took longer"
    if row.limit is Limit.QUEUE:
        assert row.spent[Phase.QUEUE] >= serving.queue_timeout_s - 1e-6
        assert not row.attempts
    for attempt in row.attempts:
        check_attempt(world, row, attempt)
    limits: dict[Terminal, set[Limit | None]] = {
        Terminal.EXPIRED: {Limit.REQUEST, Limit.QUEUE, Limit.HANDOFF, Limit.GRACE},
        Terminal.FAILED: {
            *(None, Limit.PREFILL, Limit.FIRST_TOKEN, Limit.READ_GAP, Limit.CONNECT, Limit.POOL)
        },
    }
    assert row.limit in limits.get(row.terminal, {None}), f"{name}: {row.terminal} by {row.limit}"
    assert row.code != "internal", f"{name}: failed inside the router"
    assert (row.code is None) == (row.terminal is Terminal.COMPLETED)
    failures = [attempt.result for attempt in row.attempts]
    assert failures.count(AttemptResult.COMPLETED) == (row.terminal is Terminal.COMPLETED) or (
        row.terminal is Terminal.CANCELLED
    ), name
    assert AttemptResult.COMPLETED not in failures[:-1]
    if row.limit is Limit.REQUEST and not world.plan.drift:
        ended_in_backoff = failures[-1:] == [AttemptResult.FAILED]
        assert not ended_in_backoff, f"{name}: a retry was scheduled that could not be in time"


def check_attempt(world: ChaosWorld, row: Any, attempt: Any) -> None:
    serving, engine = world.config.serving, world.config.engine
    slack = world.plan.slack
    if attempt.prefill_s is not None:
        assert attempt.prefill_s <= serving.prefill_timeout_s + slack
    if attempt.first_token_s is not None:
        assert attempt.first_token_s <= engine.first_token_timeout_s + slack
    if attempt.handoff_age_s is not None and attempt.prefill_s is not None:
        cap = serving.handoff_timeout_s or math.inf
        bound = min(cap, attempt.prefill_s + engine.kv_lease_s)
        assert attempt.handoff_age_s <= bound + slack
    if world.plan.peaceful and attempt.phase is Phase.PREFILL:
        assert attempt.code != "engine_closed", "a connection that died idle was not replaced"
    if attempt.failure is FailureClass.LOCAL and attempt.limit is Limit.POOL:
        assert attempt is row.attempts[-1], "a wait for our own connections was retried"


def check_legs(world: ChaosWorld, rows: dict[str, Any]) -> None:
    """No leg begins after its request's end, and none is open 50 ms later."""
    slack = world.plan.slack
    for leg in world.stubs.played:
        if leg.leg not in ("prefill", "decode", "whole"):
            limits = {"release": GRACE, "tokenize": world.config.engine.tokenize_timeout_s}
            lasted = (math.inf if leg.ended_at is None else leg.ended_at) - leg.at
            assert lasted <= limits[leg.leg] + CLOSED_WITHIN + slack, f"{leg}: {lasted:.3f} s"
            continue
        row = rows[leg.request]
        end = row.arrival + row.request_s
        assert leg.at <= end + slack, f"{leg}: begun after its request had ended"
        assert leg.ended_at is not None, f"{leg}: never ended"
        seen_off = leg.fault in ("late end", "no end", "after done") or leg.payload
        bound = GRACE if seen_off and row.terminal is Terminal.COMPLETED else 0.0
        late = leg.ended_at - end - bound
        assert late <= CLOSED_WITHIN + slack, f"{leg}: open {late:.3f} s after its request"
        assert leg.attempt <= len(row.attempts)


def check_places(world: ChaosWorld, rows: dict[str, Any]) -> None:
    """No engine ever had more legs of a phase than it has places."""
    serving, plan = world.config.serving, world.plan
    if plan.drift or plan.latency:
        return  # an engine sees later than the router that a leg is over
    places = {
        ("prefill",): serving.prefill_concurrency,
        ("decode", "whole"): serving.decode_concurrency,
    }
    for kinds, most in places.items():
        for iid in world.stubs.engines if most else ():
            legs = [leg for leg in world.stubs.played if leg.leg in kinds and leg.engine == iid]
            changes = []
            for leg in legs:
                row = rows[leg.request]
                assert leg.ended_at is not None
                end = min(leg.ended_at, row.arrival + row.request_s) - 1e-6
                changes += [(leg.at, 1), (end, -1)]
            resident = itertools.accumulate(change for _, change in sorted(changes))
            assert max(resident, default=0) <= most, f"{iid}: too many {kinds} legs at once"


def check_handoffs(world: ChaosWorld) -> None:
    stubs, slack = world.stubs, world.plan.slack
    assert not stubs.pulled_late, "a decoder was sent a handoff whose lease had ended"
    cap = world.config.serving.handoff_timeout_s
    uses: dict[str, Counter[str]] = {}
    for handle, leg, at in stubs.pulled:
        uses.setdefault(handle, Counter())[leg] += 1
        if leg == "decode" and cap:
            age = at - stubs.staged_by[handle].at
            assert age <= cap + slack, f"{handle}: {age} s old at its decoder"
    abandoned = {f"{h.handoff.remote_engine_id}/{_number(h)}" for h, _ in world.abandoned}
    for handle, each in uses.items():
        assert each["decode"] <= 1, f"{handle}: used twice"
        # Each decoder is asked once at most, and a request on a dying connection replayed once.
        assert each["release"] <= 2 * len(stubs.engines), f"{handle}: released again and again"
        if each["release"]:
            assert handle in abandoned
    totals = world.router.telemetry.totals()
    assert totals.kv_released + totals.kv_orphaned == len(world.abandoned) == len(abandoned)
    accepted = {
        s.body["kv_transfer_params"]["remote_block_ids"][0][0]: leg.accepted_at
        for s, leg in zip(stubs.legs("decode"), _decodes(world), strict=True)
        if leg.accepted_at is not None
    }
    for held, at in world.abandoned:
        told = accepted.get(_number(held), math.inf)
        assert told >= at - slack, f"{held}: abandoned, though a decoder had accepted it"
    # What the router knew of and nobody pulled is counted.
    left = [handle for handle in stubs.staged if _known(world, handle)]
    # A decoder that was written to is trusted to free the producer, though it may never read.
    excused = totals.kv_orphaned + stubs.spoiled
    assert len(left) <= excused, f"staged and not accounted for: {left}"


def _decodes(world: ChaosWorld) -> list[Leg]:
    return [leg for leg in world.stubs.played if leg.leg == "decode"]


def _number(held: Any) -> int:
    number: int = json.loads(held.handoff.raw)["remote_block_ids"][0][0]
    return number


def _known(world: ChaosWorld, handle: str) -> bool:
    """Whether the router can have read the whole answer that told of this handle."""
    leg = world.stubs.staged_by[handle]
    if not leg.whole or leg.fault not in ("ok", "trickle", "interim"):
        return False
    row = next(row for row in world.rows if row.request_id == leg.request)
    attempt = row.attempts[leg.attempt - 1]
    return attempt.prefill_s is not None


def check_credits(world: ChaosWorld) -> None:
    serving, events = world.config.serving, world.credits.events
    counts = Counter(events)
    retries = sum(max(len(row.attempts) - 1, 0) for row in world.rows)
    completed = sum(row.terminal is Terminal.COMPLETED for row in world.rows)
    assert counts["taken"] - counts["given back"] <= retries
    assert counts["succeeded"] == completed
    budget = available = float(serving.retry_budget)
    for event in events:
        change = {"taken": -1.0, "given back": 1.0, "succeeded": serving.retry_replenish}
        available = min(budget, available + change[event])
        assert available >= -1e-9
    assert math.isclose(available, world.router.core.credits.available, abs_tol=1e-9)


def check_metrics(world: ChaosWorld) -> None:
    registry = world.router.telemetry.metrics.registry
    found: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
    for family in registry.collect():
        for sample in family.samples:
            found[sample.name, tuple(sorted(sample.labels.items()))] = sample.value

    def value(name: str, **labels: str) -> float:
        return found["narwhal_" + name, tuple(sorted(labels.items()))]

    rows = world.rows
    for (route, terminal), count in Counter((r.route, r.terminal) for r in rows).items():
        assert value("requests_total", route=str(route), terminal=str(terminal)) == count
    limits = Counter(limit for row in rows for limit in row.limits_fired)
    for limit, count in limits.items():
        assert value("limits_fired_total", limit=str(limit)) == count
    attempts = Counter(a.result for row in rows for a in row.attempts)
    for result, count in attempts.items():
        assert value("attempts_total", result=str(result)) == count
    assert value("retries_total") == sum(max(len(row.attempts) - 1, 0) for row in rows)
    tokens = sum(row.completion_tokens for row in rows)
    assert value("tokens_total", kind="completion") == tokens
    offers = value("offers_total") - value("unsized_offers_total")
    assert sum(bool(row.attempts) for row in rows) <= offers <= len(rows)
    statuses = Counter((row.route, _kind(row.status)) for row in rows)
    for (route, kind), count in statuses.items():
        endpoint = {"endpoint": str(route), "class": kind}
        assert value("http_responses_total", **endpoint) == count
    seconds = sum(value("phase_seconds_total", phase=str(phase)) for phase in Phase)
    assert math.isclose(seconds, sum(row.request_s for row in rows), abs_tol=1e-3)
    assert value("requests_in_flight") == 0
    check_blame(world, value)
    totals = world.router.telemetry.totals()
    assert value("kv_orphaned_total") == totals.kv_orphaned
    assert value("kv_released_total") == totals.kv_released


def _kind(status: int | None) -> str:
    return "none" if status is None or status == 499 else f"{status // 100}xx"


def check_blame(world: ChaosWorld, value: Callable[..., float]) -> None:
    """Engines are blamed for the legs that they failed, and for no others."""
    blamed: Counter[tuple[str, FailureClass]] = Counter()
    for row in world.rows:
        for attempt in row.attempts:
            if attempt.engine is not None and attempt.failure is not FailureClass.LOCAL:
                blamed[attempt.engine, attempt.failure] += 1
    counting = 0.0
    for iid in world.stubs.engines:
        for failure in FailureClass:
            labels = {"engine": iid, "class": str(failure)}
            more = value("engine_failures_total", **labels) - blamed[iid, failure]
            assert more >= 0, f"{iid} was not blamed for {failure}"
            assert not more or failure is not FailureClass.LOCAL
            counting += more
    assert counting <= sum(row.tokenize_fallback for row in world.rows)
