"""A world in which everything goes wrong, drawn from one seed, and what must hold all the same."""

from __future__ import annotations

import json
import logging
import random
import sys
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

import trio
from chaos_callers import Caller, draw_callers
from chaos_checks import check
from chaos_clients import Ask, Visitor, draw_connections
from chaos_engines import ChaosFleet
from chaos_plan import Plan, draw_plan
from trio._core import _run as trio_run  # the seed of the scheduler has no public name
from trio.testing import MockClock, wait_all_tasks_blocked

from narwhal.app import open_router
from narwhal.net import ByteStream, Link, MemoryNetwork, Server
from narwhal.retry import Credits

from worlds import World


class scheduled:  # noqa: N801 - used as a function
    """Within this block Trio's scheduler makes its choices from a seed."""

    def __init__(self, seed: int | str) -> None:
        self._rng = random.Random(seed)

    def __enter__(self) -> Self:
        self._saved = (trio_run._ALLOW_DETERMINISTIC_SCHEDULING, trio_run._r)
        trio_run._ALLOW_DETERMINISTIC_SCHEDULING = True  # type: ignore[misc]  # as Trio's tests do
        trio_run._r = self._rng
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        trio_run._ALLOW_DETERMINISTIC_SCHEDULING, trio_run._r = self._saved  # type: ignore[misc]  # see above


class TimePasses(trio.abc.Instrument):
    """Lets a step take time now and then, so that deadlines fall between two steps."""

    def __init__(self, clock: MockClock, rng: random.Random, most: float) -> None:
        self._clock = clock
        self._rng = rng
        self._most = most

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        if self._rng.random() < 0.05:
            self._clock.jump(self._rng.random() * self._most)


class AtStep(trio.abc.Instrument):
    """Calls an action before the n-th step that any task takes from when it was armed."""

    def __init__(self) -> None:
        self._left = 0
        self._action: Callable[[], None] | None = None

    def arm(self, n: int, action: Callable[[], None]) -> None:
        self._left, self._action = n, action

    def disarm(self) -> bool:
        """Stop counting; whether the step had not come."""
        waiting, self._action = self._action is not None, None
        return waiting

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        if self._action is None:
            return
        self._left -= 1
        if not self._left:
            action, self._action = self._action, None
            action()


class Errors(logging.Handler):
    """Keeps what was logged as an error: nothing that happens here may be one."""

    _LOGGERS = ("narwhal", "trio")

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)

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

    def texts(self) -> list[str]:
        formatter = logging.Formatter()
        return [formatter.format(record) for record in self.records]


class RecordingCredits(Credits):
    """Credits that remember what happened to them, in order."""

    def __init__(self, budget: float, replenish: float) -> None:
        super().__init__(budget, replenish)
        self.events: list[str] = []

    def take_nowait(self) -> bool:
        taken = super().take_nowait()
        if taken:
            self.events.append("taken")
        return taken

    def give_back(self) -> None:
        super().give_back()
        self.events.append("given back")

    def succeeded(self) -> None:
        super().succeeded()
        self.events.append("succeeded")


class ChaosWorld(World):
    """A `World` made from a plan."""

    stubs: ChaosFleet

    def __init__(self, plan: Plan, nursery: trio.Nursery) -> None:
        super().__init__(plan.config, nursery, plan.config.engine.kv_lease_s)
        self.plan = plan
        self.rng = random.Random(f"world {plan.seed}")
        self.network = MemoryNetwork(
            buffer_bytes=plan.buffer_bytes,
            links=lambda host, port: Link(delay_s=self.rng.random() * plan.latency),
        )
        self.stubs = ChaosFleet(plan, self.network)
        serving = plan.config.serving
        self.credits = RecordingCredits(serving.retry_budget, serving.retry_replenish)
        self.asks: list[Ask] = []
        self.callers: list[Caller] = []
        self.abandoned: list[tuple[Any, float]] = []

    def _check_rows(self) -> None:
        """Rows are checked by `check`, which allows for the time that steps take."""

    async def connect_engine(self, host: str, port: int) -> ByteStream:
        """Connections to engines are refused, lost or late at times."""
        plan, rng = self.plan, self.rng
        if rng.random() < plan.connect_faults:
            kind = rng.choice(("refused", "lost", "late", "late"))
            if kind == "lost":
                await trio.sleep_forever()
            if kind == "refused":
                raise ConnectionRefusedError
            await trio.sleep(rng.choice((0.01, 0.5, 3.0)) * rng.random())
        return await self.network.connect(host, port)

    async def deaths(self) -> None:
        """Engines die and come back."""
        for _ in range(self.plan.deaths):
            await trio.sleep(self.rng.uniform(0, max(1.0, self.plan.span)))
            name = self.rng.choice(sorted(self.stubs.engines))
            self.kill(name)
            await trio.sleep(self.rng.choice((0.01, 0.1, 2.0)))
            await wait_all_tasks_blocked()  # the process is gone, and its port is free
            await self.start_engine(name)

    async def end(self) -> None:
        """Whatever the plan says happens in the middle of everything."""
        plan = self.plan
        await trio.sleep(plan.end_at)
        if plan.ending not in ("drain", "stop"):
            return
        began = trio.current_time()
        await self.router.drain(plan.grace)
        took = trio.current_time() - began
        assert took <= plan.grace + 0.85 + plan.slack, "a drain out of bounds"
        if plan.ending == "stop":
            await self.server.drain(0.1)
            assert trio.current_time() - began - took <= 0.1 + plan.slack

    async def app(self, scope: Any, receive: Any, send: Any) -> None:
        """The router's application, as a server with fewer extensions would call it."""
        offered = self.plan.extensions
        if offered is not None:
            scope["extensions"] = {
                name: extension
                for name, extension in scope["extensions"].items()
                if name.rpartition(".")[2] in offered
            }
        await self.router.app(scope, receive, send)

    async def visits(self, *, task_status: trio.TaskStatus[trio.Event]) -> None:
        """Every client and caller, and what goes on beside them."""
        over = trio.Event()
        task_status.started(over)
        connections = draw_connections(self.plan)
        self.asks = [ask for each in connections for ask in each.asks]
        self.callers = draw_callers(self.plan)
        with trio.fail_after(3000):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.scrape)
                nursery.start_soon(self.deaths)
                nursery.start_soon(self.end)
                for connection in connections:
                    nursery.start_soon(Visitor(self.network, connection).visit)
                for caller in self.callers:
                    nursery.start_soon(caller.call, self.router)
        over.set()

    async def scrape(self) -> None:
        """Somebody looks at the pages all the while; they are right at any moment."""
        for _ in range(10):
            await trio.sleep(self.rng.random())
            telemetry = self.router.telemetry
            live = self.router.live_state()
            assert 0 <= live.retained <= self.router.core.retained_limit
            assert 0 <= live.waiting <= self.config.serving.queue_capacity
            state = json.loads(telemetry.state(trio.current_time()))
            assert {e["iid"] for e in state["engines"]} == set(self.stubs.engines)
            assert b"narwhal_requests_in_flight" in telemetry.metrics.render()

    def listen_in(self) -> None:
        """Have rows, credits and abandoned handoffs recorded as they come."""
        telemetry, core = self.router.telemetry, self.router.core
        record, abandon = telemetry.request_ended, core.releases.abandon

        def keep(row: Any) -> None:
            self.rows.append(row)
            record(row)

        def note(held: Any, **more: Any) -> None:
            self.abandoned.append((held, trio.current_time()))
            abandon(held, **more)

        telemetry.request_ended = keep  # type: ignore[method-assign]  # listen in
        core.releases.abandon = note  # type: ignore[method-assign]  # listen in
        core.credits = self.credits


async def run_plan(plan: Plan) -> ChaosWorld:
    """Run one world to its end and check everything there is to check."""
    async with trio.open_nursery() as nursery:
        world = ChaosWorld(plan, nursery)
        for spec in plan.config.engines:
            world.stubs.add(spec.iid, spec.port)
            await world.start_engine(spec.iid)
        async with open_router(
            plan.config,
            environ={},
            connect=world.connect_engine,
            rng=random.Random(f"router {plan.seed}"),
            wall_clock=trio.current_time,
        ) as world.router:
            world.listen_in()
            world.server = Server(world.app)
            await nursery.start(world.server.serve, [world.network.listen("router", 8000)])
            over: trio.Event = await nursery.start(world.visits)
            if plan.ending == "leave":
                await trio.sleep(plan.end_at)
            else:
                await over.wait()
                await world.settle(3.0)
                world.at_rest()
        await over.wait()
        await world.settle(3.0)
        world.at_rest()
        check(world)
        await world.server.drain(0)
        nursery.cancel_scope.cancel(reason="the world ends")
    assert world.network.open_streams == 0, "a connection was never closed"
    return world


def run_seed(seed: int) -> ChaosWorld:
    """As `run_plan`, for the plan of a seed, in virtual time and with a seeded scheduler."""
    return run(draw_plan(seed))


def run(plan: Plan) -> ChaosWorld:
    clock = MockClock(autojump_threshold=0)
    instruments: list[trio.abc.Instrument] = []
    if plan.drift:
        drift = random.Random(f"drift {plan.seed}")
        instruments.append(TimePasses(clock, drift, plan.drift))
    with scheduled(f"scheduler {plan.seed}"), Errors() as errors:
        world = trio.run(run_plan, plan, clock=clock, instruments=instruments)
    assert not errors.records, "\n".join(errors.texts())
    return world


def main(first: int, last: int) -> int:
    """Try the seeds from `first` up to `last`; say which fail, and how."""
    failed = 0
    for seed in range(first, last):
        try:
            run_seed(seed)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is a finding
            while isinstance(error, ExceptionGroup):
                error = error.exceptions[0]
            failed += 1
            print(f"seed {seed}: {type(error).__name__}: {error}")  # noqa: T201 - a command
    print(f"{last - first} seeds, {failed} failed")  # noqa: T201 - a command
    return failed


if __name__ == "__main__":
    sys.exit(bool(main(*map(int, sys.argv[1:3]))))
