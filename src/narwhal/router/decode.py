"""The decode leg: dispatch, first token, relay or assembly."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

import attrs
import trio

from narwhal.model import Limit, Phase
from narwhal.wire import vllm
from narwhal.wire.assembly import Assembler
from narwhal.wire.decode import DecodeStream

if TYPE_CHECKING:
    from collections.abc import Mapping

    from narwhal.engine import DecodeLeg
    from narwhal.model import Failure
    from narwhal.router.attempt import Attempt
    from narwhal.wire.vllm import Handoff

# An answer of which the router spent more than this share waiting for its client says little of
# how fast its engine is.
_HELD_UP = 0.05
# A counter that lags by this much is live enough, and the relay has it for nothing. It has to lag:
# not every event is a token, and a counter cannot be put back when the engine's own count comes.
_TOKENS_AT_ONCE = 64


class HandoffAged(Exception):
    """The handoff was too old to be sent, or grew so before a token proved that it was used."""


class DecodeRun:
    """One decode leg, in three steps: `dispatch`, `first_token`, `rest`.

    The steps are apart so that each limit's scope encloses what it limits and nothing else: a
    scope whose cancel has been called cannot be moved out of the way any more. `close` ends the
    leg, whatever it has come to. The steps raise what the engine client and the stream raise.
    """

    def __init__(
        self,
        attempt: Attempt,
        *,
        handoff: Handoff | None,
        lease_ends: float = inf,
        template: Mapping[str, object] | None,
    ) -> None:
        self.life = attempt.life
        self.core = attempt.core
        self.visible = False
        """Whether the client was sent output."""
        self._attempt = attempt
        self._handoff = handoff
        self._lease_ends = lease_ends
        self._iid = ""
        self._begun = 0.0
        self._steps_then = 0.0
        self._held_up_s = 0.0
        """How long the client was waited for since the first token."""
        self._leg: DecodeLeg | None = None
        self._accepted = False
        self._completed = False
        request = self.life.request
        most = self.core.config.serving.max_response_bytes
        self._sink: DecodeStream | Assembler
        if request.stream:
            self._sink = DecodeStream(
                route=request.route, strip_usage=not request.include_usage, max_held=most
            )
        else:
            self._sink = Assembler(
                route=request.route,
                template=template,
                max_bytes=most,
                forced_tool=vllm.forces_tool(request),
                returns_ids=vllm.returns_ids(request),
            )

    @property
    def sent(self) -> bool:
        """Whether all of the decode request was written."""
        return self._leg is not None and not self._leg.unsent

    @property
    def strands_handoff(self) -> bool:
        """Whether the handoff may be pinned on its producer with no decoder to pull it.

        It is, unless a decoder answered 200: that one owns it, and frees the producer however
        the leg ends. One that was written to and said nothing may never have read a word.
        """
        return self._handoff is not None and not self._accepted

    async def dispatch(self, iid: str, *, started: float, expires: float) -> Failure | None:
        """Write the decode request to `iid`; None once all of it is with the kernel.

        `started` is when the prefill began, `expires` when the handoff is too old to be used:
        looked at when a connection is at hand, which is later than any scope could look.
        """
        life = self.life
        self._iid = iid
        now = self.core.now
        self._begun = now()
        self._attempt.wants_slot()

        def check_age() -> None:  # of nothing that has the leg, which keeps it
            if now() >= expires:
                raise HandoffAged

        engine, route = self.core.engines[iid], life.request.route
        body = vllm.decode_body(life.request, self._handoff)
        ids, on_slot = self._attempt.correlation("decode"), self._attempt.got_slot
        self._leg = engine.dispatch_decode_nowait(
            route, body, ids, on_slot=on_slot, before_write=check_age
        )
        if self._leg is None or self._leg.unsent:
            with trio.CancelScope(deadline=min(self._first_by, expires)) as limit:
                if self._leg is None:
                    self._leg = await engine.dispatch_decode(
                        route, body, ids, on_slot=on_slot, before_write=check_age
                    )
                else:
                    await self._leg.send_rest()
            if limit.cancelled_caught:
                if expires <= self._first_by:
                    raise HandoffAged
                return self._timed_out(Limit.FIRST_TOKEN)
        written = now()
        life.watch.enter(Phase.DECODE, written)
        if self._handoff is not None:
            self._attempt.times.handoff_age_s = written - started
        return None

    @property
    def _first_by(self) -> float:
        return self._begun + self.core.config.engine.first_token_timeout_s

    async def first_token(self) -> bytes | Failure:
        """Read up to the first token; what may be sent on by then.

        A decoder pulls the KV cache when it has room for the request, not when it gets it. If
        that is after the lease, it finds foreign blocks and answers wrong tokens, with status
        200: so a first token that comes too late to be trusted is not waited for.
        """
        leg, sink = self._sent, self._sink
        out = b""
        with trio.CancelScope(deadline=min(self._first_by, self._lease_ends)) as limit:
            await leg.head()
            self._accepted = True
            while not sink.first_token:
                out = await self._read(leg)
        if limit.cancelled_caught:
            if self._lease_ends < self._first_by:
                raise HandoffAged
            return self._timed_out(Limit.FIRST_TOKEN)
        now = self.core.now()
        self._attempt.times.first_token_s = now - self._begun
        self._steps_then = self.core.prices.paces.steps(self._iid, now)
        self.life.first_token(now, whole=self._handoff is None)
        return out

    async def rest(self, out: bytes) -> Failure | None:
        """Send everything from the first token on; None once the client has its whole answer.

        No limit but the request's own covers the writes.
        """
        leg, sink, life = self._sent, self._sink, self.life
        while not sink.done:
            if out:
                self.visible = True
                before = self.core.now()
                await life.write(out)
                self._held_up_s += self.core.now() - before
            if sink.error is not None:
                raise sink.error
            relayed = await self._relay(leg)
            if relayed is None:
                return attrs.evolve(self._timed_out(Limit.READ_GAP), visible=self.visible)
            out = relayed
        answer = sink.finish() if isinstance(sink, Assembler) else out
        self._completed = True
        self._tell_pace()
        await life.complete(answer, sink)
        self.core.roster.succeeded(self._iid, Phase.DECODE)
        self._see_off(leg)
        return None

    def _tell_pace(self) -> None:
        """Say how long the engine took for its whole answer, by what it was to take."""
        life, now, first = self.life, self.core.now(), self.life.record.first_token_at
        if first is None or self._held_up_s > _HELD_UP * (now - first):
            return
        usage = self._sink.usage
        tokens = usage.completion_tokens if usage else self._sink.tokens
        steps = life.core.prices.paces.steps(self._iid, now) - self._steps_then
        life.core.prices.paces.decoded(self._iid, steps=steps, tokens=tokens - 1)

    def close(self) -> None:
        """Close the leg, unless it is being seen off; tell what it has come to."""
        if self.visible and not self._completed:
            self.life.count_tokens(self._sink.tokens)
        if self._leg is not None:
            self._leg.close()
        if (error := self._sink.error) is not None:
            # The frames that it went through hold the sink, which holds it, and the prompt as well.
            error.__traceback__ = error.__context__ = None

    # Reading

    @property
    def _sent(self) -> DecodeLeg:
        assert self._leg is not None  # noqa: S101 - the steps come in their order
        return self._leg

    async def _read(self, leg: DecodeLeg) -> bytes:
        """One read, through the sink; what may be sent on. Raises what the sink found wrong."""
        data = await leg.read()
        if not data:
            self._sink.finish()  # raises: the stream is not done
        out = self._sink.feed(data)
        if self._sink.error is not None and not out:
            raise self._sink.error
        return out

    async def _relay(self, leg: DecodeLeg) -> bytes | None:
        """Relay for as long as nothing but the engine has to be waited for.

        Returns what is still to be written once the stream is done, has failed, or has outrun
        its reader; None once the engine was silent for `engine.decode_read_timeout_s`.

        The gap limit is one scope for many reads. Moving its deadline for each would cost more
        than the rest of this loop, so it may fire early; the time of the last chunk decides.
        """
        sink, life, current_time = self._sink, self.life, self.core.now
        read, feed, write_nowait = leg.read, sink.feed, life.reply.write_nowait
        gap_s = self.core.config.engine.decode_read_timeout_s or inf
        heard = current_time()
        tell_at = life.tokens_told + 2 * _TOKENS_AT_ONCE
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
                        if sink.tokens >= tell_at:
                            life.count_tokens(sink.tokens - _TOKENS_AT_ONCE)
                            tell_at = sink.tokens + _TOKENS_AT_ONCE
            if outrun:
                await life.reply.flush()
                self._held_up_s += current_time() - heard
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

    def _timed_out(self, limit: Limit) -> Failure:
        if limit is Limit.FIRST_TOKEN:
            self.core.controller.first_token_late(self.core.now())
        return self._attempt.timed_out(limit, Phase.DECODE, self._iid)
