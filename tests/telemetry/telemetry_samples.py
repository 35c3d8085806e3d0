"""Rows and readings for the tests of this folder."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from narwhal.admission import Cause
from narwhal.fleet import EngineState, Event, Transition
from narwhal.model import ClientLimit, FailureClass, Limit, Phase, Role, Route, Terminal
from narwhal.placement import Why
from narwhal.roles import (
    Decision,
    Estimate,
    EvidenceState,
    Flip,
    Projection,
    Rule,
    Split,
    Verdict,
)
from narwhal.telemetry import (
    AttemptResult,
    AttemptRow,
    Denial,
    Door,
    EngineView,
    LiveState,
    Pool,
    PoolView,
    Probe,
    ProbeResult,
    RequestRow,
    RolesView,
    Telemetry,
)

if TYPE_CHECKING:
    from narwhal.telemetry.catalogue import Metric

ENGINES = ("n0", "n1")

ROW = RequestRow(
    ts=1_700_000_000.25,
    arrival=12.5,
    request_id="r-1",
    client_request_id="mine",
    route=Route.CHAT,
    stream=True,
    terminal=Terminal.COMPLETED,
    status=200,
    limits_fired=(Limit.FIRST_TOKEN,),
    prompt_tokens=100,
    prompt_exact=True,
    max_tokens=64,
    completion_tokens=50,
    tokens_counted=48,
    attempts=(
        AttemptRow(
            n=1,
            prefill="n0",
            prefill_why=Why.LEAST_COST,
            prefill_runner_up="n1",
            decode="n1",
            decode_why=Why.UNSERVED,
            result=AttemptResult.FAILED,
            code="first_token",
            phase=Phase.DECODE,
            engine="n1",
            failure=FailureClass.TIMEOUT,
            limit=Limit.FIRST_TOKEN,
            prefill_s=0.2,
            handoff_age_s=0.21,
        ),
        AttemptRow(
            n=2,
            prefill="n1",
            decode="n0",
            result=AttemptResult.COMPLETED,
            prefill_s=0.1,
            handoff_age_s=0.11,
            first_token_s=0.05,
        ),
    ),
    spent={
        Phase.INGRESS: 0.01,
        Phase.QUEUE: 0.25,
        Phase.PREFILL: 0.3,
        Phase.BACKOFF: 0.04,
        Phase.DECODE: 3.4,
    },
    ttft_s=3.1,
    prefill_ttft_s=3.0,
    first_token_ttft_s=3.05,
    projected_ttft_s=2.5,
    tpot_s=0.02,
    projected_tpot_s=0.025,
)

CHANGE = Transition(
    at=12.5,
    iid="n0",
    source=EngineState.SERVING,
    event=Event.SUSPECTED,
    target=EngineState.HELD,
    reason="3 failures in a row: stream",
)

MOVE = Decision(
    at=12.0,
    verdict=Verdict.MOVED,
    rule=Rule.TOWARD_DECODE,
    iid="n0",
    to=Role.DECODE,
    split=Split(2, 1),
    proposed=Split(1, 2),
    prefill_load=0.25,
    decode_load=1.5,
    now=Projection(split=Split(2, 1), prefill=0.25, decode=1.75),
    then=Projection(split=Split(1, 2), prefill=0.5, decode=0.875),
)
_DEMAND = Estimate(span_s=60.0, arrivals=30, prefill=0.75, service_s=1.5, tokens=40.0, context=512)
ROLES = RolesView(
    now=12.5,
    advisory=False,
    preset="reference",
    decision=MOVE,
    proposal=MOVE,
    evidence=EvidenceState(elapsed_s=61.0, arrivals=30, closed=True),
    short=_DEMAND,
    long=attrs.evolve(_DEMAND, span_s=120.0, arrivals=70),
    flips=(Flip(at=12.0, iid="n0", to=Role.DECODE, rule=Rule.TOWARD_DECODE, split=Split(1, 2)),),
    corrections={"n0": 1.0, "n1": 1.25},
)

LIVE = LiveState(
    ready=True,
    draining=True,
    degraded="5 monitor passes in a row failed: health: OSError",
    admission_seats=8,
    admitted=6,
    queue_capacity=16,
    waiting=3,
    seats_waited_for={Phase.DECODE: 5},
    retained=7,
    retry_credits=9.5,
    takers={Phase.PREFILL: ("n0",), Phase.DECODE: ("n0", "n1")},
    roles=ROLES,
    engines=tuple(
        EngineView(
            iid=iid,
            role=role,
            pin=False,
            state=EngineState.HELD,
            state_s=12.5,
            reason="3 failures in a row: stream",
            streaks={FailureClass.STREAM: 2},
            version="0.32.0",
            process_start_s=1.5e9,
            suspicion="trusted",
            seats={Phase.PREFILL: 1, Phase.DECODE: 2},
            seat_limit={Phase.PREFILL: 4},
            residents={Phase.PREFILL: 3, Phase.DECODE: 4},
            reserved_tokens=2048,
            backlog_s=1.5,
            pace={Phase.PREFILL: 1.25},
            orphan_tokens=512,
            pools={
                Pool.SERVING: PoolView(idle=5, busy=6, waiting=8),
                Pool.CONTROL: PoolView(idle=1, busy=1, waiting=1),
            },
        )
        for iid, role in zip(ENGINES, Role, strict=True)
    ),
)


@attrs.frozen
class FixedSource:
    """A router that always says the same of itself."""

    live: LiveState = LIVE

    def live_state(self) -> LiveState:
        return self.live


def make_telemetry(
    *, engines: tuple[str, ...] = ENGINES, journaled: bool = True, **more: Any
) -> Telemetry:
    return Telemetry(
        engines=engines,
        ttft_s=2.0,
        tpot_s=0.05,
        version="9.9",
        model="tiny",
        started=100.0,
        journaled=journaled,
        **more,
    )


def everything_happens(telemetry: Telemetry) -> None:
    """Each kind of event there is, at least once."""
    telemetry.request_started(Route.CHAT)
    telemetry.request_started(Route.CHAT)
    telemetry.request_started(Route.COMPLETIONS)
    telemetry.request_ended(attrs.evolve(ROW, tokenize_fallback=True))
    telemetry.request_ended(attrs.evolve(ROW, attempts=ROW.attempts[1:]))
    telemetry.refused(Cause.BACKLOG)
    telemetry.unserved(Phase.PREFILL)
    telemetry.limit_fired(Limit.HEALTH)
    telemetry.denied(Door.DATA, Denial.NO_KEY)
    telemetry.client_limit_fired(Door.CONTROL, ClientLimit.BODY_RATE)
    telemetry.certificate_loaded(Door.DATA, 2e9)
    telemetry.offered(sized=True)
    telemetry.offered(sized=False)
    telemetry.engine_failed("n1", FailureClass.TIMEOUT)
    telemetry.engine_changed(CHANGE, ts=1_700_000_001.5)
    telemetry.engine_restarted("n1")
    telemetry.decided(MOVE)
    telemetry.probed(Probe.HEALTH, ProbeResult.PASSED)
    telemetry.kv_released()
    telemetry.kv_orphaned(release_failed=True)
    telemetry.handoff_rejected(missing=True)
    telemetry.handoff_rejected(missing=False)
    telemetry.handoff_expired()
    telemetry.prefill_rejected()
    telemetry.waited_for_seat(Phase.DECODE, 0.5)
    telemetry.monitored(late_s=0.002, took_s=0.001, failed=False)
    telemetry.traces_exported(2)
    telemetry.traces_dropped(1)
    telemetry.state_write_failed()
    telemetry.metrics.tokens_completion.inc(48)


Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def scraped(telemetry: Telemetry) -> Samples:
    """Parse the exposition: value by name and labels, each series once."""
    found: Samples = {}
    for family in text_string_to_metric_families(telemetry.metrics.render().decode()):
        for sample in family.samples:
            key = (sample.name, tuple(sorted(sample.labels.items())))
            assert key not in found
            found[key] = sample.value
    return found


def values_of(samples: Samples, metric: Metric) -> list[float]:
    names = {metric.full_name, metric.full_name + "_count"}
    return [value for (name, _), value in samples.items() if name in names]


def value(samples: Samples, name: str, **labels: str) -> float:
    return samples["narwhal_" + name, tuple(sorted(labels.items()))]


_seconds = st.floats(0, 1e6)
_maybe_seconds = st.none() | _seconds
_anything: st.SearchStrategy[Any] = st.none() | st.text() | st.binary()


def attempts() -> st.SearchStrategy[AttemptRow]:
    return st.builds(
        AttemptRow,
        n=st.integers(1, 3),
        prefill=st.sampled_from(ENGINES),
        decode=st.none() | st.sampled_from(ENGINES),
        result=st.sampled_from(AttemptResult),
        code=st.none() | st.text(),
        prefill_s=_maybe_seconds,
    )


def rows() -> st.SearchStrategy[RequestRow]:
    """Rows of every shape, with whatever a client or an engine could have put into the texts."""
    return st.builds(
        RequestRow,
        ts=_seconds,
        arrival=_seconds,
        request_id=st.text(),
        client_request_id=_anything,
        route=st.sampled_from(Route),
        terminal=st.sampled_from(Terminal),
        status=st.none() | st.integers(100, 599),
        code=_anything,
        limits_fired=st.lists(st.sampled_from(Limit), max_size=3).map(tuple),
        prompt_tokens=st.none() | st.integers(0, 10**6),
        completion_tokens=st.integers(0, 10**6),
        tokens_counted=st.integers(0, 10**6),
        attempts=st.lists(attempts(), max_size=3).map(tuple),
        spent=st.dictionaries(st.sampled_from(Phase), _seconds),
        ttft_s=_maybe_seconds,
        prefill_ttft_s=_maybe_seconds,
        first_token_ttft_s=_maybe_seconds,
        tpot_s=_maybe_seconds,
        tokenize_fallback=st.booleans(),
    )
