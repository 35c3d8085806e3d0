"""Deliberate faults in the router's own code, each of which a simulation or a property must catch.

They are of the kinds that time and cancellation make easy: something is not given back, given
back twice, bounded by nothing, measured from the wrong moment, or done after it was too late.
"""

from __future__ import annotations

import attrs


@attrs.frozen(kw_only=True)
class Mutant:
    """One fault: in `file`, below `src/narwhal`, `old` (which is there once) becomes `new`."""

    name: str
    file: str
    old: str
    new: str

    def apply(self, source: str) -> str:
        """The faulty source."""
        if source.count(self.old) != 1:
            raise ValueError(
                f"mutant {self.name!r}: its text is {source.count(self.old)} times in {self.file}; "
                "bring it up to date with the code"
            )
        return source.replace(self.old, self.new)


MUTANTS = [
    # Cancellation
    Mutant(
        name="a cancel is swallowed in the queue",
        file="router/queue.py",
        old="""                self.leave()
            raise
        return waiter.verdict""",
        new="""                self.leave()
        return waiter.verdict""",
    ),
    Mutant(
        name="a client that leaves is not noticed",
        file="router/life.py",
        old="""        self._gone = True
        self._stop(outcomes.client_closed(), "the client closed the connection")""",
        new="""        self._gone = True""",
    ),
    Mutant(
        name="telling a client of its error has no bound",
        file="router/life.py",
        old="        self._telling.deadline = self.core.now() + RESPOND_BOUND_S\n",
        new="",
    ),
    Mutant(
        name="an errand has no bound",
        file="router/errands.py",
        old="with trio.move_on_after(ERRAND_BOUND_S):",
        new="with trio.CancelScope(shield=True):",
    ),
    Mutant(
        name="a cancelled wait for a connection keeps its slot",
        file="net/pool.py",
        old="""            stream = await self._open()
        except BaseException:
            self._free_slot()
            raise""",
        new="""            stream = await self._open()
        except BaseException:
            raise""",
    ),
    Mutant(
        name="a request that is cancelled while it is written keeps its connection",
        file="net/exchange.py",
        old="""                if not await self._receive():
                    await self._replay()
        except BaseException:
            self.close()
            raise
        self.unsent = False""",
        new="""                if not await self._receive():
                    await self._replay()
        except BaseException:
            raise
        self.unsent = False""",
    ),
    Mutant(
        name="a handoff may age while its decode is written",
        file="router/decode.py",
        old="with trio.CancelScope(deadline=min(self._first_by, expires)) as limit:",
        new="with trio.CancelScope(deadline=self._first_by) as limit:",
    ),
    Mutant(
        name="a newcomer takes a place past those who wait",
        file="router/core.py",
        old="""        if desk.waiting:
            return None""",
        new="""        if not desk:
            return None""",
    ),
    Mutant(
        name="an engine's leg is not closed",
        file="router/attempt.py",
        old="""            return self._decode_failed(error, run)
        finally:
            run.close()
            if place is not None:""",
        new="""            return self._decode_failed(error, run)
        finally:
            if place is not None:""",
    ),
    # Seats, places, credits
    Mutant(
        name="a seat is given back twice",
        file="router/life.py",
        old="""        finally:
            core.queue.leave()
        if""",
        new="""        finally:
            core.queue.leave()
            if self.avoid:
                core.queue.leave()
        if""",
    ),
    Mutant(
        name="a seat is given back only by those who were served",
        file="router/life.py",
        old="""        finally:
            core.queue.leave()
        if outcome.terminal is Terminal.COMPLETED:
            core.service.served""",
        new="""        finally:
            pass
        if outcome.terminal is Terminal.COMPLETED:
            core.queue.leave()
            core.service.served""",
    ),
    Mutant(
        name="a place is not given back when its decode failed",
        file="router/attempt.py",
        old="""            if place is not None:
                place.release()""",
        new="""            if place is not None and run.visible:
                place.release()""",
    ),
    Mutant(
        name="a place that just came is lost to a cancel",
        file="router/seats.py",
        old="""            if waiter.place is not None:
                waiter.place.release()
            elif waiter.error is None:""",
        new="""            if waiter.place is None and waiter.error is None:""",
    ),
    Mutant(
        name="newcomers pass those who wait",
        file="router/queue.py",
        old="if self.admitted < self.seats and not self._waiters:",
        new="if self.admitted < self.seats + bool(self._waiters):",
    ),
    Mutant(
        name="a body is read before there is room for it",
        file="router/life.py",
        old="""            self.request = await ingress()
""",
        new="""            core.retained -= 1
            self.request = await ingress()
            core.retained += 1
""",
    ),
    Mutant(
        name="the last in the queue is the first",
        file="router/queue.py",
        old="waiter, _ = self._waiters.popitem(last=False)",
        new="waiter, _ = self._waiters.popitem(last=True)",
    ),
    Mutant(
        name="a credit is not given back",
        file="router/life.py",
        old="""            self._owed_credit = False
            self.core.credits.give_back()""",
        new="""            self._owed_credit = False""",
    ),
    Mutant(
        name="a credit is given back though the retry was sent",
        file="router/life.py",
        old="""        \"\"\"The attempt goes to an engine: a retry has now cost its credit.\"\"\"
        self._owed_credit = False""",
        new="""        \"\"\"The attempt goes to an engine: a retry has now cost its credit.\"\"\"
""",
    ),
    Mutant(
        name="the places of retained requests leak",
        file="router/life.py",
        old="""            if self._retained:
                core.forget()""",
        new="""            if self._retained and self._stopped is None:
                core.forget()""",
    ),
    # Limits and deadlines
    Mutant(
        name="the gap limit is not armed again",
        file="router/decode.py",
        old="""                    data = await read()
                    heard = current_time()
""",
        new="""                    data = await read()
""",
    ),
    Mutant(
        name="the gap limit never fires",
        file="router/decode.py",
        old="with trio.CancelScope(deadline=heard + gap_s):",
        new="with trio.CancelScope():",
    ),
    Mutant(
        name="a retry restarts the deadline",
        file="router/life.py",
        old="""        self.watch.enter(Phase.BACKOFF, now)
        self._owed_credit = True""",
        new="""        self.watch.enter(Phase.BACKOFF, now)
        self.deadline = self._scope.deadline = now + self.core.config.serving.request_timeout_s
        self._owed_credit = True""",
    ),
    Mutant(
        name="the first token has no limit",
        file="router/decode.py",
        old="with trio.CancelScope(deadline=min(self._first_by, self._lease_ends)) as limit:",
        new="with trio.CancelScope(deadline=self._lease_ends) as limit:",
    ),
    Mutant(
        name="the first token's limit begins when the request was written",
        file="router/decode.py",
        old="""        leg, sink = self._sent, self._sink
        out = b""
""",
        new="""        leg, sink = self._sent, self._sink
        self._begun = trio.current_time()
        out = b""
""",
    ),
    Mutant(
        name="a prefill has no limit",
        file="router/attempt.py",
        old="with trio.CancelScope(deadline=started + core.config.serving.prefill_timeout_s):",
        new="with trio.CancelScope():",
    ),
    Mutant(
        name="a back-off may end after the deadline",
        file="retry/policy.py",
        old="if now + delay >= deadline:",
        new="if now >= deadline:",
    ),
    Mutant(
        name="the time ledger counts some time twice",
        file="model/spent.py",
        old="            phase, since = entered, at\n",
        new="""            phase = entered
            since = since if entered is Phase.DECODE else at
""",
    ),
    Mutant(
        name="the gap limit covers the client's writes",
        file="router/decode.py",
        old="""                await life.reply.flush()
                self._held_up_s""",
        new="""                with trio.move_on_after(gap_s) as slow:
                    await life.reply.flush()
                if slow.cancelled_caught:
                    return None
                self._held_up_s""",
    ),
    Mutant(
        name="a back-off does not listen",
        file="router/life.py",
        old="            await trio.sleep(decision.delay)\n",
        new="""            with trio.CancelScope(shield=True, deadline=now + decision.delay):
                await trio.sleep_forever()
            await trio.lowlevel.checkpoint()
""",
    ),
    Mutant(
        name="an engine's retry-after is not waited for",
        file="router/life.py",
        old="            floor_s=pause,\n",
        new="",
    ),
    Mutant(
        name="the ceiling of the back-off does not double",
        file="retry/policy.py",
        old="ceiling = min(self.cap_s, self.base_s * 2.0 ** (attempt - 1))",
        new="ceiling = self.base_s",
    ),
    # Retries and output
    Mutant(
        name="a retry that is not scheduled costs a credit",
        file="retry/policy.py",
        old="""        if now + delay >= deadline:
            return NoRetry(Why.DEADLINE)
        if not retry_credits.take_nowait():
            return NoRetry(Why.NO_CREDIT)
""",
        new="""        if not retry_credits.take_nowait():
            return NoRetry(Why.NO_CREDIT)
        if now + delay >= deadline:
            return NoRetry(Why.DEADLINE)
""",
    ),
    Mutant(
        name="every error status is tried again",
        file="retry/policy.py",
        old="return FailureClass.INFERENCE_STATUS, status in _TRANSIENT",
        new="return FailureClass.INFERENCE_STATUS, True",
    ),
    Mutant(
        name="a retry follows visible output",
        file="retry/policy.py",
        old="""        if failure.visible:
            return NoRetry(Why.VISIBLE_OUTPUT)
""",
        new="",
    ),
    Mutant(
        name="a client's mistake is tried again",
        file="retry/policy.py",
        old="return FailureClass.NEUTRAL, False",
        new="return FailureClass.NEUTRAL, True",
    ),
    Mutant(
        name="there is one attempt too many",
        file="retry/policy.py",
        old="if attempt >= self.max_attempts:",
        new="if attempt > self.max_attempts:",
    ),
    Mutant(
        name="a stream without its end counts as whole",
        file="router/decode.py",
        old="""                    if not data:
                        sink.finish()  # raises: the stream is not done
                    out = feed(data)""",
        new="""                    if not data:
                        return b""
                    out = feed(data)""",
    ),
    Mutant(
        name="what a slow client has not taken is dropped",
        file="router/decode.py",
        old="""            if outrun:
                await life.reply.flush()
                self._held_up_s""",
        new="""            if outrun:
                self._held_up_s""",
    ),
    Mutant(
        name="an attempt has the ids of the one before",
        file="router/attempt.py",
        old='self._ids = f"{life.request_id}-{n}"',
        new='self._ids = f"{life.request_id}-1"',
    ),
    # Handoffs
    Mutant(
        name="a handoff is used again by a retry",
        file="router/attempt.py",
        old="""        prefilled = await self._prefill()
        if isinstance(prefilled, Failure):
            return prefilled
""",
        new="""        prefilled = self.core.__dict__.get(self.life) or await self._prefill()
        if isinstance(prefilled, Failure):
            return prefilled
        self.core.__dict__[self.life] = prefilled
""",
    ),
    Mutant(
        name="a handoff's age is not looked at",
        file="router/attempt.py",
        old="return min(prefilled.held.lease_ends, self._capped(prefilled))",
        new="return inf",
    ),
    Mutant(
        name="a handoff's age counts from the end of its prefill",
        file="router/attempt.py",
        old="""        cap = self.core.config.serving.handoff_timeout_s
        return prefilled.started + cap if cap else inf""",
        new="""        cap = self.core.config.serving.handoff_timeout_s
        return prefilled.started + (self.times.prefill_s or 0.0) + cap if cap else inf""",
    ),
    Mutant(
        name="a lease that ends before the first token is not looked at",
        file="router/decode.py",
        old="with trio.CancelScope(deadline=min(self._first_by, self._lease_ends)) as limit:",
        new="with trio.CancelScope(deadline=self._first_by) as limit:",
    ),
    Mutant(
        name="a handoff that nobody wants is forgotten",
        file="router/attempt.py",
        old="            if held is not None and run.strands_handoff:",
        new="            if held is not None and run.strands_handoff and run.sent:",
    ),
    Mutant(
        name="an answer that came as its request was cancelled is forgotten",
        file="engine/client.py",
        old="""                    on_late(PrefillReply(late, trio.current_time()))
""",
        new="""                    pass
""",
    ),
    Mutant(
        name="a decoder that was written to is thought to have accepted",
        file="router/decode.py",
        old="""            await leg.head()
            self._accepted = True""",
        new="""            self._accepted = True
            await leg.head()""",
    ),
    Mutant(
        name="half a handoff is passed on",
        file="wire/handoff.py",
        old="    if problem:\n",
        new="    if problem and not raw:\n",
    ),
    # Accounts
    Mutant(
        name="an engine is blamed for a leg that waited for a connection of the router's",
        file="router/attempt.py",
        old="        if not self._has_slot:\n",
        new="        if self._has_slot is None:\n",
    ),
    Mutant(
        name="an engine is blamed for the router's own want of connections",
        file="router/core.py",
        old="""        if failure is FailureClass.LOCAL:
            return
""",
        new="",
    ),
    Mutant(
        name="a request that ends during its tokenise leg is counted as counting for ever",
        file="router/sizing.py",
        old="""    finally:
        life.core.counting[engine.iid] -= 1
    life""",
        new="""    finally:
        pass
    life.core.counting[engine.iid] -= 1
    life""",
    ),
    Mutant(
        name="tokens are counted twice",
        file="router/life.py",
        old="        record.tokens_counted = tokens",
        new="        record.tokens_counted = tokens - 1",
    ),
    Mutant(
        name="the client gets the usage that the router asked for",
        file="router/decode.py",
        old="strip_usage=not request.include_usage",
        new="strip_usage=False",
    ),
    # What things turn out to take
    Mutant(
        name="a client that reads slowly makes its engine slow",
        file="router/decode.py",
        old="if first is None or self._held_up_s > _HELD_UP * (now - first):",
        new="if first is None:",
    ),
    Mutant(
        name="a prefill that failed tells how fast its engine is",
        file="fleet/backlog.py",
        old="        if done:\n",
        new="        if True:\n",
    ),
    # Health
    Mutant(
        name="engines that are out of service still get legs",
        file="fleet/health.py",
        old="if own is role and self.takes_work(iid)]",
        new="if own is role]",
    ),
    Mutant(
        name="soft evidence takes the last engine of a role",
        file="fleet/health.py",
        old="if event in _SOFT and self.takes_work(iid) and self.is_last(iid):",
        new="if False:",
    ),
    Mutant(
        name="an engine is back as soon as it says that it is well",
        file="monitor/monitor.py",
        old="probed = await self._prober.generation(self._clients[iid], client, watched.role(iid))",
        new="client = client",
    ),
    Mutant(
        name="a restart is not noticed",
        file="fleet/health.py",
        old="if before is None or before == incarnation:",
        new="if True:",
    ),
]
