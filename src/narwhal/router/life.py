"""The life of one request, from the head read to its one terminal."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import trio

from narwhal.model import (
    ClientError,
    Outcome,
    Phase,
    Stopwatch,
    Terminal,
    TtftScope,
)
from narwhal.retry import NoRetry
from narwhal.router import outcomes
from narwhal.router.admit import admit
from narwhal.router.attempt import Attempt
from narwhal.router.record import Record
from narwhal.router.sizing import size_prompt
from narwhal.telemetry import AttemptResult
from narwhal.wire import openai

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from narwhal.fleet import Reservation
    from narwhal.model import Failure, Route
    from narwhal.router.core import Core
    from narwhal.router.reply import Reply
    from narwhal.wire.assembly import Assembler
    from narwhal.wire.decode import DecodeStream
    from narwhal.wire.openai import CompletionRequest
    from narwhal.wire.trace_context import TraceContext

    Ingress = Callable[[], Awaitable[CompletionRequest]]

logger = logging.getLogger(__name__)

# After a request's own deadline there is still an error to be told. A client that reads takes
# microseconds for it; one that does not is cut off after this. It is the clean-up grace that
# every bound on a request's lifetime includes.
RESPOND_BOUND_S = 1.0


class RequestLife:
    """Serves one request.

    Guarantees, whatever ends it: exactly one terminal is recorded; when `run` is left the
    request holds no seat, place, reservation or engine connection; it is left at the latest
    `RESPOND_BOUND_S` after the deadline `arrival + serving.request_timeout_s`.

    `run` belongs to one task. `client_gone`, `turned_away` and `shut_down` may be called from any
    other.
    """

    def __init__(
        self,
        core: Core,
        route: Route,
        *,
        arrival: float,
        client_id: str | None = None,
        context: TraceContext | None = None,
        http: bool = False,
    ) -> None:
        self.core = core
        self.route = route
        self.reply: Reply
        self.arrival = arrival
        self.deadline = arrival + core.config.serving.request_timeout_s
        self.request_id = core.new_id()
        self.http = http
        self.trace = None if core.tracing is None else core.tracing.begin(context)
        self._context = context
        self.watch = Stopwatch(arrival)
        self.record = Record(client_id=client_id)
        self.request: CompletionRequest
        self.prompt_tokens = 0
        self.output_tokens = 0
        """Tokens that its answer is expected to have, once the prompt's size is known."""
        self.whole = False
        """Whether one engine runs both phases of the first attempt."""
        self.expected_decode: Reservation | None = None
        """The claim of its decode while that has no engine."""
        self.avoid: frozenset[str] = frozenset()
        self._scope = trio.CancelScope(deadline=self.deadline)
        self._telling = trio.CancelScope()
        self._stopped: Outcome | None = None
        self._gone = False
        self._retained = False
        self._owed_credit = False
        self._outcome: Outcome | None = None

    def context_of(self, n: int, leg: str) -> TraceContext | None:
        """The trace context that a leg of attempt `n` is sent with."""
        return self._context if self.trace is None else self.trace.context_of(n, leg)

    # Ended from outside

    def client_gone(self) -> None:
        """The client left: end the request now. A call after its end does nothing."""
        self._gone = True
        self._stop(outcomes.client_closed(), "the client closed the connection")

    def turned_away(self, status: int) -> None:
        """The server could not read the body to its end, and answered `status` itself."""
        self._gone = True
        self._stop(outcomes.unreadable(status), "the body cannot be read")

    def shut_down(self) -> None:
        """The router stops waiting for this request: end it with an error that says so."""
        self._stop(outcomes.shut_down(self.core.config), "the router is shutting down")

    def spoil(self, outcome: Outcome) -> None:
        """What was handed over turned out to be worthless: end the request as `outcome` says."""
        self._stop(outcome, "its output is worthless")

    def cut(self) -> None:
        """Stop waiting for the client to take its error: close the connection instead."""
        self._telling.cancel(reason="the router is gone")

    def _stop(self, outcome: Outcome, reason: str) -> None:
        # A deadline that fires in the middle of a write closes the connection, and that brings
        # the news that the client is gone: the deadline was first.
        if self._stopped is None and self._outcome is None and not self._scope.cancel_called:
            self._stopped = outcome
            self._scope.cancel(reason=reason)

    # The whole

    async def run(self, reply: Reply, ingress: Ingress) -> Outcome:
        """Serve the request that `ingress` reads, and write its answer to `reply`.

        Cancelling it is how an embedding application ends a request; it is recorded as
        `cancelled`, and everything is given back before `Cancelled` leaves.
        """
        core = self.core
        self.reply = reply
        core.lives.add(self)
        core.telemetry.request_started(self.route)
        outcome = outcomes.caller_cancelled()
        try:
            with self._scope:
                outcome = await self._serve(ingress)
            if self._scope.cancelled_caught:
                outcome = self._stopped or outcomes.request_expired(
                    core.config, committed=self.reply.committed
                )
            self._outcome = outcome
            if outcome.terminal is not Terminal.COMPLETED:
                await self._tell(outcome)
        finally:
            if self._outcome is None and self._stopped is not None:
                outcome = self._stopped  # and then it was cancelled from further out as well
            if self._retained:
                core.forget()
            core.lives.remove(self)
            self._account(outcome)
            # The two refer to each other; apart, their memory is free now and not some day.
            del self.reply
        return outcome

    async def _serve(self, ingress: Ingress) -> Outcome:
        core = self.core
        if core.draining or core.degraded or not core.retain_nowait():
            core.telemetry.offered(sized=False)
            core.controller.unsized(core.now())
            if core.draining:
                return outcomes.draining()
            if core.degraded:
                return outcomes.degraded()
            return outcomes.retention_full(core.config, core.drain_seconds())
        self._retained = True
        try:
            self.request = await ingress()
            self.record.request = self.request
            # A client that sent its request and left has a moment to be noticed in.
            await trio.lowlevel.checkpoint()
            await size_prompt(self)
            return await self._admitted()
        except ClientError as error:
            return outcomes.client_error(error)
        except Exception:
            logger.exception("request %s failed inside the router", self.request_id)
            return outcomes.internal_error()

    async def _tell(self, outcome: Outcome) -> None:
        """Write the error, if there is anybody to read it."""
        self.watch.enter(Phase.RESPOND, self.core.now())
        if outcome.terminal is Terminal.CANCELLED:
            self.reply.abort()
            return
        tell = openai.error_event if self.reply.committed else openai.error_body
        error = tell(
            outcome,
            request_id=self.request_id,
            attempts=len(self.record.attempts),
            spent=self.watch.spent(self.core.now()),
        )
        self._telling.deadline = self.core.now() + RESPOND_BOUND_S
        with self._telling:
            await self.reply.fail(outcome, error)
        if self._telling.cancelled_caught:
            self.reply.abort()

    def _account(self, outcome: Outcome) -> None:
        now = self.core.now()
        row = self.record.row(
            outcome,
            request_id=self.request_id,
            route=self.route,
            arrival=self.arrival,
            spent=self.watch.spent(now),
            ts=self.core.wall_clock(),
            prompt_tokens=self.prompt_tokens,
            committed=self.reply.committed,
        )
        self.core.telemetry.request_ended(row)
        if self.core.tracing is not None:
            self.core.tracing.ended(self, row)

    # Admission and attempts

    def counted_by_engine(self, tokens: int | None) -> None:
        """An engine, or the client's own token ids, say how long the prompt is."""
        if tokens is not None:
            self.prompt_tokens = tokens
            self.record.prompt_exact = True

    async def _admitted(self) -> Outcome:
        core = self.core
        core.telemetry.offered(sized=True)
        self.output_tokens = core.prices.output.expected(self.request.max_tokens)
        core.controller.offered(self.prompt_tokens, self.output_tokens, core.now())
        refused = await admit(self)
        if refused is not None:
            return refused
        begun = core.now()
        try:
            outcome = await self._attempts()
        finally:
            core.queue.leave()
        if outcome.terminal is Terminal.COMPLETED:
            core.service.served(core.now() - begun)
        return outcome

    async def _attempts(self) -> Outcome:
        core = self.core
        n = 1
        while True:
            attempt = Attempt(self, n)
            result, failure = AttemptResult.ABANDONED, None
            try:
                failure = await attempt.run()
                result = AttemptResult.COMPLETED if failure is None else AttemptResult.FAILED
            finally:
                self.record.attempted(attempt.times, result, failure)
                self._settle_credit()
            if failure is None:
                core.credits.succeeded()
                return outcomes.completed()
            self.avoid |= {
                iid for iid in (failure.engine, attempt.times.prefill) if iid is not None
            }
            if not await self._retry(failure, n):
                return outcomes.failed(failure, attempt=n, max_attempts=core.retry.max_attempts)
            n += 1

    async def _retry(self, failure: Failure, n: int) -> bool:
        """Wait out the back-off if there is to be another attempt; whether there is."""
        core = self.core
        now = core.now()
        pause = failure.retry_after or 0.0
        if pause and core.roster.alternatives(failure.phase, self.avoid):
            pause = 0.0
        decision = core.retry.decide(
            failure,
            attempt=n,
            retry_credits=core.credits,
            now=now,
            deadline=self.deadline,
            rng=core.rng,
            floor_s=pause,
        )
        if isinstance(decision, NoRetry):
            return False
        self.watch.enter(Phase.BACKOFF, now)
        self._owed_credit = True
        try:
            await trio.sleep(decision.delay)
        except trio.Cancelled:
            self._settle_credit()
            raise
        return True

    def _settle_credit(self) -> None:
        """Give the credit of a retry back if the retry was never dispatched."""
        if self._owed_credit:
            self._owed_credit = False
            self.core.credits.give_back()

    # What the legs report

    def dispatched(self) -> None:
        """The attempt goes to an engine: a retry has now cost its credit."""
        self._owed_credit = False

    def prefill_ended(self, now: float) -> None:
        """A prefill answered."""
        self.record.prefill_ttft_s = ttft = now - self.arrival
        self._turned_out(TtftScope.PREFILL, ttft)

    def first_token(self, now: float, *, whole: bool) -> None:
        """The engine generated its first token; in a plain leg that ends the prefill."""
        if whole:
            self.prefill_ended(now)
        self.record.first_token_at = now
        self.record.first_token_ttft_s = ttft = now - self.arrival
        self._turned_out(TtftScope.FIRST_TOKEN, ttft)

    def _turned_out(self, scope: TtftScope, ttft_s: float) -> None:
        """Compare with what was projected, if the projection was of that and the first attempt."""
        projected = self.record.projected_ttft_s
        if scope is self.core.config.slo.ttft_scope and projected and not self.record.attempts:
            self.core.prices.turned_out(projected, ttft_s)

    async def write(self, out: bytes) -> None:
        """Send complete events on, waiting for the client if need be."""
        await self.reply.write(out)
        if self.record.ttft_s is None:
            self.record.ttft_s = self.core.now() - self.arrival

    @property
    def tokens_told(self) -> int:
        """Tokens of the present attempt that the metrics know of."""
        return self.record.tokens_counted

    def count_tokens(self, tokens: int) -> None:
        """Tell the metrics that `tokens` were generated so far in this attempt."""
        record = self.record
        self.core.telemetry.metrics.tokens_completion.inc(tokens - record.tokens_counted)
        record.tokens_counted = tokens

    async def complete(self, answer: bytes, sink: DecodeStream | Assembler) -> None:
        """Send the last of the answer, or all of one that was assembled."""
        now = self.core.now()
        record = self.record
        record.finished(now, sink.tokens, sink.usage)
        self.core.prices.output.delivered(self.request.max_tokens, record.completion_tokens)
        if sink.usage is not None:
            self.counted_by_engine(sink.usage.prompt_tokens)
        self.watch.enter(Phase.RESPOND, now)
        await self.reply.complete(answer, stream=self.request.stream)
        if self._gone:
            # A write to a client that has left is no error, but it is no answer either.
            await trio.lowlevel.checkpoint()
        if record.ttft_s is None:
            record.ttft_s = self.core.now() - self.arrival
