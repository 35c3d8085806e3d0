"""`Router`: the embeddable object. It builds the engines' clients and runs the services."""

from __future__ import annotations

import logging
import random
from math import isfinite
from typing import TYPE_CHECKING

import attrs
import trio

from narwhal.engine import engine_clients
from narwhal.model import ConfigError, Phase
from narwhal.model.version import __version__
from narwhal.monitor import Lifecycle, Monitor, StateKeeper, check_fits, with_roles
from narwhal.net import connect_tcp
from narwhal.router.core import Core
from narwhal.router.errands import MOST_AT_ONCE
from narwhal.router.journal import JournalWriter
from narwhal.router.life import RequestLife
from narwhal.router.roles_view import roles_view
from narwhal.router.saved import saved_state, take_up
from narwhal.router.stream import Call
from narwhal.router.tracing import open_tracing
from narwhal.telemetry import DrainView, EngineView, LiveState, Pool, PoolView, Telemetry

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from opentelemetry.sdk.trace.export import SpanExporter

    from narwhal.config import EngineSpec, FleetConfig
    from narwhal.model import Route
    from narwhal.monitor import SavedState, StateStore
    from narwhal.net import Connect, ConnectionPool
    from narwhal.profiles import Profile
    from narwhal.telemetry import JournalFile
    from narwhal.wire.trace_context import TraceContext

    ASGIApp = Callable[..., Any]


logger = logging.getLogger("narwhal.router")

# Within the second that the process has to exit after the grace.
_LAST_WORDS_S = 0.75
# Closing a connection waits for nobody; this is for the tasks that do it to have their turn.
_CUT_S = 0.1


class Router:
    """Routes requests to the engines of one fleet.

    Construction does no I/O. `run` has to be running, in a nursery of the application, for as
    long as requests are served; `open_router` does both. One router belongs to one `trio.run`.
    """

    app: ASGIApp
    """The ASGI application that serves this router; set by `open_router`, as are the next two."""
    data_app: ASGIApp
    """Its routes for clients alone."""
    control_app: ASGIApp
    """Its routes for operators alone, for a listener that only they reach."""

    def __init__(
        self,
        config: FleetConfig,
        *,
        wall_clock: Callable[[], float],
        environ: Mapping[str, str],
        connect: Connect = connect_tcp,
        rng: random.Random | None = None,
        journal_file: JournalFile | None = None,
        profiles: Mapping[str, Profile] | None = None,
        state_store: StateStore | None = None,
        resume: SavedState | None = None,
        span_exporter: SpanExporter | None = None,
    ) -> None:
        """`wall_clock` gives Unix seconds and dates the journal's rows, nothing else.

        `connect` and `rng` are how simulations put the router on a network and a seed of their
        own. `profiles` are the measured costs of every engine, by `iid`; without them admission
        has to be `open`, and an engine costs what legs it has.

        `state_store` keeps the router's state while it runs; without one, none is kept. `resume`
        is the state to begin with, as a whole or, if it is not of this fleet, not at all.
        `span_exporter` gets the spans of requests, in place of `telemetry.traces.endpoint`. Raises
        `ConfigError` for that, and for a fleet that cannot be served as it is configured.
        """
        _check_servable(config, profiles)
        if resume is not None:
            check_fits(resume, config, name="the state to resume")
            config, pinned = with_roles(config, resume)
            for line in pinned:
                logger.info("resuming: %s", line)
        self.config = config
        self.started_at = wall_clock()
        # Errands have connections of their own, so that no admitted request ever waits.
        self._clients = engine_clients(
            config,
            environ=environ,
            connect=connect,
            data_connections=config.serving.max_connections + MOST_AT_ONCE,
        )
        self._telemetry = Telemetry(
            engines=[spec.iid for spec in config.engines],
            ttft_s=config.slo.ttft_s,
            ttft_scope=config.slo.ttft_scope,
            tpot_s=config.slo.tpot_s,
            version=__version__,
            model=config.model,
            started=trio.current_time(),
            journaled=journal_file is not None,
        )
        self._telemetry.attach(self, journal_file=journal_file)
        self._telemetry.watch_roles(
            lambda decision: self._telemetry.role_row(decision, ts=wall_clock())
        )
        # Ids and jitter only: nothing here is secret.
        rng = rng or random.Random()  # noqa: S311
        self.core = Core(
            config,
            self._clients,
            self._telemetry,
            rng=rng,
            wall_clock=wall_clock,
            profiles=profiles,
        )
        if resume is not None:
            take_up(self.core, resume)
        self.core.tracing = self._tracing = open_tracing(
            config,
            self._telemetry,
            exporter=span_exporter,
            ahead_s=self.core.wall_ahead_s,
            rng=rng,
        )
        self._journal = JournalWriter(self.core, journal_file) if journal_file else None
        self._keeper = (
            StateKeeper(state_store, lambda: saved_state(self.core), self._telemetry)
            if state_store
            else None
        )
        self.monitor = Monitor(
            config,
            self._clients,
            self.core,
            telemetry=self._telemetry,
            rng=rng,
            keeper=self._keeper,
        )
        self.lifecycle = Lifecycle(
            config,
            self._clients,
            self.core,
            prober=self.monitor.prober,
            identities=self.monitor.identities,
            telemetry=self._telemetry,
        )
        self._running = False
        self._traces_go_out = True

    @property
    def telemetry(self) -> Telemetry:
        """Counters, journal and state of this router."""
        return self._telemetry

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run the background services until cancelled; started once requests can be served.

        On the way out every engine connection is closed, the journal is written to its end and
        the last state is kept, all without waiting for anybody.
        """
        self._running = True
        try:
            async with trio.open_nursery() as nursery:
                await nursery.start(self.core.errands.run)
                await nursery.start(self.monitor.run)
                if self._journal is not None:
                    await nursery.start(self._journal.run)
                if self._tracing is not None:
                    await nursery.start(self._tracing.run)
                task_status.started()
        finally:
            self._running = False
            for client in self._clients.values():
                client.close()
            if self._journal is not None:
                self._journal.finish(trio.current_time())
            if self._tracing is not None:
                self._tracing.finish()
            if self._keeper is not None:
                self._keeper.finish()

    # Requests

    def open_life(
        self,
        route: Route,
        *,
        arrival: float,
        client_id: str | None = None,
        context: TraceContext | None = None,
        http: bool = False,
    ) -> RequestLife:
        """Begin the life of a request whose head was read at `arrival`; `run` it to serve it.

        `context` is the trace that it is part of; `http` says that it came in that way.
        """
        return RequestLife(
            self.core, route, arrival=arrival, client_id=client_id, context=context, http=http
        )

    def stream(
        self,
        request: Mapping[str, object],
        *,
        route: Route | None = None,
        trace: Mapping[str, str] | None = None,
    ) -> Call:
        """Serve one request of the application's own, as a stream of decoded events.

        `async with router.stream({"messages": [...]}) as events: async for event in events: ...`
        Everything runs inside the caller's task and a nursery of the `async with`, so the
        caller's cancel scopes govern it; leaving the block early ends the request. A request
        that does not complete raises `RequestFailed` from the iteration. Without `route`, a
        request with `messages` is a chat, any other a completion. `trace` is the trace that it is
        part of, as the headers `traceparent` and `tracestate`.
        """
        return Call(self, {**request, "stream": True}, route, trace)

    async def complete(
        self,
        request: Mapping[str, object],
        *,
        route: Route | None = None,
        trace: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        """Serve one request of the application's own and return its whole answer.

        Raises `RequestFailed` if it does not complete. A cancel ends the request.
        """
        async with Call(self, {**request, "stream": False}, route, trace) as events:
            return await events.whole()

    # Shutdown

    def stop_admitting(self) -> None:
        """Take no new requests and turn away what waits in the queue; the rest goes on."""
        self.core.stop_admitting()

    async def drain(self, grace: float) -> bool:
        """Stop admitting, give what runs `grace` seconds, then end it; True if all finished.

        Returns at the latest `_LAST_WORDS_S` after the grace: that long clients are told that
        they were cut short, and handoffs that nobody will pull are released.
        """
        self.stop_admitting()
        with trio.move_on_after(grace):
            await self.core.lives.wait_empty()
        return await self.end()

    async def end(self) -> bool:
        """End what is still being served; true if there was nothing.

        A cancel does not cut it short: it takes `_LAST_WORDS_S` at the most, in which clients
        are told, handoffs released, traces sent, and the journal gets its rows.
        """
        self.stop_admitting()
        core = self.core
        cut = list(core.lives)
        for life in cut:
            life.shut_down()
        with trio.move_on_after(_LAST_WORDS_S, shield=True):
            await core.lives.wait_empty()
            await core.errands.wait_done()
            if self._tracing is not None and self._traces_go_out:
                # A collector that says nothing is waited for once, and not by `drain` and by this.
                self._traces_go_out = False
                await self._tracing.flush()
                self._traces_go_out = True
        for life in core.lives:
            life.cut()
        with trio.move_on_after(_CUT_S, shield=True):
            await core.lives.wait_empty()
        return not cut

    # What it says of itself

    def reopen_journal(self) -> None:
        """The journal's file was renamed: later rows go to a new one of the old name.

        Synchronous and without effect if no journal is kept. The new file is there within a
        moment, if the disk does its part; rows that wait meanwhile are in one of the two.
        """
        if self._journal is not None:
            self._journal.reopen()

    def not_ready(self) -> list[str]:
        """Why new requests would not be served; empty when they would."""
        reasons = []
        if self.core.draining:
            reasons.append("the router is shutting down")
        if not self._running:
            reasons.append("the router's services are not running")
        if self.core.degraded is not None:
            reasons.append(self.core.degraded)
        if not self.core.roster.takers(Phase.PREFILL):
            reasons.append("no engine is in service")
        return reasons

    def live_state(self) -> LiveState:
        """What metrics and the state document show of this moment."""
        core = self.core
        reasons = tuple(self.not_ready())
        return LiveState(
            ready=not reasons,
            not_ready=reasons,
            draining=core.draining,
            admission_seats=core.queue.seats,
            admitted=core.queue.admitted,
            queue_capacity=core.queue.capacity,
            waiting=core.queue.waiting,
            seats_waited_for={phase: desk.waiting for phase, desk in core.desks.items()},
            retained=core.retained,
            retry_credits=core.credits.available,
            degraded=core.degraded,
            engines=tuple(self._engine_view(spec) for spec in self.config.engines),
            roles=roles_view(core),
            takers={phase: tuple(core.roster.takers(phase)) for phase in core.ledger.PHASES},
        )

    def _engine_view(self, spec: EngineSpec) -> EngineView:
        core, iid = self.core, spec.iid
        pools = self._clients[iid].pools
        now = trio.current_time()
        legs = core.ledger.PHASES
        residents = {phase: core.ledger.residents(iid, phase) for phase in legs}
        return EngineView(
            iid=iid,
            role=core.role(iid),
            pin=spec.pin,
            **self._standing(iid, now),
            suspicion=core.roster.trust.describe(iid, now),
            seats=residents,
            seat_limit={phase: core.desks[phase].per_engine for phase in legs},
            residents=residents,
            reserved_tokens=sum(core.ledger.tokens(iid, phase) for phase in legs),
            backlog_s=core.ledger.backlog_s(iid, now),
            pace={phase: core.prices.paces.of(iid, phase) for phase in legs},
            orphan_tokens=core.orphans.tokens(iid, now),
            pools={
                Pool.SERVING: _pool_view(pools.data),
                Pool.COUNTING: _pool_view(pools.counting),
                Pool.CONTROL: _pool_view(pools.control),
            },
        )

    def _standing(self, iid: str, now: float) -> dict[str, Any]:
        health = self.core.roster.health
        drain = self.lifecycle.status(iid)
        since, process = health.standings.since(iid), health.incarnations.get(iid)
        return {
            "state": health.standings.state(iid),
            "state_s": now - since if isfinite(since) else None,
            "reason": health.standings.reason(iid),
            "streaks": health.streaks.counts(iid),
            "version": None if process is None else process.version,
            "process_start_s": None if process is None else process.process_start_s,
            "drain": None if drain is None else DrainView(**attrs.asdict(drain)),
        }


def _pool_view(pool: ConnectionPool) -> PoolView:
    return PoolView(idle=pool.idle, busy=pool.busy, waiting=pool.waiting)


def _check_servable(config: FleetConfig, profiles: Mapping[str, Profile] | None) -> None:
    if profiles is None and config.serving.admission == "predictive":
        problem = (
            'serving.admission is "predictive", which prices requests with measured profiles, and '
            f"there are none ({config.profiles.path}): measure them with `narwhal-trio profile "
            '--fleet FILE`, or set serving.admission to "open" to serve without prices'
        )
        raise ConfigError([problem])
    missing = [] if profiles is None else [e.iid for e in config.engines if e.iid not in profiles]
    if missing:
        raise ConfigError([f"profiles: there is none for {iid}; measure it" for iid in missing])
