"""The spans of one request, made from what is known of it when it has ended.

Nothing is recorded on the way: a request's row and the moments at which it entered its phases
say it all. Names are those of the OpenTelemetry conventions for HTTP and generative AI where
there are any, and begin with `narwhal.` where there are none. No prompt, no generated text, no
address is in any of them.
"""

from __future__ import annotations

from enum import StrEnum
from itertools import pairwise
from typing import TYPE_CHECKING

import attrs

from narwhal.model import Limit, Phase, Route, Terminal
from narwhal.telemetry.kinds import AttemptResult

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from narwhal.telemetry.rows import AttemptRow, RequestRow
    from narwhal.telemetry.traces import Trace, TracedRequest

    Value = str | int | float | bool | tuple[str, ...]


class SpanKind(StrEnum):
    """Who waits for whom."""

    SERVER = "server"
    CLIENT = "client"
    INTERNAL = "internal"


@attrs.frozen(kw_only=True)
class Span:
    """One span. Moments are on the router's clock, in seconds."""

    name: str
    kind: SpanKind = SpanKind.INTERNAL
    span_id: int
    parent_id: int | None
    begun: float
    ended: float
    attributes: Mapping[str, Value]
    error: str | None = None
    """What went wrong, as a code."""
    events: tuple[tuple[str, float], ...] = ()


@attrs.frozen
class _Stretch:
    """One stay in a phase; `attempt` is 0 outside of attempts."""

    phase: Phase
    begun: float
    ended: float
    attempt: int


PATHS = {Route.CHAT: "/v1/chat/completions", Route.COMPLETIONS: "/v1/completions"}
_OPERATIONS = {Route.CHAT: "chat", Route.COMPLETIONS: "text_completion"}
_LEGS = (Phase.PREFILL, Phase.HANDOFF, Phase.DECODE)
_ON_ENGINES = (Phase.PREFILL, Phase.DECODE)
_LIMITS = {Phase.TOKENIZE: Limit.TOKENIZE, Phase.QUEUE: Limit.QUEUE}
_SERVER_FAULT = 500


def request_spans(request: TracedRequest, *, model: str) -> list[Span]:
    """The spans of a request, its root first: attempts below it, and phases below both."""
    row, trace = request.row, request.trace
    ended = row.arrival + row.request_s
    stretches = list(_stretches(request.marks, ended))
    spans = [_root(row, trace, ended, model=model, http=request.http)]
    for attempt in row.attempts:
        own = [each for each in stretches if each.attempt == attempt.n]
        if own:
            spans += _attempt(row, attempt, own, trace)
    others = [each for each in stretches if not each.attempt]
    spans += [_other(row, each, trace, index) for index, each in enumerate(others)]
    return spans


def _stretches(marks: Sequence[tuple[Phase, float]], ended: float) -> Iterator[_Stretch]:
    """Stays in phases, in order. Every attempt begins with its prefill."""
    attempt = 0
    for (phase, begun), (_, until) in pairwise((*marks, (Phase.RESPOND, ended))):
        attempt += phase is Phase.PREFILL
        yield _Stretch(phase, begun, until, attempt if phase in _LEGS else 0)


def _root(row: RequestRow, trace: Trace, ended: float, *, model: str, http: bool) -> Span:
    operation = _OPERATIONS[row.route]
    failed = row.terminal in (Terminal.FAILED, Terminal.EXPIRED)
    failed = failed or (row.status or 0) >= _SERVER_FAULT
    return Span(
        name=f"{operation} {model}",
        kind=SpanKind.SERVER,
        span_id=trace.root_id,
        parent_id=None if trace.parent is None else trace.parent.span_id,
        begun=row.arrival,
        ended=ended,
        attributes=_known(
            {
                "gen_ai.operation.name": operation,
                "gen_ai.request.model": model,
                "gen_ai.request.stream": row.stream,
                "gen_ai.request.max_tokens": row.max_tokens,
                "gen_ai.usage.input_tokens": row.prompt_tokens,
                "gen_ai.usage.output_tokens": row.completion_tokens,
                "gen_ai.response.time_to_first_chunk": row.ttft_s,
                **(_http(row) if http else {}),
                "error.type": row.code,
                "narwhal.request_id": row.request_id,
                "narwhal.client_request_id": row.client_request_id,
                "narwhal.terminal": row.terminal,
                "narwhal.limit": row.limit,
                "narwhal.limits_fired": row.limits_fired,
                "narwhal.attempts": len(row.attempts),
                "narwhal.prefill_ttft_s": row.prefill_ttft_s,
                "narwhal.projected_ttft_s": row.projected_ttft_s,
                "narwhal.tpot_s": row.tpot_s,
                "narwhal.queue_wait_s": row.queue_wait_s,
            }
        ),
        error=row.code if failed else None,
    )


def _http(row: RequestRow) -> dict[str, Value | None]:
    path = PATHS[row.route]
    return {
        "http.request.method": "POST",
        "http.route": path,
        "url.path": path,
        "http.response.status_code": row.status,
    }


def _attempt(
    row: RequestRow, attempt: AttemptRow, stretches: list[_Stretch], trace: Trace
) -> Iterator[Span]:
    failed = attempt.result is AttemptResult.FAILED
    yield Span(
        name="attempt",
        span_id=trace.attempt_id(attempt.n),
        parent_id=trace.root_id,
        begun=stretches[0].begun,
        ended=stretches[-1].ended,
        attributes=_known(
            {
                "narwhal.attempt": attempt.n,
                "narwhal.attempt.result": attempt.result,
                "error.type": attempt.code,
                "narwhal.failure": attempt.failure,
                "narwhal.failure.phase": attempt.phase,
                "narwhal.engine": attempt.engine,
                "narwhal.limit": attempt.limit,
            }
        ),
        error=attempt.code if failed else None,
    )
    if attempt.decode is not None and stretches[-1].phase is not Phase.DECODE:
        # An engine may have been told of this span by a request that was not written to its end.
        end = stretches[-1].ended
        stretches = [*stretches, _Stretch(Phase.DECODE, end, end, attempt.n)]
    for stretch in stretches:
        yield _leg(row, attempt, stretch, trace)


def _leg(row: RequestRow, attempt: AttemptRow, stretch: _Stretch, trace: Trace) -> Span:
    phase = stretch.phase
    failed = attempt.result is AttemptResult.FAILED and attempt.phase is phase
    attributes: dict[str, Value | None] = {"narwhal.attempt": attempt.n}
    if phase is Phase.PREFILL:
        attributes |= {
            "narwhal.engine": attempt.prefill,
            "narwhal.engine.why": attempt.prefill_why,
            "narwhal.engine.runner_up": attempt.prefill_runner_up,
            "narwhal.prefill_s": attempt.prefill_s,
        }
    else:
        attributes |= {
            "narwhal.engine": attempt.decode,
            "narwhal.engine.why": attempt.decode_why,
            "narwhal.engine.runner_up": attempt.decode_runner_up,
            "narwhal.handoff_age_s": attempt.handoff_age_s,
        }
    if failed:
        attributes |= {
            "error.type": attempt.code,
            "narwhal.failure": attempt.failure,
            "narwhal.limit": attempt.limit,
        }
    return Span(
        name=phase,
        kind=SpanKind.CLIENT if phase in _ON_ENGINES else SpanKind.INTERNAL,
        span_id=trace.leg_id(attempt.n, phase),
        parent_id=trace.attempt_id(attempt.n),
        begun=stretch.begun,
        ended=stretch.ended,
        attributes=_known(attributes),
        error=attempt.code if failed else None,
        events=_first_token(row, attempt, stretch),
    )


def _first_token(
    row: RequestRow, attempt: AttemptRow, stretch: _Stretch
) -> tuple[tuple[str, float], ...]:
    """The moment of the first token, in the decode of the attempt that it came from."""
    having = [each.n for each in row.attempts if each.first_token_s is not None]
    if stretch.phase is not Phase.DECODE or row.first_token_ttft_s is None:
        return ()
    if having[-1:] != [attempt.n]:
        return ()
    return (("first_token", row.arrival + row.first_token_ttft_s),)


def _other(row: RequestRow, stretch: _Stretch, trace: Trace, index: int) -> Span:
    limit = _LIMITS.get(stretch.phase)
    fired = limit is not None and limit in row.limits_fired
    return Span(
        name=stretch.phase,
        span_id=trace.other_id(index),
        parent_id=trace.root_id,
        begun=stretch.begun,
        ended=stretch.ended,
        attributes=_known({"narwhal.limit": limit if fired else None}),
        error=limit if fired else None,
    )


def _known(attributes: Mapping[str, Value | None]) -> dict[str, Value]:
    """What there is, with enumerations as the plain text that they are."""
    return {
        key: _plain(value) for key, value in attributes.items() if value is not None and value != ()
    }


def _plain(value: Value) -> Value:
    if isinstance(value, tuple):
        return tuple(map(str, value))
    return str(value) if isinstance(value, str) else value
