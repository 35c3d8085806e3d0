"""One object that is told what happened, and from it keeps metrics, journal and totals alike."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from narwhal.model import Limit, Route, Terminal, TtftScope
from narwhal.telemetry.codes import OTHER, code_label
from narwhal.telemetry.counters import Counters
from narwhal.telemetry.journal import Journal
from narwhal.telemetry.kinds import Endpoint, PassResult, StatusClass, Target, TargetResult
from narwhal.telemetry.live import LiveState
from narwhal.telemetry.metrics import Metrics
from narwhal.telemetry.rows import EngineRow, RoleRow, RouterRow, StopRow
from narwhal.telemetry.scrape import live_readings
from narwhal.telemetry.state import encode_state, state_document
from narwhal.telemetry.state_types import Targets
from narwhal.telemetry.totals import Totals, admission_totals

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from narwhal.admission import Cause
    from narwhal.fleet import Transition
    from narwhal.model import ClientLimit, FailureClass, Phase
    from narwhal.roles import Decision
    from narwhal.telemetry.kinds import Change, Denial, Door, Probe, ProbeResult
    from narwhal.telemetry.live import Readings, StateSource
    from narwhal.telemetry.rows import RequestRow
    from narwhal.telemetry.sink import JournalFile

RECENT_OUTCOMES = 32
"""Ended requests kept for the state document: a screenful."""

CLIENT_GONE = 499
"""The status that logs conventionally give a request whose client left: it was sent none."""

_ENDPOINT = {Route.COMPLETIONS: Endpoint.COMPLETIONS, Route.CHAT: Endpoint.CHAT}
_CLASSES = {2: StatusClass.SUCCESS, 4: StatusClass.CLIENT, 5: StatusClass.SERVER}


class Telemetry:
    """The telemetry of one router. Synchronous throughout: no method blocks, none raises.

    `request_started` and `request_ended` are called once each for an original request, and
    everything that is said about requests anywhere derives from those two calls. It keeps no
    time of its own: clocks are arguments.
    """

    def __init__(
        self,
        *,
        engines: Sequence[str],
        ttft_s: float,
        tpot_s: float,
        version: str,
        model: str,
        started: float,
        ttft_scope: TtftScope = TtftScope.PREFILL,
        journaled: bool = False,
    ) -> None:
        """`started` is now on the clock that `state` will be asked with.

        `journaled` says that somebody empties the journal; if not, no rows are put into it.
        """
        self.metrics = Metrics(
            engines=engines, ttft_s=ttft_s, tpot_s=tpot_s, version=version, read=self._readings
        )
        self.journal = Journal()
        self._journaled = journaled
        self._ttft_scope = ttft_scope
        self._ttft_s = ttft_s
        self._tpot_s = tpot_s
        self._version = version
        self._model = model
        self._started = started
        self._source: StateSource | None = None
        self._file: JournalFile | None = None
        self._recent: deque[RequestRow] = deque(maxlen=RECENT_OUTCOMES)
        self._listeners: list[Callable[[RequestRow], None]] = []
        self._watchers: list[Callable[[Transition], None]] = []
        self._role_watchers: list[Callable[[Decision], None]] = []
        self._received = 0
        self._terminals = dict.fromkeys(Terminal, 0)
        self._rejections: dict[str, int] = {}
        self._limits = dict.fromkeys(Limit, 0)
        self._attempts = 0
        self._retries = 0
        self._kv_released = 0
        self._kv_orphaned = 0
        self._before = dict(self._terminals)
        """Terminals of earlier runs, which the journal of this one does not have."""

    def attach(self, source: StateSource, *, journal_file: JournalFile | None = None) -> None:
        """Say who describes the router from now on; until then it is shown empty and not ready."""
        self._source = source
        self._file = journal_file

    def listen(self, listener: Callable[[RequestRow], None]) -> None:
        """Have `listener` called with every row from now on, synchronously, as requests end.

        It takes its time from the requests that are being served, and must not raise.
        """
        self._listeners.append(listener)

    def watch(self, watcher: Callable[[Transition], None]) -> None:
        """Have `watcher` called with every change of an engine's state from now on, likewise."""
        self._watchers.append(watcher)

    @property
    def in_flight(self) -> int:
        """Requests started and not ended: zero in a router at rest."""
        return self._received - sum(self._terminals.values())

    def totals(self) -> Totals:
        """Return the counts since the start, as a value that later events do not change.

        If counts were resumed, the start is that of the first run.
        """
        return Totals(
            received=self._received,
            terminals=dict(self._terminals),
            limits_fired=dict(self._limits),
            attempts=self._attempts,
            retries=self._retries,
            prompt_tokens=int(self.metrics.tokens_prompt.value),
            completion_tokens=int(self.metrics.tokens_completion.value),
            kv_released=self._kv_released,
            kv_orphaned=self._kv_orphaned,
            journal_dropped=self.journal.dropped,
            admission=admission_totals(self.metrics, self._rejections, self._ttft_scope),
        )

    def counters(self) -> Counters:
        """Return what a later run is to count on from; `resume` takes it."""
        return Counters(series=self.metrics.counters(), rejections=dict(self._rejections))

    def resume(self, counters: Counters) -> None:
        """Count on from what an earlier run had counted. Called once, before anything happens.

        Requests that were in flight then have failed with the router: nobody can say how they
        would have ended, and each received request is to have one terminal.
        """
        metrics = self.metrics
        metrics.count_on(counters.series)
        for route in Route:
            ended = sum(metrics.requests[route, terminal].value for terminal in Terminal)
            if cut := metrics.requests_received[route].value - ended:
                metrics.requests[route, Terminal.FAILED].inc(cut)
                metrics.requests_ended[OTHER].inc(cut)
                metrics.http_responses[_ENDPOINT[route], StatusClass.NONE].inc(cut)
        self._received = int(sum(cell.value for cell in metrics.requests_received.values()))
        for terminal in Terminal:
            cells = [metrics.requests[route, terminal] for route in Route]
            self._terminals[terminal] = int(sum(cell.value for cell in cells))
        self._before = dict(self._terminals)
        self._limits = {limit: int(cell.value) for limit, cell in metrics.limits_fired.items()}
        self._attempts = int(sum(cell.value for cell in metrics.attempts.values()))
        self._retries = int(metrics.retries.value)
        self._kv_released = int(metrics.kv_released.value)
        self._kv_orphaned = int(metrics.kv_orphaned.value)
        self._rejections = dict(counters.rejections)

    # Requests

    def request_started(self, route: Route) -> None:
        """A completion request arrived: its head has been read, nothing is decided yet."""
        self._received += 1
        self.metrics.requests_received[route].inc()

    def request_ended(self, row: RequestRow) -> None:
        """It reached its terminal. Called once, with all there is to know about it."""
        self._terminals[row.terminal] += 1
        if row.terminal.turned_away:
            code = code_label(row.code)
            self._rejections[code] = self._rejections.get(code, 0) + 1
        self._recent.append(row)
        if self._journaled:
            self.journal.append_nowait(row)
        metrics = self.metrics
        metrics.requests[row.route, row.terminal].inc()
        metrics.requests_ended[code_label(row.code)].inc()
        self.answered(_ENDPOINT[row.route], row.status)
        for limit in row.limits_fired:
            self.limit_fired(limit)
        if row.tokenize_fallback:
            metrics.tokenize_fallback.inc()
        self._count_attempts(row)
        self._count_time(row)
        self._count_tokens(row)
        for listener in self._listeners:
            listener(row)

    def _count_attempts(self, row: RequestRow) -> None:
        for attempt in row.attempts:
            self.metrics.attempts[attempt.result].inc()
        self._attempts += len(row.attempts)
        retries = max(len(row.attempts) - 1, 0)
        if retries:
            self._retries += retries
            self.metrics.retries.inc(retries)

    def _count_time(self, row: RequestRow) -> None:
        metrics = self.metrics
        for phase, seconds in row.spent.items():
            if seconds > 0.0:
                metrics.phase_seconds[phase].inc(seconds)
        if row.queue_wait_s is not None:
            metrics.queue_wait.observe(row.queue_wait_s)
        if row.ttft_s is not None:
            metrics.ttft.observe(row.ttft_s)
        if row.prefill_ttft_s is not None:
            metrics.prefill_ttft.observe(row.prefill_ttft_s)
        if row.first_token_ttft_s is not None:
            metrics.first_token_ttft.observe(row.first_token_ttft_s)
        self._compare(row)
        if row.tpot_s is not None:
            metrics.tpot.observe(row.tpot_s)
            self._count_target(Target.TPOT, met=row.tpot_s <= self._tpot_s)
        if row.terminal is Terminal.COMPLETED:
            metrics.request.observe(row.request_s)

    def _compare(self, row: RequestRow) -> None:
        """TTFT with its target, and with what was projected, of the same stretch of time."""
        to_first_token = self._ttft_scope is TtftScope.FIRST_TOKEN
        actual = row.first_token_ttft_s if to_first_token else row.prefill_ttft_s
        if actual is None:
            return
        self._count_target(Target.TTFT, met=actual <= self._ttft_s)
        if row.projected_ttft_s and len(row.attempts) == 1:
            self.metrics.projection_ratio.observe(actual / row.projected_ttft_s)

    def _count_target(self, target: Target, *, met: bool) -> None:
        result = TargetResult.MET if met else TargetResult.MISSED
        self.metrics.target_results[target, result].inc()

    def _count_tokens(self, row: RequestRow) -> None:
        if row.prompt_tokens is not None and row.prefill_ttft_s is not None:
            self.metrics.tokens_prompt.inc(row.prompt_tokens)
        # While streaming, an event counts as a token; the engine's own count corrects that upward.
        uncounted = row.completion_tokens - row.tokens_counted
        if uncounted > 0:
            self.metrics.tokens_completion.inc(uncounted)

    # Everything else

    def answered(self, endpoint: Endpoint, status: int | None) -> None:
        """An HTTP answer on a route that is no completion; completions are counted as they end."""
        if status is None or status == CLIENT_GONE:
            kind = StatusClass.NONE
        else:
            kind = _CLASSES.get(status // 100, StatusClass.OTHER)
        self.metrics.http_responses[endpoint, kind].inc()

    def denied(self, door: Door, denial: Denial) -> None:
        """A request that came in by `door` was not let through."""
        self.metrics.denied[door, denial].inc()

    def client_limit_fired(self, door: Door, limit: ClientLimit) -> None:
        """A limit on one client fired at the listener of that name."""
        self.metrics.client_limits[door, limit].inc()

    def certificate_loaded(self, door: Door, expires_at: float) -> None:
        """The listener of that name shows a certificate until then, in Unix time."""
        self.metrics.certificate_expiry[door].set(expires_at)

    def limit_fired(self, limit: Limit) -> None:
        """A limit fired outside any request (a probe, a release leg); rows bring the others."""
        self._limits[limit] += 1
        self.metrics.limits_fired[limit].inc()

    def offered(self, *, sized: bool) -> None:
        """A request was put to admission, or (`sized` false) turned away before it was read."""
        self.metrics.offers.inc()
        if not sized:
            self.metrics.unsized_offers.inc()

    def refused(self, cause: Cause) -> None:
        """Predictive admission refused a request."""
        self.metrics.refusals[cause].inc()

    def unserved(self, phase: Phase) -> None:
        """A leg of `phase` goes to an engine where it is projected to miss its target."""
        self.metrics.unserved[phase].inc()

    def engine_failed(self, engine: str, failure: FailureClass) -> None:
        """A leg on `engine` failed; also where another attempt will make up for it."""
        self.metrics.engine_failures[engine, failure].inc()

    def engine_changed(self, change: Transition, *, ts: float) -> None:
        """An engine's state changed; `ts` is the time of day."""
        self.metrics.engine_transitions[change.iid, change.target].inc()
        for watcher in self._watchers:
            watcher(change)
        if self._journaled:
            self.journal.append_nowait(
                EngineRow(
                    ts=ts,
                    engine=change.iid,
                    source=change.source,
                    target=change.target,
                    cause=change.event,
                    reason=change.reason,
                )
            )

    def decided(self, decision: Decision) -> None:
        """Role control came to a decision."""
        self.metrics.role_gates[decision.gate].inc()
        self.metrics.role_decisions[decision.rule, decision.verdict].inc()
        if (flip := decision.made) is not None:
            self.metrics.role_moves[flip.iid, flip.to].inc()
        for watcher in self._role_watchers:
            watcher(decision)

    def watch_roles(self, watcher: Callable[[Decision], None]) -> None:
        """Have `watcher` called with every decision of role control, synchronously."""
        self._role_watchers.append(watcher)

    def role_row(self, decision: Decision, *, ts: float) -> None:
        """Put what was decided into the journal, if an engine moves or would; `ts`: time of day."""
        flip = decision.change
        if not self._journaled or flip is None:
            return
        self.journal.append_nowait(
            RoleRow(
                ts=ts,
                engine=flip.iid,
                to=flip.to,
                verdict=decision.verdict,
                rule=flip.rule,
                split=decision.split,
                proposed=flip.split,
                reason=decision.reason,
            )
        )

    def router_changed(self, change: Change, *, ts: float, reason: str = "") -> None:
        """The router as a whole changed; `ts` is the time of day."""
        if self._journaled:
            self.journal.append_nowait(RouterRow(ts=ts, change=change, reason=reason))

    def engine_restarted(self, engine: str) -> None:
        """Another process was found at the engine's address."""
        self.metrics.engine_restarts[engine].inc()

    def probed(self, probe: Probe, result: ProbeResult) -> None:
        """An engine was asked something on purpose."""
        self.metrics.probes[probe, result].inc()

    def waited_for_seat(self, phase: Phase, seconds: float) -> None:
        """A leg of `phase` had to wait for a seat, whether or not it got one."""
        self.metrics.seat_wait[phase].observe(seconds)

    def monitored(self, *, late_s: float, took_s: float, failed: bool) -> None:
        """The monitor made a pass, so long after it was due, and in so many seconds."""
        self.metrics.loop_lag.observe(late_s)
        self.metrics.monitor_pass.observe(took_s)
        result = PassResult.FAILED if failed else PassResult.PASSED
        self.metrics.monitor_passes[result].inc()

    def state_write_failed(self) -> None:
        """The state file could not be written."""
        self.metrics.state_write_errors.inc()

    def traces_exported(self, requests: int) -> None:
        """The spans of traced requests were sent."""
        self.metrics.traces_exported.inc(requests)

    def traces_dropped(self, requests: int) -> None:
        """The spans of traced requests are lost: the buffer was full, or nobody took them."""
        self.metrics.traces_dropped.inc(requests)

    def prefill_rejected(self) -> None:
        """An engine answered 4xx to a prefill leg, whose body the router had rewritten."""
        self.metrics.prefill_rewrite_rejected.inc()

    def handoff_rejected(self, *, missing: bool) -> None:
        """A prefill answered without a handoff, or with one that lacks something."""
        (self.metrics.handoff_missing if missing else self.metrics.handoff_incomplete).inc()

    def handoff_expired(self) -> None:
        """A handoff grew too old before a decoder had it."""
        self.metrics.handoff_expired.inc()

    def kv_released(self) -> None:
        """A release leg freed a handoff."""
        self._kv_released += 1
        self.metrics.kv_released.inc()

    def kv_orphaned(self, *, release_failed: bool) -> None:
        """A handoff stays on its producer until the lease ends: unsent release leg or failed."""
        self._kv_orphaned += 1
        self.metrics.kv_orphaned.inc()
        if release_failed:
            self.metrics.kv_release_failures.inc()

    # Documents

    def stop_row(self, *, ts: float, now: float) -> StopRow:
        """Return the row that closes the journal, about this run alone."""
        return StopRow(
            ts=ts,
            uptime_s=now - self._started,
            terminals={each: n - self._before[each] for each, n in self._terminals.items()},
            dropped=self.journal.dropped,
        )

    def state(self, now: float) -> bytes:
        """Return the state document as JSON."""
        document = state_document(
            version=self._version,
            model=self._model,
            slo=Targets(ttft_s=self._ttft_s, ttft_scope=self._ttft_scope, tpot_s=self._tpot_s),
            uptime_s=now - self._started,
            live=self._live(),
            totals=self.totals(),
            recent=reversed(self._recent),
        )
        return encode_state(document)

    def _live(self) -> LiveState:
        return LiveState() if self._source is None else self._source.live_state()

    def _readings(self) -> Readings:
        readings = live_readings(self._live())
        readings["requests_in_flight"] = {(): self.in_flight}
        readings["journal_dropped_total"] = {(): self.journal.dropped}
        if self._file is not None:
            readings["journal_write_errors_total"] = {(): self._file.errors}
        return readings
