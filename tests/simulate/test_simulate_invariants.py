"""Each invariant notices what it is there for: a sound world's evidence, with one thing changed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import attrs
import pytest
from simulate_samples import troubled

from narwhal.emulator import Record, Verdict
from narwhal.emulator.handoff import Pull
from narwhal.fleet import EngineState, Event, Transition
from narwhal.model import FailureClass, Limit, Phase, Terminal
from narwhal.simulate import INVARIANTS, Evidence, Violation
from narwhal.simulate.evidence import Leg, LegName
from narwhal.simulate.invariants import violations
from narwhal.telemetry import AttemptResult, AttemptRow, RequestRow

Tamper = Callable[[Evidence], Evidence]
TAMPERINGS: list[tuple[str, Tamper]] = []


NEVER = AttemptRow(n=9, prefill=None, result=AttemptResult.ABANDONED)


def breaks(invariant: str) -> Callable[[Tamper], Tamper]:
    def register(tamper: Tamper) -> Tamper:
        TAMPERINGS.append((invariant, tamper))
        return tamper

    return register


def with_row(evidence: Evidence, row: RequestRow, **changes: Any) -> Evidence:
    rows = [attrs.evolve(r, **changes) if r is row else r for r in evidence.rows]
    return attrs.evolve(evidence, rows=tuple(rows))


def with_record(evidence: Evidence, old: Record, **changes: Any) -> Evidence:
    new = copy_of(old, **changes)
    records = [new if record is old else record for record in evidence.records]
    return attrs.evolve(evidence, records=tuple(records))


def copy_of(record: Record, **changes: Any) -> Record:
    return attrs.evolve(record, **({"sent": bytearray(record.sent)} | changes))


def completed(evidence: Evidence, *, stream: bool) -> tuple[Any, RequestRow]:
    """A client that has its whole answer."""
    for ask in evidence.asks:
        row = evidence.row_of_ask.get(ask.name)
        if row is None or row.terminal is not Terminal.COMPLETED or ask.response is None:
            continue
        if ask.response.complete and ask.response.is_stream is stream:
            return ask, row
    raise AssertionError("the world has none")


def legs(evidence: Evidence, kind: str) -> list[Leg]:
    return [leg for leg in evidence.legs if leg.name.leg == kind]


def with_body(evidence: Evidence, ask: Any, body: bytes) -> Evidence:
    response = attrs.evolve(ask.response, body=bytearray(body))
    asks = [attrs.evolve(a, response=response) if a is ask else a for a in evidence.asks]
    return attrs.evolve(evidence, asks=tuple(asks))


# What clients are given


@breaks("one terminal")
def a_row_is_missing(evidence: Evidence) -> Evidence:
    _, row = completed(evidence, stream=True)
    return attrs.evolve(evidence, rows=tuple(r for r in evidence.rows if r is not row))


@breaks("one terminal")
def a_row_is_there_twice(evidence: Evidence) -> Evidence:
    return attrs.evolve(evidence, rows=(*evidence.rows, evidence.rows[0]))


@breaks("one terminal")
def an_embedded_request_has_no_row(evidence: Evidence) -> Evidence:
    own = next(row for row in evidence.rows if row.client_request_id is None)
    return attrs.evolve(evidence, rows=tuple(r for r in evidence.rows if r is not own))


@breaks("the client is told what is recorded")
def another_status_is_recorded(evidence: Evidence) -> Evidence:
    _, row = completed(evidence, stream=False)
    return with_row(evidence, row, status=502)


@breaks("the client is told what is recorded")
def a_whole_answer_is_recorded_as_failed(evidence: Evidence) -> Evidence:
    _, row = completed(evidence, stream=True)
    return with_row(evidence, row, terminal=Terminal.FAILED)


@breaks("the client is told what is recorded")
def a_cut_answer_is_recorded_as_completed(evidence: Evidence) -> Evidence:
    ask, row = completed(evidence, stream=True)
    response = attrs.evolve(ask.response, complete=False)
    cut = attrs.evolve(ask, response=response, ended_at=row.arrival)
    asks = tuple(cut if each is ask else each for each in evidence.asks)
    return attrs.evolve(evidence, asks=asks)


@breaks("output is one leg's")
def an_event_is_repeated(evidence: Evidence) -> Evidence:
    ask, _ = completed(evidence, stream=True)
    first, rest = bytes(ask.response.body).split(b"\n\n", 1)
    return with_body(evidence, ask, first + b"\n\n" + first + b"\n\n" + rest)


@breaks("output is one leg's")
def an_event_is_lost(evidence: Evidence) -> Evidence:
    ask, _ = completed(evidence, stream=True)
    return with_body(evidence, ask, bytes(ask.response.body).split(b"\n\n", 1)[1])


@breaks("output is one leg's")
def a_byte_is_another(evidence: Evidence) -> Evidence:
    ask, _ = completed(evidence, stream=True)
    body = bytearray(ask.response.body)
    body[len(body) // 2] ^= 1
    return with_body(evidence, ask, bytes(body))


@breaks("output is one leg's")
def a_document_says_something_else(evidence: Evidence) -> Evidence:
    ask, _ = completed(evidence, stream=False)
    body = bytes(ask.response.body)
    key = b'"text":"' if b'"text":"' in body else b'"content":"'
    return with_body(evidence, ask, body.replace(key, key + b"x", 1))


@breaks("output is one leg's")
def output_of_an_attempt_that_was_not_the_last(evidence: Evidence) -> Evidence:
    _, row = completed(evidence, stream=True)
    return with_row(evidence, row, attempts=row.attempts * 2)


@breaks("no leg after output")
def a_leg_begins_after_output(evidence: Evidence) -> Evidence:
    ask, row = completed(evidence, stream=True)
    leg = next(leg for leg in evidence.legs_of[row.request_id] if leg.name.leg == "prefill")
    return with_record(evidence, leg.record, began=ask.output_at + 0.5)


def failed_with_account(evidence: Evidence) -> tuple[Any, RequestRow]:
    for ask in evidence.asks:
        row = evidence.row_of_ask.get(ask.name)
        response = ask.response
        if row is None or response is None or response.status == 200 or not response.complete:
            continue
        if b'"narwhal"' in response.body:
            return ask, row
    raise AssertionError("the world has none")


@breaks("errors tell the truth")
def an_error_names_another_limit(evidence: Evidence) -> Evidence:
    _, row = failed_with_account(evidence)
    return with_row(evidence, row, limit=Limit.POOL)


@breaks("errors tell the truth")
def an_error_counts_other_attempts(evidence: Evidence) -> Evidence:
    _, row = failed_with_account(evidence)
    return with_row(evidence, row, attempts=(*row.attempts, NEVER))


@breaks("errors tell the truth")
def time_does_not_add_up(evidence: Evidence) -> Evidence:
    _, row = failed_with_account(evidence)
    return with_row(evidence, row, spent={**row.spent, Phase.QUEUE: 3.0})


@breaks("a client that leaves ends its request")
def a_request_goes_on_when_its_client_left(evidence: Evidence) -> Evidence:
    ask, row = completed(evidence, stream=True)
    gone = attrs.evolve(ask, left_at=row.arrival + row.request_s - 0.3)
    return attrs.evolve(evidence, asks=tuple(gone if a is ask else a for a in evidence.asks))


@breaks("the application is given what is recorded")
def a_caller_is_given_other_words(evidence: Evidence) -> Evidence:
    told = next(caller for caller in evidence.callers if caller.text)
    other = attrs.evolve(told, text="x" + told.text)
    return attrs.evolve(
        evidence, callers=tuple(other if each is told else each for each in evidence.callers)
    )


# What engines see


@breaks("legs end with their request")
def a_leg_goes_on(evidence: Evidence) -> Evidence:
    leg = legs(evidence, "prefill")[0]
    row = evidence.row_of[leg.name.request]
    return with_record(evidence, leg.record, ended=row.arrival + row.request_s + 1.2)


@breaks("legs end with their request")
def a_leg_never_ends(evidence: Evidence) -> Evidence:
    return with_record(evidence, legs(evidence, "decode")[0].record, ended=None)


@breaks("legs end with their request")
def a_leg_begins_when_its_request_is_over(evidence: Evidence) -> Evidence:
    leg = legs(evidence, "decode")[0]
    row = evidence.row_of[leg.name.request]
    late = row.arrival + row.request_s + 0.01
    return with_record(evidence, leg.record, began=late, ended=late)


@breaks("legs end with their request")
def a_leg_of_no_request(evidence: Evidence) -> Evidence:
    record = legs(evidence, "decode")[0].record
    return with_record(evidence, record, request_id="req-0-1-decode")


@breaks("who is out of service gets no legs")
def an_engine_was_out_when_a_leg_came(evidence: Evidence) -> Evidence:
    leg = evidence.recorded_legs[-1]
    change = Transition(
        at=leg.arrived - 30.0,
        iid=leg.record.engine,
        source=EngineState.SERVING,
        event=Event.LOST,
        target=EngineState.EJECTED,
        reason="it is gone",
    )
    return attrs.evolve(evidence, changes=(change,))


@breaks("places are kept")
def too_many_legs_at_once(evidence: Evidence) -> Evidence:
    leg = max(legs(evidence, "decode"), key=lambda leg: (leg.record.ended or 0) - leg.record.began)
    many = tuple(copy_of(leg.record) for _ in range(9))
    return attrs.evolve(evidence, records=(*evidence.records, *many))


def used(evidence: Evidence) -> Leg:
    """A decode leg that fetched a KV cache and was answered."""
    return next(
        leg
        for leg in legs(evidence, "decode")
        if leg.record.pull is not None
        and leg.record.pull.verdict is Verdict.RIGHT
        and _attempt(evidence, leg).first_token_s is not None
    )


def _attempt(evidence: Evidence, leg: Leg) -> Any:
    return evidence.row_of[leg.name.request].attempts[leg.name.attempt - 1]


@breaks("a handoff is used once")
def a_handoff_goes_to_two_decoders(evidence: Evidence) -> Evidence:
    record = used(evidence).record
    return attrs.evolve(evidence, records=(*evidence.records, copy_of(record, engine="d9")))


@breaks("a handoff is used once")
def a_handoff_in_use_is_released(evidence: Evidence) -> Evidence:
    leg = used(evidence)
    name = f"{leg.name.request}-{leg.name.attempt}-release"
    return attrs.evolve(evidence, records=(*evidence.records, copy_of(leg.record, request_id=name)))


@breaks("a handoff is whole and not too old")
def half_a_handoff_is_sent(evidence: Evidence) -> Evidence:
    return with_record(evidence, used(evidence).record, pull=Pull(Verdict.FATAL))


@breaks("a handoff is whole and not too old")
def a_handoff_is_past_its_cap(evidence: Evidence) -> Evidence:
    leg = used(evidence)
    (prefill,) = (
        each for each in legs(evidence, "prefill") if each.record.handle == leg.record.names
    )
    return with_record(evidence, prefill.record, began=leg.record.began - 11)


@breaks("a handoff is whole and not too old")
def a_handoff_is_past_its_lease(evidence: Evidence) -> Evidence:
    leg = used(evidence)
    (prefill,) = (
        each for each in legs(evidence, "prefill") if each.record.handle == leg.record.names
    )
    return with_record(evidence, prefill.record, answered=leg.record.began - 31)


@breaks("a handoff is whole and not too old")
def wrong_tokens_are_taken_for_an_answer(evidence: Evidence) -> Evidence:
    return with_record(evidence, used(evidence).record, pull=Pull(Verdict.WRONG))


@breaks("no KV cache is forgotten")
def a_handoff_is_forgotten(evidence: Evidence) -> Evidence:
    leg = used(evidence)
    return attrs.evolve(
        evidence, records=tuple(each for each in evidence.records if each is not leg.record)
    )


@breaks("no KV cache is forgotten")
def a_handoff_is_given_up_and_not_counted(evidence: Evidence) -> Evidence:
    return attrs.evolve(evidence, lost={"p0": 1})


@breaks("no KV cache is forgotten")
def a_handoff_is_given_up_twice(evidence: Evidence) -> Evidence:
    return attrs.evolve(evidence, abandoned=(*evidence.abandoned, *evidence.abandoned))


@breaks("engines come to rest")
def an_engine_holds_something(evidence: Evidence) -> Evidence:
    return attrs.evolve(evidence, engines_idle=False)


# The router's account


@breaks("no request outlives its deadline")
def a_request_outlives_its_deadline(evidence: Evidence) -> Evidence:
    row = evidence.rows[0]
    return with_row(evidence, row, spent={Phase.DECODE: 601.5})


@breaks("no request outlives its deadline")
def a_request_expires_early(evidence: Evidence) -> Evidence:
    return with_row(evidence, evidence.rows[0], limit=Limit.REQUEST)


@breaks("the phases sum to the lifetime")
def some_time_is_counted_twice(evidence: Evidence) -> Evidence:
    row = evidence.rows[-1]
    return with_row(evidence, row, spent={**row.spent, Phase.BACKOFF: 0.1})


@breaks("limits hold")
def a_wait_in_the_queue_is_too_long(evidence: Evidence) -> Evidence:
    return with_row(evidence, evidence.rows[0], spent={Phase.QUEUE: 5.1})


@breaks("limits hold")
def a_first_token_is_too_late(evidence: Evidence) -> Evidence:
    _, row = completed(evidence, stream=True)
    attempts = tuple(attrs.evolve(each, first_token_s=2.6) for each in row.attempts)
    return with_row(evidence, row, attempts=attempts)


@breaks("limits do not fire early")
def a_prefill_is_given_up_early(evidence: Evidence) -> Evidence:
    _, row = completed(evidence, stream=True)
    attempts = tuple(attrs.evolve(each, limit=Limit.PREFILL) for each in row.attempts)
    return with_row(evidence, row, attempts=attempts)


@breaks("limits do not fire early")
def a_stream_is_given_up_between_two_tokens(evidence: Evidence) -> Evidence:
    _, row = completed(evidence, stream=True)
    attempts = tuple(attrs.evolve(each, limit=Limit.READ_GAP) for each in row.attempts)
    return with_row(evidence, row, attempts=attempts)


@breaks("retry credits are conserved")
def a_retry_costs_nothing(evidence: Evidence) -> Evidence:
    changes = [each for each in evidence.credit_changes if each != "taken"]
    return attrs.evolve(evidence, credit_changes=tuple(changes))


@breaks("attempts are within bounds")
def there_are_too_many_attempts(evidence: Evidence) -> Evidence:
    _, row = completed(evidence, stream=True)
    return with_row(evidence, row, attempts=row.attempts * 4)


@breaks("attempts are within bounds")
def a_client_s_mistake_is_tried_again(evidence: Evidence) -> Evidence:
    _, row = completed(evidence, stream=True)
    neutral = attrs.evolve(row.attempts[0], failure=FailureClass.NEUTRAL)
    return with_row(evidence, row, attempts=(neutral, *row.attempts))


@breaks("only a router that stops turns away for that")
def a_request_is_told_of_a_shutdown(evidence: Evidence) -> Evidence:
    return with_row(evidence, evidence.rows[0], code="draining")


@breaks("retry credits are conserved")
def a_credit_is_lost(evidence: Evidence) -> Evidence:
    return attrs.evolve(evidence, credits_left=evidence.credits_left - 1)


@breaks("retry credits are conserved")
def a_credit_is_spent_on_nothing(evidence: Evidence) -> Evidence:
    many = ("taken",) * 100
    return attrs.evolve(evidence, credit_changes=(*evidence.credit_changes, *many))


@breaks("retry credits are conserved")
def a_success_earns_nothing(evidence: Evidence) -> Evidence:
    changes = list(evidence.credit_changes)
    changes.remove("succeeded")
    return attrs.evolve(evidence, credit_changes=tuple(changes))


@breaks("the queue is first come, first served")
def somebody_passes_a_waiting_request(evidence: Evidence) -> Evidence:
    return attrs.evolve(evidence, admitted_in_order=(0, 2, 1))


@breaks("the queue is first come, first served")
def somebody_is_let_in_past_those_who_wait(evidence: Evidence) -> Evidence:
    return attrs.evolve(evidence, passed=1)


@breaks("the queue is first come, first served")
def too_many_wait(evidence: Evidence) -> Evidence:
    return attrs.evolve(evidence, most_waiting=21)


@breaks("everything is given back")
def a_seat_is_not_given_back(evidence: Evidence) -> Evidence:
    return attrs.evolve(evidence, rest={**evidence.rest, "seats": 1})


@breaks("everything is given back")
def a_connection_is_never_closed(evidence: Evidence) -> Evidence:
    return attrs.evolve(evidence, open_streams=2)


@breaks("everything is given back")
def something_is_logged_as_an_error(evidence: Evidence) -> Evidence:
    return attrs.evolve(evidence, errors=("an errand failed",))


@breaks("counters equal the journal")
def a_counter_is_off_by_one(evidence: Evidence) -> Evidence:
    key = ("narwhal_retries_total", ())
    samples: Mapping[Any, float] = {**evidence.samples, key: evidence.samples[key] + 1}
    return attrs.evolve(evidence, samples=samples)


@breaks("counters equal the journal")
def a_total_is_off_by_one(evidence: Evidence) -> Evidence:
    totals = attrs.evolve(evidence.totals, received=evidence.totals.received + 1)
    return attrs.evolve(evidence, totals=totals)


@breaks("engines are blamed for what they did")
def an_engine_is_not_blamed(evidence: Evidence) -> Evidence:
    attempts = [attempt for row in evidence.rows for attempt in row.attempts]
    silent = (None, FailureClass.LOCAL)
    failed = next(each for each in attempts if each.engine and each.failure not in silent)
    labels = (("class", str(failed.failure)), ("engine", str(failed.engine)))
    key = ("narwhal_engine_failures_total", labels)
    assert evidence.samples[key] > 0
    return attrs.evolve(evidence, samples={**evidence.samples, key: 0.0})


@breaks("engines are blamed for what they did")
def an_engine_is_blamed_for_nothing(evidence: Evidence) -> Evidence:
    key = next(key for key in evidence.samples if key[0] == "narwhal_engine_failures_total")
    return attrs.evolve(evidence, samples={**evidence.samples, key: 99.0})


@breaks("a dying idle connection is no failure")
def a_prefill_is_not_sent_again(evidence: Evidence) -> Evidence:
    _, row = completed(evidence, stream=True)
    closed = attrs.evolve(row.attempts[0], phase=Phase.PREFILL, code="engine_closed")
    peaceful = attrs.evolve(evidence.plan, leg_faults=0.0)
    evidence = with_row(evidence, row, attempts=(closed, *row.attempts))
    return attrs.evolve(evidence, plan=peaceful)


@pytest.mark.parametrize(
    ("invariant", "tamper"), TAMPERINGS, ids=[tamper.__name__ for _, tamper in TAMPERINGS]
)
def test_it_is_noticed_that(invariant: str, tamper: Tamper) -> None:
    found = violations(tamper(troubled()))
    assert invariant in {violation.invariant for violation in found}
    assert all(violation.text for violation in found)


def test_every_invariant_can_be_broken() -> None:
    assert {each.name for each in INVARIANTS} == {name for name, _ in TAMPERINGS}
    assert all(each.says.endswith(".") for each in INVARIANTS)


def test_what_was_seen_on_the_way_counts() -> None:
    seen = Violation("bounds hold at any moment", "9 requests wait", at=1.0)
    assert violations(attrs.evolve(troubled(), seen=(seen,))) == [seen]


def test_a_usage_event_is_left_out_of_a_stream_whole_or_cut() -> None:
    """Seed 673: the engine was left in the middle of it."""
    token = b'data: {"choices":[{"text":"x"}],"usage":null}\n\n'
    usage = b'data: {"choices":[],"usage":{"prompt_tokens":3}}\n\n'
    record = copy_of(legs(troubled(), "decode")[0].record)
    for sent in (token + usage + b"data: [DONE]\n\n", token + usage[:-9]):
        record.sent[:] = sent
        leg = Leg(record, LegName("req-1", 1, "decode"))
        assert leg.stream(usage=True) == sent
        done = b"data: [DONE]\n\n" if b"DONE" in sent else b""
        assert leg.stream(usage=False) == token + done


def test_names_of_legs() -> None:
    assert LegName.parse("req-00ff-2-decode") == LegName("req-00ff", 2, "decode")
