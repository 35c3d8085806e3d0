"""Taking engines out of service for an operator, and back into it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import trio

from narwhal.fleet import TRANSITIONS, EngineState, Event
from narwhal.model import Fault, NarwhalError
from narwhal.monitor.readmission import DRAINED_ANEW, Check, Readmission, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from narwhal.config import FleetConfig
    from narwhal.engine import EngineClient
    from narwhal.fleet import Incarnation
    from narwhal.monitor.identity import Identities
    from narwhal.monitor.monitor import Watched
    from narwhal.monitor.probing import Prober
    from narwhal.telemetry import Telemetry

__all__ = ["Check", "DrainStatus", "Lifecycle", "NotNow", "Verdict"]

_GIVEN_UP = "its readmission was given up: the client that asked for it left"


class NotNow(NarwhalError):
    """The engine's state does not allow what was asked for; the text says what to do."""

    fault = Fault.OPERATOR
    status = 409
    code = "not_now"


@attrs.define
class _Drain:
    begun: float
    deadline: float | None
    process: Incarnation | None
    """The process that is drained, as far as it is known."""


@attrs.frozen(kw_only=True)
class DrainStatus:
    """How far a drain is. Times are seconds."""

    since_s: float
    """Since it began."""
    deadline_s: float | None
    """Left until the operator's deadline, below zero after it; None: there is none."""
    overdue: bool
    """The deadline has passed, and work is still there. Nothing is cut short for that."""
    process_start_s: float | None
    """When the process that was drained had started, Unix time; None: not known."""


class Lifecycle:
    """Drains and readmits engines.

    Guarantees: no engine is readmitted twice at the same time; however a readmission ends but
    with all checks passed, the engine is drained afterwards, unless the operator has drained it
    anew in between.
    """

    def __init__(
        self,
        config: FleetConfig,
        clients: Mapping[str, EngineClient],
        watched: Watched,
        *,
        prober: Prober,
        identities: Identities,
        telemetry: Telemetry,
    ) -> None:
        self._config = config
        self._clients = clients
        self._watched = watched
        self._prober = prober
        self._identities = identities
        self._telemetry = telemetry
        self._drains: dict[str, _Drain] = {}
        self._readmissions: dict[str, Readmission] = {}

    # Draining

    async def drain(self, iids: Iterable[str], *, deadline_s: float | None = None) -> None:
        """Give these engines no new work from now on; what runs on them goes on.

        All of them at once, before anything is waited for. Then each is asked which process it
        is, at most `engine.health_timeout_s`. Engines that are drained already stay so, with the
        new deadline if one is given.
        """
        health, now = self._watched.health, trio.current_time()
        begun = []
        changes = []
        for iid in iids:
            if self._is_out(iid):
                if deadline_s is not None:
                    self._of(iid).deadline = now + deadline_s
                continue
            begun.append(iid)
            changes += health.drain(iid, now)
            deadline = None if deadline_s is None else now + deadline_s
            self._drains[iid] = _Drain(now, deadline, health.incarnations.get(iid))
            if iid in self._readmissions:
                self._readmissions[iid].scope.cancel(reason="it is drained anew")
        self._watched.apply(changes)
        for iid in begun:
            self._end_if_empty(iid)
        async with trio.open_nursery() as nursery:
            for iid in begun:
                nursery.start_soon(self._note_process, iid, self._drains[iid])

    def _is_out(self, iid: str) -> bool:
        state = self._watched.health.standings.state(iid)
        return state in (EngineState.DRAINING, EngineState.DRAINED)

    def _of(self, iid: str) -> _Drain:
        """The engine's drain.

        One from before the router's own start begins when it is asked for; if the process of then
        is known, it is that. Nobody drained a blocked engine, so none of its processes was.
        """
        health = self._watched.health
        process = health.incarnations.get(iid) if self._is_out(iid) else None
        return self._drains.setdefault(iid, _Drain(trio.current_time(), None, process))

    def _end_if_empty(self, iid: str) -> None:
        watched = self._watched
        if not watched.residents(iid):
            watched.apply(watched.health.emptied(iid, trio.current_time()))

    async def _note_process(self, iid: str, drain: _Drain) -> None:
        """What is known may be as old as the last probe: the engine itself knows best."""
        await self._identities.who(iid)
        drain.process = self._watched.health.incarnations.get(iid)

    def status(self, iid: str) -> DrainStatus | None:
        """How far the engine's drain is; None if it is in nobody's hands but the router's."""
        state = self._watched.health.standings.state(iid)
        if not (self._is_out(iid) or state is EngineState.VALIDATING):
            return None
        drain, now = self._of(iid), trio.current_time()
        left = None if drain.deadline is None else drain.deadline - now
        process = drain.process
        return DrainStatus(
            since_s=now - drain.begun,
            deadline_s=left,
            overdue=left is not None and left < 0 and state is EngineState.DRAINING,
            process_start_s=None if process is None else process.process_start_s,
        )

    def ready_to_stop(self, iid: str) -> bool:
        """Whether nothing is lost if the engine's process ends now."""
        return self._watched.health.standings.state(iid) is EngineState.DRAINED

    def checking(self, iid: str) -> Check | None:
        """The check of a readmission that is under way."""
        running = self._readmissions.get(iid)
        return None if running is None else running.check

    # Readmitting

    async def readmit(self, iid: str, *, same_process: bool = False) -> Verdict:
        """Check the engine, and put it into service if it passes everything.

        `same_process` lets the process pass that was drained. Raises `NotNow` if the engine's
        state does not allow it, or if it is being readmitted already. A cancel leaves it drained.
        """
        health, watched = self._watched.health, self._watched
        self._check_state(iid)
        self._readmissions[iid] = run = Readmission(
            iid,
            self._config,
            self._clients,
            watched,
            prober=self._prober,
            identities=self._identities,
            telemetry=self._telemetry,
            drained=self._of(iid).process,
            same_process=same_process,
        )
        watched.apply(health.readmit(iid, trio.current_time()))
        reason = _GIVEN_UP
        try:
            verdict = self._settled(iid, await run.run())
            reason = f"{verdict.failed}: {verdict.reason}"
            return verdict
        finally:
            del self._readmissions[iid]
            self._back_to_drained(iid, reason)

    def _settled(self, iid: str, verdict: Verdict) -> Verdict:
        """Let it serve if it passed. An operator who drained it during the checks goes first."""
        if verdict.failed is not None:
            return verdict
        watched = self._watched
        changes = watched.health.passed(iid, trio.current_time())
        if not changes:
            return attrs.evolve(verdict, failed=Check.HEALTH, reason=DRAINED_ANEW)
        self._drains.pop(iid, None)
        watched.proved(iid)
        watched.apply(changes)
        return verdict

    def _back_to_drained(self, iid: str, reason: str) -> None:
        """Nothing, if it passed or was drained anew."""
        health, now = self._watched.health, trio.current_time()
        if self._watched.residents(iid) and health.standings.state(iid) is EngineState.VALIDATING:
            self._watched.apply(health.drain(iid, now))
        self._watched.apply(health.rejected(iid, now, reason))

    def _check_state(self, iid: str) -> None:
        state = self._watched.health.standings.state(iid)
        if iid in self._readmissions:
            check = self._readmissions[iid].check
            raise NotNow(f"{iid} is being readmitted already ({check}): wait until that has ended")
        if Event.READMIT in TRANSITIONS[state]:
            return
        if state in (EngineState.HELD, EngineState.EJECTED):
            raise NotNow(
                f"{iid} is {state} and comes back by itself as soon as it generates; drain it "
                "first if it is to come back by your word alone"
            )
        raise NotNow(f"{iid} is {state}: there is nothing to readmit it from; drain it first")
