"""One attempt: a whole prefill and decode, with ids and a handoff of its own."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

import attrs
import trio

from narwhal.engine import Correlation
from narwhal.model import (
    EngineError,
    EngineStatus,
    Failure,
    FailureClass,
    HandoffRejected,
    Limit,
    LocalError,
    Phase,
    StreamCommit,
)
from narwhal.router.decode import DecodeRun, HandoffAged
from narwhal.router.failures import from_error, from_limit
from narwhal.router.releases import HeldHandoff
from narwhal.wire import vllm

if TYPE_CHECKING:
    from collections.abc import Mapping

    from narwhal.router.core import Core
    from narwhal.router.life import RequestLife
    from narwhal.router.seats import Place


@attrs.define
class AttemptTimes:
    """What an attempt has come to, for the journal: engines, and times in seconds."""

    n: int
    prefill: str | None = None
    decode: str | None = None
    prefill_s: float | None = None
    handoff_age_s: float | None = None
    first_token_s: float | None = None


@attrs.frozen
class Prefilled:
    """The result of a prefill leg."""

    started: float
    """When its HTTP request began: a handoff's age is counted from here."""
    answered: float
    held: HeldHandoff | None
    """None: the engine gave no handoff, and `engine.require_handoff` lets that pass."""
    template: Mapping[str, object] | None


class Attempt:
    """Runs one attempt of a request.

    Guarantee: whatever ends it, when `run` is left both places are given back, no engine leg is
    open, and a handoff that no decoder has accepted is on its way to being released.
    """

    def __init__(self, life: RequestLife, n: int) -> None:
        self.life = life
        self.core: Core = life.core
        self.times = AttemptTimes(n)
        self._ids = f"{life.request_id}-{n}"

    def correlation(self, leg: str) -> Correlation:
        """Fresh ids for a leg of this attempt."""
        return Correlation(f"{self._ids}-{leg}", self.life.traceparent)

    async def run(self) -> Failure | None:
        """Run both legs; None once the client has its whole answer."""
        if not self.core.splits:
            return await self._run_whole()
        prefilled = await self._prefill()
        if isinstance(prefilled, Failure):
            return prefilled
        held = prefilled.held
        run = DecodeRun(self, handoff=held.handoff if held else None, template=prefilled.template)
        try:
            return await self._decode(prefilled, run)
        finally:
            if held is not None and run.strands_handoff:
                self.core.releases.abandon(held, avoid=self.times.decode)

    # Prefill

    async def _prefill(self) -> Prefilled | Failure:
        core, life = self.core, self.life
        life.watch.enter(Phase.PREFILL, trio.current_time())
        desk = core.desks[Phase.PREFILL]
        place = await desk.take(lambda: core.pick(Phase.PREFILL, life.avoid), life.prompt_tokens)
        with place:
            self.times.prefill = place.iid
            started = trio.current_time()
            with trio.CancelScope(deadline=started + core.config.serving.prefill_timeout_s):
                try:
                    body = await core.engines[place.iid].prefill(
                        life.request.route,
                        vllm.prefill_body(life.request),
                        self.correlation("prefill"),
                    )
                    return self._prefilled(body, place, started)
                except (EngineError, LocalError) as error:
                    return self._prefill_failed(error, place.iid)
            return self._timed_out(Limit.PREFILL, Phase.PREFILL, place.iid)

    def _prefilled(self, body: bytes, place: Place, started: float) -> Prefilled:
        now = trio.current_time()
        self.times.prefill_s = now - started
        held, template = None, None
        try:
            answer = vllm.parse_prefill(body, whole=not self.life.request.stream)
        except HandoffRejected as error:
            self.core.telemetry.handoff_rejected(missing=error.missing)
            if not error.missing or self.core.config.engine.require_handoff:
                raise
        else:
            template = answer.template
            self.life.counted_by_engine(answer.prompt_tokens)
            held = HeldHandoff(
                handoff=answer.handoff,
                producer=place.iid,
                tokens=self.life.prompt_tokens,
                lease_ends=now + self.core.config.engine.kv_lease_s,
                correlation=self.correlation("release"),
            )
        self.core.trust.succeeded(place.iid, Phase.PREFILL)
        self.life.prefill_ended(now)
        return Prefilled(started=started, answered=now, held=held, template=template)

    def _prefill_failed(self, error: EngineError | LocalError, iid: str) -> Failure:
        failure = self._failed(error, Phase.PREFILL, iid)
        if failure.failure is FailureClass.NEUTRAL and isinstance(error, EngineStatus):
            # Either the client's mistake, or ours: the body was rewritten on the way.
            self.core.telemetry.prefill_rejected()
        return failure

    # Decode

    async def _decode(self, prefilled: Prefilled, run: DecodeRun) -> Failure | None:
        core, life = self.core, self.life
        life.watch.enter(Phase.HANDOFF, trio.current_time())
        if life.request.stream and core.config.serving.stream_commit is StreamCommit.BEFORE_DECODE:
            await life.reply.commit()
        expires = self._handoff_expires(prefilled) if prefilled.held else inf
        avoid = life.avoid | {prefilled.held.producer} if prefilled.held else life.avoid
        with trio.CancelScope(deadline=expires) as handoff:
            desk = core.desks[Phase.DECODE]
            place = await desk.take(lambda: core.pick(Phase.DECODE, avoid), life.prompt_tokens)
            with place:
                self.times.decode = place.iid
                try:
                    return await run.run(place.iid, handoff, started=prefilled.started)
                except HandoffAged:
                    pass  # the age was checked where it counts, a moment before the scope saw it
                except (EngineError, LocalError) as error:
                    return self._failed(error, Phase.DECODE, place.iid, run)
        core.telemetry.handoff_expired()
        return self._timed_out(Limit.HANDOFF, Phase.HANDOFF, None)

    def _handoff_expires(self, prefilled: Prefilled) -> float:
        cap = self.core.config.serving.handoff_timeout_s
        capped = prefilled.started + cap if cap else inf
        # The producer counts its lease from its answer, which we saw a little later.
        return min(capped, prefilled.answered + self.core.config.engine.kv_lease_s)

    async def _run_whole(self) -> Failure | None:
        """Both phases on one engine: one plain leg, no handoff.

        Its first token ends the prefill, so both limits cover the time up to it.
        """
        core, life = self.core, self.life
        life.watch.enter(Phase.PREFILL, trio.current_time())
        desk = core.desks[Phase.PREFILL]
        place = await desk.take(lambda: core.pick(Phase.PREFILL, life.avoid), life.prompt_tokens)
        with place:
            self.times.prefill = self.times.decode = place.iid
            run = DecodeRun(self, handoff=None, template=None)
            started = trio.current_time()
            with trio.CancelScope(
                deadline=started + core.config.serving.prefill_timeout_s
            ) as limit:
                try:
                    return await run.run(place.iid, limit, started=started)
                except (EngineError, LocalError) as error:
                    return self._failed(error, Phase.DECODE, place.iid, run)
            return self._timed_out(Limit.PREFILL, Phase.PREFILL, place.iid)

    # Failures

    def _failed(
        self,
        error: EngineError | LocalError,
        phase: Phase,
        iid: str,
        run: DecodeRun | None = None,
    ) -> Failure:
        failure = from_error(self.core.config, error, phase=phase, engine=iid)
        self.core.blame(iid, phase, failure.failure, failure.retry_after)
        visible = run is not None and run.visible
        return attrs.evolve(failure, visible=True) if visible else failure

    def _timed_out(self, limit: Limit, phase: Phase, iid: str | None) -> Failure:
        failure = from_limit(self.core.config, limit, phase=phase, engine=iid)
        if iid is not None:
            self.core.blame(iid, phase, failure.failure)
        return failure
