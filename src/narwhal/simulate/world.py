"""One world: a real router, its server, engines, a network and clients, from a plan to the end."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Self

import attrs
import trio

from narwhal.app import open_router
from narwhal.emulator import Record, TimeModel
from narwhal.model import Phase
from narwhal.net import Server
from narwhal.simulate.asks import Ask, draw_visits
from narwhal.simulate.callers import draw_callers
from narwhal.simulate.clients import Visitor
from narwhal.simulate.evidence import Evidence, Violation
from narwhal.simulate.faults import DrawnFaults
from narwhal.simulate.incidents import Troublemaker
from narwhal.simulate.network import ROUTER, SimulatedNetwork
from narwhal.simulate.plan import rng_for
from narwhal.simulate.recording import listen_in
from narwhal.testing import MemoryFleet

if TYPE_CHECKING:
    from types import TracebackType

    from narwhal.fleet import Transition
    from narwhal.router import Router
    from narwhal.simulate.callers import Caller
    from narwhal.simulate.plan import Plan
    from narwhal.simulate.trace import Trace
    from narwhal.telemetry import RequestRow

# After the last request: release legs, and engines' answers that are seen off, take a second.
SETTLE_S = 3.0
# The slowest thing an engine does when its router has left: an answer that ends half a minute
# late, on a connection whose other end is gone without a word. A lease comes on top.
ENGINES_SETTLE_S = 120.0
# What a router may take beyond its grace to end what is left: its promise is one second in all.
END_S = 0.85
LOOKS = 10


class World:
    """Runs a plan, once. `play` is to be called under virtual time."""

    def __init__(self, plan: Plan, trace: Trace) -> None:
        self.plan = plan
        self.trace = trace
        self.network = SimulatedNetwork(plan, trace)
        self.fleet = MemoryFleet(
            plan.config,
            network=self.network,
            seed=plan.seed,
            time=TimeModel().faster(plan.speed),
            repeatable=False,
        )
        self.rows: list[RequestRow] = []
        self.changes: list[Transition] = []
        self.asks: list[Ask] = []
        self.callers: list[Caller] = []
        self.records: list[Record] = []
        self.seen: list[Violation] = []
        self._router: Router
        self._server: Server
        self._unnoticed: set[str] = set()
        self._errors = ErrorLog()

    async def play(self) -> Evidence:
        """Run everything to its end, and tell what there was to be seen."""
        with self._errors:
            async with trio.open_nursery() as nursery:
                await nursery.start(self.network.run)
                self._spoil_engines()
                await nursery.start(self.fleet.serve)
                evidence = await self._play(nursery)
                nursery.cancel_scope.cancel(reason="the world ends")
        return attrs.evolve(
            evidence, open_streams=self.network.open_streams, errors=tuple(self._errors.texts)
        )

    def _spoil_engines(self) -> None:
        plan = self.plan
        faults = {}
        for engine in self.fleet.engines.engines:
            rng = rng_for(plan.seed, f"faults {engine.iid}")
            faults[engine.iid] = DrawnFaults(rng, plan.leg_faults)
            engine.faults = faults[engine.iid]
            engine.stats.records = self.records
        self._troublemaker = Troublemaker(
            self.fleet.engines.engines, faults, self.network, self.trace
        )

    async def _play(self, nursery: trio.Nursery) -> Evidence:
        plan = self.plan
        async with open_router(
            self.fleet.config,
            environ=self.fleet.environ,
            connect=self.network.connect,
            rng=rng_for(plan.seed, "router"),
            wall_clock=trio.current_time,
            profiles=self.fleet.profiles,
        ) as self._router:
            self._kept = listen_in(self._router.core, self.trace)
            self._router.telemetry.listen(self._keep)
            self._router.telemetry.watch(self.changes.append)
            self._server = Server(self._app)
            listener = self.network.listen(*ROUTER)
            await nursery.start(self._server.serve, [listener])
            over: trio.Event = await nursery.start(self._everybody)
            if plan.ending == "leave":
                await trio.sleep(plan.end_at)
            else:
                await over.wait()
                await trio.sleep(SETTLE_S)  # the last words of clients that left arrive
                await self._router.core.lives.wait_empty()
        await over.wait()
        await trio.sleep(SETTLE_S)
        rest = self._at_rest()
        await self._server.drain(0)
        await trio.sleep(ENGINES_SETTLE_S + plan.config.engine.kv_lease_s)
        return self._evidence(rest)

    async def _everybody(self, *, task_status: trio.TaskStatus[trio.Event]) -> None:
        """All clients and callers, and what goes on beside them."""
        over = trio.Event()
        task_status.started(over)
        visits = draw_visits(self.plan)
        self._unnoticed = {
            ask.name
            for visit in visits
            for ask in visit.asks
            if visit.leaves is not None and visit.leaves[0] == "vanish"
        }
        self.asks = [ask for visit in visits for ask in visit.asks]
        self.callers = draw_callers(self.plan)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._look)
            nursery.start_soon(self._end)
            for incident in self.plan.incidents:
                nursery.start_soon(self._troublemaker.bring_about, incident)
            for visit in visits:
                nursery.start_soon(Visitor(self.network, visit, self.trace).visit)
            for caller in self.callers:
                nursery.start_soon(caller.call, self._router, self.trace)
        over.set()

    async def _app(self, scope: Any, receive: Any, send: Any) -> None:
        """The router's application, as a server with fewer extensions would call it."""
        offered = self.plan.extensions
        if offered is not None:
            scope["extensions"] = {
                name: extension
                for name, extension in scope["extensions"].items()
                if name.rpartition(".")[2] in offered
            }
        await self._router.app(scope, receive, send)

    def _keep(self, row: RequestRow) -> None:
        self.rows.append(row)
        self.trace.add(
            "ended",
            request=row.request_id,
            client=row.client_request_id,
            terminal=row.terminal,
            status=row.status,
            code=row.code,
            limits=row.limits_fired,
            attempts=[(each.prefill, each.decode, each.result) for each in row.attempts],
            spent={phase: round(spent, 9) for phase, spent in row.spent.items()},
        )

    # Beside the requests

    async def _look(self) -> None:
        """Somebody looks at the pages all the while; they are right at any moment."""
        rng = rng_for(self.plan.seed, "looks")
        for _ in range(LOOKS):
            await trio.sleep(rng.random() * max(1.0, self.plan.span / LOOKS))
            for text in self._wrong_now():
                self._see("bounds hold at any moment", text)

    def _wrong_now(self) -> list[str]:
        config, router = self.plan.config, self._router
        serving = config.serving
        live = router.live_state()
        state = router.telemetry.state(trio.current_time())
        page = router.telemetry.metrics.render()
        wrong = {
            "a page says nothing of the requests in flight": (
                b"narwhal_requests_in_flight" not in page or b'"engines"' not in state
            ),
            f"{live.retained} requests are retained": not (
                0 <= live.retained <= serving.max_connections + serving.queue_capacity
            ),
            f"{live.waiting} requests wait": not 0 <= live.waiting <= serving.queue_capacity,
        }
        places = {
            Phase.PREFILL: serving.prefill_concurrency,
            Phase.DECODE: serving.decode_concurrency,
        }
        for engine in live.engines:
            for phase, most in places.items():
                taken = engine.residents[phase]
                wrong[f"{engine.iid} has {taken} legs of {phase}"] = 0 < most < taken
        for engine, spec in zip(live.engines, config.engines, strict=True):
            moved = engine.role is not spec.role
            wrong[f"{engine.iid} is pinned and has the role {engine.role}"] = spec.pin and moved
        return [text for text, is_so in wrong.items() if is_so]

    def _see(self, invariant: str, text: str) -> None:
        self.seen.append(Violation(invariant, text, at=trio.current_time()))

    async def _end(self) -> None:
        """Whatever the plan says happens in the middle of everything."""
        plan = self.plan
        await trio.sleep(plan.end_at)
        if plan.ending not in ("drain", "stop"):
            return
        self.trace.add(plan.ending)
        began = trio.current_time()
        await self._router.drain(plan.grace)
        took = trio.current_time() - began
        if took > plan.grace + END_S + plan.slack:
            self._see("a drain is bounded", f"it took {took:.3f} s, with {plan.grace} s of grace")
        if plan.ending == "stop":
            began = trio.current_time()
            await self._server.drain(0.1)
            took = trio.current_time() - began
            if took > 0.1 + plan.slack:
                self._see("a drain is bounded", f"the server's took {took:.3f} s, with 0.1 s")

    # The end

    def _at_rest(self) -> dict[str, int]:
        """What the router still holds."""
        core = self._router.core
        held = {
            "requests": len(core.lives),
            "retained": core.retained,
            "seats": core.queue.admitted,
            "waiting": core.queue.waiting,
            "reservations": core.ledger.total,
            "legs that wait for a place": sum(desk.waiting for desk in core.desks.values()),
            "counts under way": sum(core.counting.values()),
            "handoffs": sum(core.handing_over.values()),
            "decodes to come": core.decodes_to_come,
            "errands": core.errands.running,
            "requests in flight": self._router.telemetry.in_flight,
        }
        for iid, client in core.engines.items():
            for name in ("data", "counting", "control"):
                pool = getattr(client.pools, name)
                held[f"{name} connections to {iid}"] = pool.busy + pool.waiting
        return held

    def _evidence(self, rest: dict[str, int]) -> Evidence:
        credits_, releases, queue = self._kept
        samples = {
            (sample.name, tuple(sorted(sample.labels.items()))): sample.value
            for family in self._router.telemetry.metrics.registry.collect()
            for sample in family.samples
        }
        return Evidence(
            plan=self.plan,
            rows=tuple(self.rows),
            asks=tuple(self.asks),
            callers=tuple(self.callers),
            records=tuple(self.records),
            changes=tuple(self.changes),
            abandoned=tuple(releases.abandoned),
            lost=dict(releases.lost_count),
            credit_changes=tuple(credits_.changes),
            credits_left=credits_.available,
            admitted_in_order=tuple(queue.admitted_in_order),
            passed=queue.passed,
            most_waiting=queue.most_waiting,
            totals=self._router.telemetry.totals(),
            samples=samples,
            severed=frozenset(self.network.severed),
            unnoticed=frozenset(self._unnoticed),
            rest=rest,
            engines_idle=self.fleet.idle,
            open_streams=0,
            errors=(),
            seen=tuple(self.seen),
        )


class ErrorLog(logging.Handler):
    """Keeps what is logged as an error: nothing that happens in a world may be one."""

    _LOGGERS = ("narwhal", "trio")

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a record's text."""
        self.texts.append(self.format(record))

    def __enter__(self) -> Self:
        for name in self._LOGGERS:
            logging.getLogger(name).addHandler(self)
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for name in self._LOGGERS:
            logging.getLogger(name).removeHandler(self)
