"""The decode leg: dispatch, first token, relay or assembly."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

import attrs
import trio

from narwhal.model import EngineError, Failure, Limit, Phase
from narwhal.router.failures import from_limit
from narwhal.wire import vllm
from narwhal.wire.assembly import Assembler
from narwhal.wire.decode import DecodeStream

if TYPE_CHECKING:
    from collections.abc import Mapping

    from narwhal.engine import DecodeLeg
    from narwhal.router.attempt import Attempt
    from narwhal.wire.vllm import Handoff


# A counter that lags by this much is live enough, and the relay has it for nothing.
_TOKENS_AT_ONCE = 64


class HandoffAged(Exception):
    """The handoff was too old at the moment its decode request would have been written."""


class DecodeRun:
    """Runs one decode leg.

    `visible` is whether the client was sent output; `strands_handoff` whether the handoff it
    was given may still be pinned on its producer, because no decoder took it.
    """

    def __init__(
        self,
        attempt: Attempt,
        *,
        handoff: Handoff | None,
        template: Mapping[str, object] | None,
    ) -> None:
        self.attempt = attempt
        self.life = attempt.life
        self.core = attempt.core
        self.handoff = handoff
        self.visible = False
        self._leg: DecodeLeg | None = None
        self._refused = False
        request = self.life.request
        most = self.core.config.serving.max_response_bytes
        self._sink: DecodeStream | Assembler
        if request.stream:
            self._sink = DecodeStream(
                route=request.route, strip_usage=not request.include_usage, max_held=most
            )
        else:
            self._sink = Assembler(route=request.route, template=template, max_bytes=most)

    @property
    def strands_handoff(self) -> bool:
        """Whether a release leg is due.

        A decoder that answered 200 owns the handoff. One that was written to and then left by
        us (the client went, a deadline passed) frees the producer as it aborts.
        """
        return self.handoff is not None and (self._leg is None or self._refused)

    async def run(self, iid: str, before: trio.CancelScope, *, started: float) -> Failure | None:
        """Dispatch and finish one leg on `iid`; None once the client has its whole answer.

        `before` is the limit that ends with the dispatch (of a handoff) or with the first token
        (of a plain leg): its deadline is moved out of the way then. Raises what the engine
        client and the stream raise.
        """
        config = self.core.config
        begun = trio.current_time()
        try:
            with trio.CancelScope(deadline=begun + config.engine.first_token_timeout_s) as limit:
                leg = self._leg = await self._dispatch(iid, before)
                out = await self._first_token(leg, before, started)
            if limit.cancelled_caught:
                return self._timed_out(Limit.FIRST_TOKEN, iid)
            before.deadline = inf
            now = trio.current_time()
            self.attempt.times.first_token_s = now - begun
            self.life.first_token(now, whole=self.handoff is None)
            return await self._rest(iid, leg, out)
        except EngineError:
            self._refused = self._leg is None or not self._leg.accepted
            raise
        finally:
            if self._leg is not None:
                self._leg.close()

    async def _first_token(self, leg: DecodeLeg, before: trio.CancelScope, started: float) -> bytes:
        now = trio.current_time()
        self.life.watch.enter(Phase.DECODE, now)
        if self.handoff is not None:
            before.deadline = inf
            self.attempt.times.handoff_age_s = now - started
        await leg.head()
        sink = self._sink
        out = b""
        while not sink.first_token:
            out = await self._read(leg)
        return out

    async def _dispatch(self, iid: str, before: trio.CancelScope) -> DecodeLeg:
        def check_age() -> None:
            if self.handoff is not None and trio.current_time() >= before.deadline:
                raise HandoffAged

        life = self.life
        body = vllm.decode_body(life.request, self.handoff)
        correlation = self.attempt.correlation("decode")
        return await self.core.engines[iid].dispatch_decode(
            life.request.route, body, correlation, before_write=check_age
        )

    async def _read(self, leg: DecodeLeg) -> bytes:
        """One read, through the sink; what may be sent on. Raises what the sink found wrong."""
        data = await leg.read()
        if not data:
            self._sink.finish()  # raises: the stream is not done
        out = self._sink.feed(data)
        if self._sink.error is not None and not out:
            raise self._sink.error
        return out

    async def _rest(self, iid: str, leg: DecodeLeg, out: bytes) -> Failure | None:
        """Everything after the first token: no limit but the request's covers the writes."""
        sink, life = self._sink, self.life
        while not sink.done:
            if out:
                self.visible = True
                await life.write(out)
                life.count_tokens(sink.tokens)
            if sink.error is not None:
                raise sink.error
            relayed = await self._relay(leg)
            if relayed is None:
                failure = self._timed_out(Limit.READ_GAP, iid)
                return attrs.evolve(failure, visible=self.visible)
            out = relayed
        answer = sink.finish() if isinstance(sink, Assembler) else out
        await life.complete(answer, sink)
        self.core.trust.succeeded(iid, Phase.DECODE)
        self._see_off(leg)
        return None

    async def _relay(self, leg: DecodeLeg) -> bytes | None:
        """Relay for as long as nothing but the engine has to be waited for.

        Returns what is still to be written once the stream is done, has failed, or has outrun
        its reader; None once the engine was silent for `engine.decode_read_timeout_s`.

        The gap limit is one scope for many reads. Moving its deadline for each would cost more
        than the rest of this loop, so it may fire early; the time of the last chunk decides.
        """
        sink, life, current_time = self._sink, self.life, trio.current_time
        read, feed, write_nowait = leg.read, sink.feed, life.reply.write_nowait
        gap_s = self.core.config.engine.decode_read_timeout_s or inf
        heard = current_time()
        while True:
            outrun = False
            with trio.CancelScope(deadline=heard + gap_s):
                while not outrun:
                    data = await read()
                    heard = current_time()
                    if not data:
                        sink.finish()  # raises: the stream is not done
                    out = feed(data)
                    if sink.done or sink.error is not None:
                        return out
                    if out:
                        outrun = not write_nowait(out)
                        if sink.tokens >= life.tokens_told + _TOKENS_AT_ONCE:
                            life.count_tokens(sink.tokens)
            if outrun:
                await life.reply.flush()
                heard = current_time()
            elif current_time() >= heard + gap_s:
                return None

    def _see_off(self, leg: DecodeLeg) -> None:
        """Wait for the end of the engine's answer, so that its connection can be used again.

        What may follow `[DONE]` is the end of the chunked body, often one packet behind. The
        client has its answer, so this is nobody's time.
        """
        if not leg.ended_nowait() and self.core.errands.start_nowait(leg.see_off):
            self._leg = None

    def _timed_out(self, limit: Limit, iid: str) -> Failure:
        self._refused = self._leg is None or not self._leg.accepted
        failure = from_limit(self.core.config, limit, phase=Phase.DECODE, engine=iid)
        self.core.blame(iid, Phase.DECODE, failure.failure)
        return failure
