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
    NoEngine,
    Phase,
    StreamCommit,
)
from narwhal.router.decode import DecodeRun, HandoffAged
from narwhal.router.failures import from_error, from_limit, handoff_expired
from narwhal.router.releases import HeldHandoff
from narwhal.wire import vllm

if TYPE_CHECKING:
    from collections.abc import Mapping

    from narwhal.engine import PrefillReply
    from narwhal.placement import Choice
    from narwhal.router.core import Core
    from narwhal.router.life import RequestLife
    from narwhal.router.seats import Place
    from narwhal.wire.vllm import Handoff


@attrs.define
class AttemptTimes:
    """What an attempt has come to, for the journal: engines, and times in seconds."""

    n: int
    prefill: str | None = None
    prefill_choice: Choice | None = None
    decode: str | None = None
    decode_choice: Choice | None = None
    prefill_s: float | None = None
    handoff_age_s: float | None = None
    first_token_s: float | None = None

    def prefill_placed(self, place: Place) -> None:
        """The prefill goes there."""
        self.prefill, self.prefill_choice = place.iid, place.choice

    def decode_placed(self, place: Place) -> None:
        """The decode goes there."""
        self.decode, self.decode_choice = place.iid, place.choice


@attrs.frozen
class Prefilled:
    """The result of a prefill leg."""

    started: float
    """When its HTTP request began: a handoff's age is counted from here."""
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
        self._pinned_at: float | None = None
        """When the producer began to hold KV cache of which nobody has given account yet."""
        self._has_slot = False
        self._unplaced = False
        self._holder: str | None = None
        """The engine that keeps a KV cache for this attempt's decode."""

    def correlation(self, leg: str) -> Correlation:
        """Fresh ids for a leg of this attempt."""
        return Correlation(f"{self._ids}-{leg}", self.life.context_of(self.times.n, leg))

    def wants_slot(self) -> None:
        """A leg begins, and first of all has to get hold of a connection."""
        self._has_slot = False

    def got_slot(self) -> None:
        """It need not wait for the router's own want of connections any more."""
        self._has_slot = True

    async def run(self) -> Failure | None:
        """Run both legs; None once the client has its whole answer."""
        core, life = self.core, self.life
        try:
            if not core.roster.splits or (life.whole and self.times.n == 1):
                return await self._run_whole()
            core.expect_decode(life)
            self._decode_to_come(here=True)
            try:
                return await self._run_split()
            finally:
                self._pulled()
                self._decode_to_come(here=False)
                core.decode_placed(life)
        except NoEngine as error:  # for whichever leg it was wanted
            return from_error(core.config, error, phase=life.watch.phase, engine="")

    async def _run_split(self) -> Failure | None:
        prefilled = await self._prefill()
        if isinstance(prefilled, Failure):
            return prefilled
        held, template = prefilled.held, prefilled.template
        if held is None:
            run = DecodeRun(self, handoff=None, template=template)
        else:
            run = DecodeRun(
                self, handoff=held.handoff, lease_ends=held.lease_ends, template=template
            )
        try:
            return await self._decode(prefilled, run)
        finally:
            if held is not None and run.strands_handoff:
                self.core.releases.abandon(held, avoid=self.times.decode)

    # Prefill

    async def _prefill(self) -> Prefilled | Failure:
        core, life = self.core, self.life
        life.watch.enter(Phase.PREFILL, self.core.now())
        place = core.take_nowait(Phase.PREFILL, life, life.avoid)
        with place or await core.take(Phase.PREFILL, life, life.avoid) as place:
            self.times.prefill_placed(place)
            life.dispatched()
            started = self.core.now()
            self.wants_slot()
            try:
                with trio.CancelScope(deadline=started + core.config.serving.prefill_timeout_s):
                    return await self._prefill_on(place, started)
                return self.timed_out(Limit.PREFILL, Phase.PREFILL, place.iid)
            finally:
                self._give_up_pinned(place)

    async def _prefill_on(self, place: Place, started: float) -> Prefilled | Failure:
        life = self.life
        try:
            answer = await self.core.engines[place.iid].prefill(
                life.request.route,
                vllm.prefill_body(life.request),
                self.correlation("prefill"),
                on_answer=self._pinned,
                on_late=lambda reply: self._prefilled_late(reply, place),
                on_slot=self.got_slot,
            )
            return self._prefilled(answer, place, started)
        except (EngineError, LocalError) as error:
            return self._prefill_failed(error, place.iid)

    def _pinned(self, answered: float) -> None:
        self._pinned_at = answered

    def _give_up_pinned(self, place: Place) -> None:
        """Account for KV cache that is pinned under a name that was never learned.

        The answer broke off, or could not be understood: only the lease will free it.
        """
        if self._pinned_at is not None:
            self.core.releases.lost(
                place.iid, self.life.prompt_tokens, lease_ends=self._lease_ends(self._pinned_at)
            )

    def _lease_ends(self, answered: float) -> float:
        """When the producer frees it by itself: it counts from when it began to answer."""
        return answered + self.core.config.engine.kv_lease_s

    def _prefilled(self, reply: PrefillReply, place: Place, started: float) -> Prefilled:
        now = self.core.now()
        self.times.prefill_s = now - started
        held, template = None, None
        try:
            answer = vllm.parse_prefill(reply.body, whole=not self.life.request.stream)
        except HandoffRejected as error:
            self.core.telemetry.handoff_rejected(missing=error.missing)
            if error.missing:
                self._pinned_at = None  # nothing was kept for a decoder
            if not error.missing or self.core.config.engine.require_handoff:
                raise
        else:
            template = answer.template
            self.life.counted_by_engine(answer.prompt_tokens)
            held = self._held(answer.handoff, reply, place)
            self._holder = place.iid
            self.core.handing_over[place.iid] += 1
        self.core.roster.succeeded(place.iid, Phase.PREFILL)
        place.done()
        self.life.prefill_ended(now)
        return Prefilled(started=started, held=held, template=template)

    def _held(self, handoff: Handoff, reply: PrefillReply, place: Place) -> HeldHandoff:
        self._pinned_at = None
        return HeldHandoff(
            handoff=handoff,
            producer=place.iid,
            tokens=self.life.prompt_tokens,
            lease_ends=self._lease_ends(reply.answered),
            correlation=self.correlation("release"),
        )

    def _decode_to_come(self, *, here: bool) -> None:
        """Whether its decode has yet to find an engine."""
        self.core.decodes_to_come += here - self._unplaced
        self._unplaced = here

    def _pulled(self) -> None:
        """The producer need not keep the cache any longer: a decoder has it, or nobody will."""
        if self._holder is not None:
            self.core.handing_over[self._holder] -= 1
            self._holder = None

    def _prefilled_late(self, reply: PrefillReply, place: Place) -> None:
        """The request ended in the moment in which its prefill was answered."""
        try:
            handoff = vllm.parse_prefill(reply.body, whole=False).handoff
        except EngineError:
            return  # nothing that could be released by its name
        self.core.releases.abandon(self._held(handoff, reply, place), avoid=None)

    def _prefill_failed(self, error: EngineError | LocalError, iid: str) -> Failure:
        failure = self._failed(error, Phase.PREFILL, iid)
        if failure.failure is FailureClass.NEUTRAL and isinstance(error, EngineStatus):
            # Either the client's mistake, or ours: the body was rewritten on the way.
            self.core.telemetry.prefill_rejected()
        return failure

    # Decode

    async def _decode(self, prefilled: Prefilled, run: DecodeRun) -> Failure | None:
        core, life = self.core, self.life
        life.watch.enter(Phase.HANDOFF, self.core.now())
        if life.request.stream and core.config.serving.stream_commit is StreamCommit.BEFORE_DECODE:
            await life.reply.commit()
        expires = self._handoff_expires(prefilled)
        avoid = life.avoid | {prefilled.held.producer} if prefilled.held else life.avoid
        place: Place | None = None
        try:
            place = core.take_nowait(Phase.DECODE, life, avoid)
            if place is None:
                # Only now: a scope costs as much as a choice, and mostly nothing is waited for.
                with trio.CancelScope(deadline=expires):
                    place = await core.take(Phase.DECODE, life, avoid)
            if place is None:
                return self._handoff_aged(prefilled, run)
            core.decode_placed(life)
            self._decode_to_come(here=False)
            self.times.decode_placed(place)
            failure = await run.dispatch(place.iid, started=prefilled.started, expires=expires)
            out = failure or await run.first_token()
            self._pulled()
            return out if isinstance(out, Failure) else await run.rest(out)
        except HandoffAged:
            return self._handoff_aged(prefilled, run)
        except (EngineError, LocalError) as error:
            return self._decode_failed(error, run)
        finally:
            run.close()
            if place is not None:
                place.release()

    def _handoff_expires(self, prefilled: Prefilled) -> float:
        if prefilled.held is None:
            return inf
        return min(prefilled.held.lease_ends, self._capped(prefilled))

    def _capped(self, prefilled: Prefilled) -> float:
        cap = self.core.config.serving.handoff_timeout_s
        return prefilled.started + cap if cap else inf

    def _handoff_aged(self, prefilled: Prefilled, run: DecodeRun) -> Failure:
        self.core.telemetry.handoff_expired()
        by_cap = not run.sent and self._capped(prefilled) <= self._handoff_expires(prefilled)
        return handoff_expired(self.core.config, by_cap=by_cap)

    async def _run_whole(self) -> Failure | None:
        """Both phases on one engine: one plain leg, no handoff.

        It holds a decode place throughout, and a prefill place up to its first token, which ends
        the prefill: so both limits cover the time up to there.
        """
        core, life = self.core, self.life
        life.watch.enter(Phase.PREFILL, self.core.now())
        run = DecodeRun(self, handoff=None, template=None)
        place = await core.take(Phase.DECODE, life, life.avoid, whole=True)
        try:
            self.times.prefill_placed(place)
            self.times.decode_placed(place)
            out = await self._prefill_whole(run, place.iid)
            return out if isinstance(out, Failure) else await run.rest(out)
        except (EngineError, LocalError) as error:
            return self._decode_failed(error, run)
        finally:
            run.close()
            place.release()

    async def _prefill_whole(self, run: DecodeRun, iid: str) -> bytes | Failure:
        core = self.core
        with await core.take_on(iid, Phase.PREFILL, self.life) as place:
            self.life.dispatched()
            started = self.core.now()
            with trio.CancelScope(
                deadline=started + core.config.serving.prefill_timeout_s
            ) as limit:
                failure = await run.dispatch(iid, started=started, expires=inf)
                out = failure or await run.first_token()
                if isinstance(out, bytes):
                    place.done()
                return out
            assert limit.cancelled_caught  # noqa: S101 - for the type checker
            return self.timed_out(Limit.PREFILL, Phase.PREFILL, iid)

    # Failures

    def _decode_failed(self, error: EngineError | LocalError, run: DecodeRun) -> Failure:
        failure = self._failed(error, Phase.DECODE, self.times.decode or "")
        return attrs.evolve(failure, visible=run.visible)

    def _failed(self, error: EngineError | LocalError, phase: Phase, iid: str) -> Failure:
        failure = from_error(self.core.config, error, phase=phase, engine=iid)
        self.core.blame(iid, phase, failure.failure, failure.retry_after)
        return failure

    def timed_out(self, limit: Limit, phase: Phase, iid: str) -> Failure:
        """A limit ended the leg; the engine's fault, unless the leg still wanted a connection."""
        failure = from_limit(self.core.config, limit, phase=phase, engine=iid)
        if not self._has_slot:
            failure = attrs.evolve(failure, failure=FailureClass.LOCAL)
        self.core.blame(iid, phase, failure.failure)
        return failure
