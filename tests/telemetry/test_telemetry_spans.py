"""Which requests are traced, and the tree of spans that is made of one."""

from __future__ import annotations

import random
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from narwhal.model import FailureClass, Limit, Phase, Route, Stopwatch, Terminal
from narwhal.telemetry import AttemptResult, AttemptRow, RequestRow, TracedRequest, Traces
from narwhal.telemetry.spans import Span, SpanKind, request_spans
from narwhal.telemetry.traces import Trace, begin_trace
from narwhal.wire.trace_context import TraceContext, make_context

CLIENT = make_context(0xABC, 0xDEF, sampled=True, tracestate="vendor=1")
UNSAMPLED = make_context(0xABC, 0xDEF, sampled=False, tracestate="vendor=1")


def trace_of(context: TraceContext | None = None, ratio: float = 1.0, seed: int = 0) -> Trace:
    return begin_trace(context, ratio=ratio, rng=random.Random(seed))


def traced(
    phases: list[tuple[Phase, float]], end: float, attempts: list[AttemptRow], **row: Any
) -> TracedRequest:
    """A request that came at 100 s and entered these phases, each so long after that."""
    watch = Stopwatch(100.0)
    for phase, at in phases:
        watch.enter(phase, 100.0 + at)
    values: dict[str, Any] = {
        "ts": 5.0,
        "arrival": 100.0,
        "request_id": "req-1",
        "route": Route.CHAT,
        "terminal": Terminal.COMPLETED,
        "status": 200,
        "attempts": tuple(attempts),
        "spent": watch.spent(100.0 + end),
    }
    made = RequestRow(**(values | row))
    trace = row.pop("trace", None) or trace_of(CLIENT)
    return TracedRequest(row=made, marks=watch.marks, trace=trace, http=True)


GOOD = AttemptRow(
    n=1,
    prefill="p0",
    decode="d0",
    result=AttemptResult.COMPLETED,
    prefill_s=0.5,
    first_token_s=0.2,
    handoff_age_s=0.6,
)
BAD = AttemptRow(
    n=1,
    prefill="p0",
    decode="d1",
    result=AttemptResult.FAILED,
    code="first_token",
    phase=Phase.DECODE,
    engine="d1",
    failure=FailureClass.TIMEOUT,
    limit=Limit.FIRST_TOKEN,
)


def tree(spans: list[Span]) -> dict[str, list[str]]:
    """The names of each span's children, in order of time."""
    names = {span.span_id: span.name for span in spans}
    found: dict[str, list[str]] = {}
    for span in sorted(spans, key=lambda span: span.begun):
        found.setdefault(names.get(span.parent_id or 0, "client"), []).append(span.name)
    return found


def test_a_request_that_went_well() -> None:
    phases = [
        (Phase.TOKENIZE, 0.1),
        (Phase.QUEUE, 0.2),
        (Phase.PREFILL, 1.0),
        (Phase.HANDOFF, 1.5),
        (Phase.DECODE, 1.6),
        (Phase.RESPOND, 3.0),
    ]
    request = traced(
        phases,
        3.1,
        [GOOD],
        ttft_s=1.9,
        first_token_ttft_s=1.8,
        prompt_tokens=7,
        completion_tokens=9,
    )
    spans = request_spans(request, model="m")
    assert tree(spans) == {
        "client": ["chat m"],
        "chat m": ["ingress", "tokenize", "queue", "attempt", "respond"],
        "attempt": ["prefill", "handoff", "decode"],
    }
    by_name = {span.name: span for span in spans}
    root = by_name["chat m"]
    assert root.begun == 100.0
    assert root.ended == pytest.approx(103.1)
    assert root.kind is SpanKind.SERVER
    assert root.parent_id == 0xDEF
    assert root.error is None
    assert root.attributes["gen_ai.usage.input_tokens"] == 7
    assert root.attributes["gen_ai.response.time_to_first_chunk"] == 1.9
    assert root.attributes["http.route"] == "/v1/chat/completions"
    assert root.attributes["narwhal.queue_wait_s"] == pytest.approx(0.8)
    assert "error.type" not in root.attributes
    times = {name: (span.begun, span.ended) for name, span in by_name.items()}
    assert times["queue"] == (100.2, 101.0)
    assert times["attempt"] == (101.0, 103.0)
    assert times["prefill"] == (101.0, 101.5)
    assert times["decode"] == (101.6, 103.0)
    assert by_name["prefill"].attributes["narwhal.engine"] == "p0"
    assert by_name["decode"].attributes["narwhal.engine"] == "d0"
    assert by_name["decode"].events == (("first_token", 101.8),)
    assert {by_name[leg].kind for leg in ("prefill", "decode")} == {SpanKind.CLIENT}


def test_attempts_are_numbered_and_say_what_went_wrong() -> None:
    phases = [
        (Phase.PREFILL, 0.1),
        (Phase.HANDOFF, 0.2),
        (Phase.DECODE, 0.3),
        (Phase.BACKOFF, 1.0),
        (Phase.PREFILL, 1.5),
        (Phase.HANDOFF, 1.6),
        (Phase.DECODE, 1.7),
        (Phase.RESPOND, 2.0),
    ]
    again = attrs.evolve(GOOD, n=2)
    request = traced(phases, 2.0, [BAD, again], limits_fired=(Limit.FIRST_TOKEN,))
    spans = request_spans(request, model="m")
    attempts = [span for span in spans if span.name == "attempt"]
    assert [span.attributes["narwhal.attempt"] for span in attempts] == [1, 2]
    assert [span.error for span in attempts] == ["first_token", None]
    assert attempts[0].attributes["narwhal.limit"] == "first_token"
    decodes = [span for span in spans if span.name == "decode"]
    assert [span.error for span in decodes] == ["first_token", None]
    assert [span.parent_id for span in decodes] == [span.span_id for span in attempts]
    assert "backoff" in tree(spans)["chat m"]
    (root,) = (span for span in spans if span.name == "chat m")
    assert root.attributes["narwhal.limits_fired"] == ("first_token",)
    assert root.error is None


def test_a_decode_that_was_never_written_has_its_span_all_the_same() -> None:
    failed = attrs.evolve(BAD, phase=Phase.DECODE, code="engine_unreachable", limit=None)
    phases = [(Phase.PREFILL, 0.1), (Phase.HANDOFF, 0.2), (Phase.RESPOND, 0.4)]
    request = traced(
        phases, 0.5, [failed], terminal=Terminal.FAILED, status=502, code="engine_unreachable"
    )
    spans = request_spans(request, model="m")
    (decode,) = (span for span in spans if span.name == "decode")
    assert decode.begun == decode.ended == pytest.approx(100.4)
    assert decode.error == "engine_unreachable"
    assert decode.span_id == request.trace.context_of(1, "decode").span_id
    assert spans[0].error == "engine_unreachable"


@pytest.mark.parametrize(
    ("terminal", "status", "error"),
    [
        (Terminal.INVALID, 400, False),
        (Terminal.REFUSED, 429, False),
        (Terminal.REJECTED, 503, True),
        (Terminal.FAILED, 200, True),
        (Terminal.EXPIRED, 504, True),
        (Terminal.CANCELLED, 499, False),
    ],
)
def test_whose_fault_it_was(terminal: Terminal, status: int, error: bool) -> None:
    request = traced([], 0.1, [], terminal=terminal, status=status, code="some_code")
    (root, ingress) = request_spans(request, model="m")
    assert root.error == ("some_code" if error else None)
    assert root.attributes["error.type"] == "some_code"
    assert root.attributes["narwhal.terminal"] == terminal
    assert ingress.name == "ingress"


def test_a_limit_that_fired_outside_of_attempts_is_on_its_phase() -> None:
    fired = {"limits_fired": (Limit.TOKENIZE, Limit.QUEUE)}
    request = traced([(Phase.TOKENIZE, 0.1), (Phase.QUEUE, 0.2)], 0.3, [], **fired)
    limits = {span.name: span.error for span in request_spans(request, model="m")[1:]}
    assert limits == {"ingress": None, "tokenize": "tokenize", "queue": "queue"}


def test_what_an_application_asked_for_is_no_http() -> None:
    request = attrs.evolve(traced([], 0.1, []), http=False)
    (root, _) = request_spans(request, model="m")
    assert not [name for name in root.attributes if name.startswith(("http", "url"))]


# Trees of any request

LEGS = (Phase.PREFILL, Phase.HANDOFF, Phase.DECODE)


@st.composite
def lives(draw: st.DrawFn) -> tuple[list[Phase], int]:
    """The phases of a request as it may enter them, and how many attempts it made."""
    entered = [phase for phase in (Phase.TOKENIZE, Phase.QUEUE) if draw(st.booleans())]
    attempts = draw(st.integers(0, 3))
    for n in range(attempts):
        entered += [Phase.BACKOFF] if n else []
        whole = draw(st.booleans())
        legs = [Phase.PREFILL, Phase.DECODE] if whole else LEGS
        entered += legs[: draw(st.integers(1, len(legs)))]
    return entered + [Phase.RESPOND] * draw(st.integers(0, 2)), attempts


@given(lives(), st.sampled_from([None, CLIENT]))
def test_any_spans_are_one_tree_within_the_request(
    life: tuple[list[Phase], int], context: TraceContext | None
) -> None:
    entered, attempts = life
    marks = [(phase, 0.5 * (n + 1)) for n, phase in enumerate(entered)]
    rows = [attrs.evolve(GOOD, n=n + 1) for n in range(attempts)]
    request = attrs.evolve(traced(marks, 10.0, rows), trace=trace_of(context))
    root, *others = request_spans(request, model="m")
    ids = [span.span_id for span in (root, *others)]
    assert len({*ids, 0}) == len(ids) + 1
    assert all(span.parent_id in ids for span in others)
    assert root.parent_id == (None if context is None else context.span_id)
    assert sum(span.name == "attempt" for span in others) == attempts
    for span in others:
        assert root.begun <= span.begun <= span.ended <= root.ended + 1e-9


# Which requests are traced


def test_the_client_s_decision_holds() -> None:
    assert trace_of(CLIENT, ratio=0.0).sampled
    assert not trace_of(UNSAMPLED, ratio=1.0).sampled
    assert trace_of(CLIENT).trace_id == CLIENT.trace_id


@pytest.mark.parametrize("ratio", [0.0, 0.25, 1.0])
def test_without_one_so_many_are_traced(ratio: float) -> None:
    sampled = [trace_of(ratio=ratio, seed=seed).sampled for seed in range(2000)]
    assert sum(sampled) / 2000 == pytest.approx(ratio, abs=0.03)


def test_legs_are_told_of_the_spans_that_are_made_later() -> None:
    phases_ = [(Phase.PREFILL, 0.1), (Phase.HANDOFF, 0.2), (Phase.DECODE, 0.3)]
    request = traced(phases_, 0.5, [GOOD])
    ids = {span.name: span.span_id for span in request_spans(request, model="m")}
    for leg in ("prefill", "decode"):
        context = request.trace.context_of(1, leg)
        assert (context.span_id, context.trace_id) == (ids[leg], CLIENT.trace_id)
        assert (context.sampled, context.tracestate) == (True, "vendor=1")
    assert request.trace.context_of(1, "release").span_id == ids["attempt"]


def test_what_is_not_recorded_is_sent_on_as_it_came() -> None:
    assert trace_of(UNSAMPLED).context_of(1, "decode") == UNSAMPLED
    own = trace_of(ratio=0.0).context_of(1, "decode")
    assert not own.sampled


def test_a_full_buffer_drops_what_is_newest() -> None:
    traces = Traces(ratio=1.0, capacity=2, rng=random.Random(0))
    requests = [traced([], 0.1, [], request_id=f"req-{n}") for n in range(3)]
    assert [traces.ended_nowait(each) for each in requests] == [True, True, False]
    assert traces.drain(1) == requests[:1]
    assert len(traces) == 1
    assert traces.drain(9) == requests[1:2]
