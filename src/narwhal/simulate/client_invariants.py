"""Invariants of what clients and the application are given."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from narwhal.model import Limit, Phase, Terminal
from narwhal.simulate.asks import NO_ROUTE
from narwhal.simulate.callers import text_of_choice
from narwhal.simulate.invariants import invariant

if TYPE_CHECKING:
    from collections.abc import Iterator

    from narwhal.simulate.asks import Ask
    from narwhal.simulate.evidence import Evidence, Leg
    from narwhal.simulate.invariants import Finding
    from narwhal.telemetry import RequestRow

OK = 200
NOT_FOUND = 404
LEFT_WITHIN_S = 0.05
_ERROR = b'data: {"error":{'
_INF = float("inf")


def _about(ask: Ask, row: RequestRow | None) -> tuple[str, ...]:
    return (ask.name,) if row is None else (ask.name, row.request_id)


def _answered(evidence: Evidence) -> Iterator[tuple[Ask, RequestRow, Any]]:
    """Requests with a response, however much of it, that reached the router's own routes."""
    for ask in evidence.asks:
        row = evidence.row_of_ask.get(ask.name)
        if ask.response is not None and row is not None:
            yield ask, row, ask.response


@invariant(
    "one terminal",
    "Every request that the router read the head of ends in exactly one terminal.",
)
def _one_terminal(evidence: Evidence) -> Iterator[Finding]:
    ids = [row.request_id for row in evidence.rows]
    for doubled in (
        {each for each in ids if ids.count(each) > 1} if len(set(ids)) < len(ids) else ()
    ):
        yield f"{doubled} ended twice", (doubled,), _INF
    named = [row.client_request_id for row in evidence.rows if row.client_request_id]
    for name in (
        {each for each in named if named.count(each) > 1} if len(set(named)) < len(named) else ()
    ):
        yield f"{name} ended twice", (name,), _INF
    own = sum(row.client_request_id is None for row in evidence.rows)
    begun = sum(caller.begun for caller in evidence.callers)
    if own != begun:
        yield f"the application asked {begun} times, and {own} requests ended", (), _INF
    for ask in evidence.asks:
        row = evidence.row_of_ask.get(ask.name)
        if not ask.head_begun and row is not None:
            yield f"{ask.name} ended, and was never asked", (ask.name,), _INF
        if ask.response is not None:
            yield from _routed(ask, row)


def _routed(ask: Ask, row: RequestRow | None) -> Iterator[Finding]:
    assert ask.response is not None  # noqa: S101 - the caller has looked
    status = ask.response.status
    if ask.path == NO_ROUTE:
        if status != NOT_FOUND or row is not None:
            yield f"{ask.name} asked for no route, and was answered {status}", (ask.name,), _INF
    elif row is None:
        yield f"{ask.name} was answered {status}, and never ended", (ask.name,), _INF


@invariant(
    "the client is told what is recorded",
    "Status, completeness and error of a response agree with the request's terminal.",
)
def _told_as_recorded(evidence: Evidence) -> Iterator[Finding]:
    for ask, row, response in _answered(evidence):
        about = _about(ask, row)
        if response.status != row.status:
            yield f"{ask.name} was answered {response.status}, recorded {row.status}", about, _INF
        if not ask.good and not _fit_for_bad(row):
            yield f"{ask.name} asked for what cannot be, and ended {row.terminal}", about, _INF
        whole = response.complete and response.status == OK
        if whole and row.terminal is not Terminal.COMPLETED:
            yield f"{ask.name} was given a whole answer, recorded {row.terminal}", about, _INF
        if row.terminal is Terminal.COMPLETED and not whole and not _lost(ask, row):
            yield f"{ask.name} is recorded as completed, and was cut", about, _INF


def _fit_for_bad(row: RequestRow) -> bool:
    fit = (Terminal.INVALID, Terminal.REJECTED, Terminal.REFUSED, Terminal.CANCELLED)
    return row.terminal in fit or row.limit in (Limit.REQUEST, Limit.GRACE)


def _lost(ask: Ask, row: RequestRow) -> bool:
    """Whether the client was gone, or had stopped reading, when the last byte was written."""
    gone = ask.ended_at is None or ask.left_at is not None
    return gone or (ask.ended_at is not None and ask.ended_at > row.arrival + row.request_s)


@invariant(
    "output is one leg's",
    "What a client is given is the output of one leg, the last attempt's, from its beginning "
    "and byte for byte: nothing repeated, lost, reordered or mixed.",
)
def _output_is_one_legs(evidence: Evidence) -> Iterator[Finding]:
    for ask, row, response in _answered(evidence):
        if response.is_stream:
            problem = _wrong_stream(evidence, ask, row, bytes(response.body), response.complete)
        elif response.complete and response.status == OK:
            problem = _wrong_document(evidence, row, bytes(response.body))
        else:
            continue
        if problem is not None:
            yield f"{ask.name}: {problem}", _about(ask, row), _INF


def _wrong_stream(
    evidence: Evidence, ask: Ask, row: RequestRow, body: bytes, complete: bool
) -> str | None:
    at = body.rfind(_ERROR)
    output = body if at < 0 else body[:at]
    if not output:
        return None
    decodes = [leg for leg in evidence.legs_of.get(row.request_id, ()) if leg.name.leg == "decode"]
    sources = [
        leg
        for leg in decodes
        if (whole := leg.stream(usage=ask.include_usage)).startswith(output)
        and (not complete or whole == output)
    ]
    if not sources:
        return f"{len(output)} bytes of output that are no leg's"
    if len(row.attempts) not in {leg.name.attempt for leg in sources} and _visible(output):
        return "output of an attempt that was not the last"
    return None


def _visible(output: bytes) -> bool:
    return b'"text":' in output or b'"content":' in output


def _wrong_document(evidence: Evidence, row: RequestRow, body: bytes) -> str | None:
    document = msgspec.json.decode(body)
    leg = evidence.leg_called(document["id"])
    if leg is None:
        return f"an answer of no leg's, {document['id']}"
    if leg.name.request != row.request_id or leg.name.attempt != len(row.attempts):
        return "the answer of another attempt than the last"
    text = "".join(text_of_choice(choice) for choice in document["choices"])
    return None if text == leg.text else f"the text {text!r}, where the leg said {leg.text!r}"


@invariant(
    "no leg after output",
    "Once a client has seen output, no further leg of its request begins.",
)
def _no_leg_after_output(evidence: Evidence) -> Iterator[Finding]:
    for ask, row, response in _answered(evidence):
        if not response.is_stream or ask.output_at is None:
            continue
        if not _visible(bytes(response.body)):
            continue
        for leg in evidence.legs_of.get(row.request_id, ()):
            late = leg.arrived - ask.output_at
            if leg.name.leg != "release" and late > evidence.plan.slack:
                yield (
                    f"{ask.name}: {leg.record.request_id} began {late:.3f} s after output",
                    (*_about(ask, row),),
                    leg.record.began,
                )


@invariant(
    "errors tell the truth",
    "An error names the limit that fired, the attempts, and where the time went.",
)
def _errors_tell_the_truth(evidence: Evidence) -> Iterator[Finding]:
    for ask, row, response in _answered(evidence):
        body = bytes(response.body)
        if response.is_stream:
            at = body.rfind(_ERROR)
            if at < 0 or not body.endswith(b"\n\n"):
                continue
            error = msgspec.json.decode(body[at + len(b"data: ") :])["error"]
        elif response.complete and response.status != OK:
            error = msgspec.json.decode(body)["error"]
        else:
            continue
        for problem in _wrong_error(evidence, row, error, response.headers):
            yield f"{ask.name}: {problem}", _about(ask, row), _INF


def _wrong_error(
    evidence: Evidence, row: RequestRow, error: dict[str, Any], headers: dict[str, str]
) -> Iterator[str]:
    account = error.get("narwhal")
    if row.terminal is Terminal.COMPLETED:
        yield f"an error ({error.get('code')}), and recorded as completed"
    if row.code == "queue_full" and not int(headers.get("retry-after", 0)) >= 1:
        yield "429 without a time to come back"
    if row.terminal is not Terminal.INVALID and error["code"] != row.code:
        yield f"told {error['code']}, recorded {row.code}"
    if account is None:
        return
    if account["limit"] != row.limit:
        yield f"told that {account['limit']} fired, recorded {row.limit}"
    if account["attempts"] != len(row.attempts):
        yield f"told of {account['attempts']} attempts, recorded {len(row.attempts)}"
    # What is told was added up before it was sent.
    lasted = row.request_s - row.spent.get(Phase.RESPOND, 0.0)
    told = sum(account["spent_s"].values())
    if abs(told - lasted) > 0.01 + evidence.plan.slack:
        yield f"told of {told:.3f} s, lasted {lasted:.3f} s"


@invariant(
    "a client that leaves ends its request",
    "When a client closes its connection, its request is over at once.",
)
def _leaving_ends_it(evidence: Evidence) -> Iterator[Finding]:
    for ask in evidence.asks:
        row = evidence.row_of_ask.get(ask.name)
        if ask.left_at is None or row is None or ask.name in evidence.unnoticed:
            continue
        late = row.arrival + row.request_s - ask.left_at
        if late > LEFT_WITHIN_S + evidence.plan.slack:
            yield (
                f"{ask.name} left, and its request went on for {late:.3f} s",
                _about(ask, row),
                ask.left_at + late,
            )


@invariant(
    "the application is given what is recorded",
    "A caller is given the words of one leg, the last attempt's, or an error with a code.",
)
def _callers_are_given_one_leg(evidence: Evidence) -> Iterator[Finding]:
    for caller in evidence.callers:
        about = (caller.name,)
        if caller.failed is not None and caller.failed.outcome.terminal is Terminal.COMPLETED:
            yield f"{caller.name} failed, though completed", about, _INF
        if caller.leg is None:
            continue
        leg = evidence.leg_called(caller.leg)
        problem = _wrong_words(evidence, leg, caller.text, caller.legs, whole=caller.complete)
        if problem is not None:
            yield f"{caller.name}: {problem}", about, _INF


def _wrong_words(
    evidence: Evidence, leg: Leg | None, text: str, legs: int, *, whole: bool
) -> str | None:
    if leg is None or leg not in evidence.recorded_legs or legs != 1:
        return f"the words of {legs} legs"
    if not leg.text.startswith(text) or (whole and text != leg.text):
        return f"the words {text!r}, where the leg said {leg.text!r}"
    row = evidence.row_of[leg.name.request]
    if leg.name.attempt != len(row.attempts):
        return "words of an attempt that was not the last"
    if whole and row.terminal is not Terminal.COMPLETED:
        return f"all of the words, recorded {row.terminal}"
    return None
