"""A whole router in memory and in virtual time: server, router, stub engines, raw clients."""

from __future__ import annotations

import json
import random
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, Self

import attrs
import h11
import trio
from trio.testing import MockClock

from narwhal.app import data_server, open_router
from narwhal.config import FleetConfig, parse_fleet
from narwhal.fleet import Claim
from narwhal.model import Phase
from narwhal.net import ByteStream, MemoryNetwork, Server
from narwhal.router import Router
from narwhal.testing import run_seeded

from state_schema import check_state_of
from stub_fleet import Script, StubEngine, StubFleet

ENVIRON = {
    "ENGINE_KEY": "engine-secret",
    "CLIENT_KEYS": "client-secret-1-long-enough,client-secret-2-long-enough",
    "CONTROL_TOKEN": "control-secret-long-enough",
}
FAST = {"retry_base_s": 0.1, "retry_cap_s": 1.0}


def fleet_config(
    *,
    prefill: int = 1,
    decode: int = 1,
    engine: dict[str, Any] | None = None,
    recovery: dict[str, Any] | None = None,
    http: dict[str, Any] | None = None,
    control: dict[str, Any] | None = None,
    **serving: Any,
) -> FleetConfig:
    """A fleet of stubs `p0..` and `d0..`; keyword arguments are `serving` settings.

    No monitor pass ever comes: stubs answer by a script, and are asked nothing that is not in it.
    """
    engines = [
        {"iid": f"{kind[0]}{n}", "url": f"http://127.0.0.1:{base + n}", "role": kind}
        for kind, base, count in (("prefill", 9100, prefill), ("decode", 9200, decode))
        for n in range(count)
    ]
    if serving.get("max_attempts", 1) > 1 or serving.get("queue_capacity"):
        serving.setdefault("handoff_timeout_s", 20.0)
    document = {
        "schema": "narwhal.fleet",
        "schema_version": 1,
        "model": "m",
        "engines": engines,
        "slo": {"ttft_s": 2.0, "tpot_s": 0.1},
        "serving": {"admission": "open"} | serving,
        "engine": engine or {},
        "http": http or {},
        "control": control or {},
        "controller": {"min_prefill": 1, "min_decode": 1, "monitor_interval_s": 1e9},
        "recovery": {"health": {"window_s": 3e9}} | (recovery or {}),
    }
    return parse_fleet(document, name="fleet.json", environ=ENVIRON)


def leg_of(_iid: str) -> Claim:
    """What some leg takes of an engine."""
    return Claim(prompt_tokens=1)


@attrs.define
class Answer:
    """What a client received."""

    status: int
    headers: dict[str, str]
    body: bytes
    complete: bool
    """Whether the response ended as HTTP says a complete one does."""
    seconds: float

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        """The error object, of a response or of a stream's last event."""
        if self.headers["content-type"].startswith("text/event-stream"):
            found: dict[str, Any] = self.events[-1]["error"]
        else:
            found = self.json["error"]
        return found

    @property
    def events(self) -> list[Any]:
        payloads = [part[6:] for part in self.body.split(b"\n\n") if part.startswith(b"data: ")]
        return [p if p == b"[DONE]" else json.loads(p) for p in payloads]

    @property
    def done(self) -> bool:
        return self.body.endswith(b"data: [DONE]\n\n")

    @property
    def text(self) -> str:
        if self.headers["content-type"].startswith("application/json"):
            choice = self.json["choices"][0]
            return str(choice["text"] if "text" in choice else choice["message"]["content"])
        choices = [e["choices"][0] for e in self.events if isinstance(e, dict) and e.get("choices")]
        return "".join(c["text"] if "text" in c else c["delta"].get("content", "") for c in choices)


class Client:
    """One client connection, byte-exact."""

    def __init__(self, stream: ByteStream) -> None:
        self.stream = stream
        self._h11 = h11.Connection(h11.CLIENT)
        self.started = trio.current_time()

    async def ask(
        self,
        body: Any,
        path: str = "/v1/completions",
        method: str = "POST",
        headers: dict[str, str] | None = None,
        *,
        pause: float = 0.0,
    ) -> Self:
        """Send a request; `pause` seconds pass between its head and its body."""
        raw = (
            body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        )
        fields = {"host": "router", "content-type": "application/json"}
        fields |= {"content-length": str(len(raw))} | (headers or {})
        request = h11.Request(method=method, target=path, headers=list(fields.items()))
        data = self._h11.send(request) or b""
        self.started = trio.current_time()
        if pause:
            await self.stream.send_all(data)
            await trio.sleep(pause)
            data = b""
        data += self._h11.send(h11.Data(raw)) or b""
        self._h11.send(h11.EndOfMessage())
        await self.stream.send_all(data)
        return self

    async def next_event(self) -> Any:
        while True:
            event = self._h11.next_event()
            if event is not h11.NEED_DATA:
                return event
            try:
                self._h11.receive_data(await self.stream.receive_some())
            except trio.BrokenResourceError:
                return h11.ConnectionClosed()

    async def head(self) -> h11.Response:
        event = await self.next_event()
        assert isinstance(event, h11.Response), event
        return event

    async def data(self) -> bytes:
        """The next piece of the body, `b""` at its end."""
        event = await self.next_event()
        return bytes(event.data) if isinstance(event, h11.Data) else b""

    async def answer(self) -> Answer:
        """The whole response."""
        head = await self.head()
        body, complete = b"", False
        while True:
            try:
                event = await self.next_event()
            except h11.RemoteProtocolError:
                break
            if isinstance(event, h11.EndOfMessage):
                complete = True
            if not isinstance(event, h11.Data):
                break
            body += event.data
        headers = {k.decode(): v.decode() for k, v in head.headers}
        seconds = trio.current_time() - self.started
        return Answer(head.status_code, headers, body, complete, seconds)

    def next_cycle(self) -> None:
        self._h11.start_next_cycle()

    def close(self, *, reset: bool = False) -> None:
        self.stream.close(reset=reset)


class World:
    """Everything, running. `at_rest` is what must hold whenever no request is being served."""

    def __init__(self, config: FleetConfig, nursery: trio.Nursery, lease: float) -> None:
        self.config = config
        self.nursery = nursery
        self.network = MemoryNetwork()
        self.stubs = StubFleet(self.network, lease=lease)
        self.rows: list[Any] = []
        self.router: Router
        self.server: Server
        self.scopes: dict[str, trio.CancelScope] = {}

    def engine(self, name: str) -> StubEngine:
        return self.stubs.engines[name]

    def script(self, script: Script, *names: str) -> None:
        for name in names or self.stubs.engines:
            self.engine(name).script = script

    async def start_engine(self, name: str) -> None:
        async def run(*, task_status: trio.TaskStatus[None]) -> None:
            with trio.CancelScope() as scope:
                self.scopes[name] = scope
                await self.engine(name).run(task_status=task_status)

        await self.nursery.start(run)

    def kill(self, name: str) -> None:
        """The engine's process dies: connections reset, new ones refused."""
        self.engine(name).die()
        self.scopes[name].cancel(reason="killed")

    async def connect(self) -> Client:
        return Client(await self.network.connect("router", 8000))

    async def post(self, body: Any, path: str = "/v1/completions", **more: Any) -> Answer:
        """Ask on a connection of its own and read the whole answer."""
        client = await self.connect()
        try:
            return await (await client.ask(body, path, **more)).answer()
        finally:
            client.close()

    async def get(self, path: str, method: str = "GET") -> Answer:
        return await self.post(None, path, method=method)

    async def settle(self, seconds: float = 2.0) -> None:
        """Let release legs and closing connections come to their ends."""
        await trio.sleep(seconds)

    def at_rest(self) -> None:
        core = self.router.core
        assert len(core.lives) == 0
        assert core.retained == 0
        assert (core.queue.admitted, core.queue.waiting) == (0, 0)
        assert core.ledger.total == 0
        assert all(desk.waiting == 0 for desk in core.desks.values())
        assert sum(core.counting.values()) == 0
        assert core.errands.running == 0
        for client in core.engines.values():
            for pool in (client.pools.data, client.pools.counting, client.pools.control):
                assert (pool.busy, pool.waiting) == (0, 0)
        assert self.router.telemetry.in_flight == 0
        assert self.stubs.inflight == 0
        self._check_rows()

    def _check_rows(self) -> None:
        totals = self.router.telemetry.totals()
        assert sum(totals.terminals.values()) == totals.received == len(self.rows)
        for row in self.rows:
            assert abs(sum(row.spent.values()) - row.request_s) < 1e-3
            limit = row.arrival + self.config.serving.request_timeout_s + 1.0
            assert row.arrival + row.request_s <= limit + 1e-6
            assert len(row.attempts) <= self.config.serving.max_attempts
        assert all(uses == 1 for uses in self.stubs.uses.values()), "a handoff was used twice"

    @property
    def row(self) -> Any:
        """The journal row of the only request so far."""
        assert len(self.rows) == 1
        return self.rows[0]

    def spent(self, phase: Phase) -> float:
        return float(self.row.spent.get(phase, 0.0))


class open_world:  # noqa: N801 - used as a function
    """Open a world around an `async with` block; leaving it checks that all is at rest."""

    def __init__(
        self,
        config: FleetConfig | None = None,
        *,
        seed: int = 0,
        lease: float = 30.0,
        span_exporter: Any = None,
    ) -> None:
        self._config = config or fleet_config()
        self._span_exporter = span_exporter
        self._seed = seed
        self._lease = lease

    async def __aenter__(self) -> World:
        self._manager = trio.open_nursery()
        nursery = await self._manager.__aenter__()
        self.world = world = World(self._config, nursery, self._lease)
        for spec in self._config.engines:
            world.stubs.add(spec.iid, spec.port)
            await world.start_engine(spec.iid)
        self._router = open_router(
            self._config,
            environ=ENVIRON,
            connect=world.network.connect,
            rng=random.Random(self._seed),
            wall_clock=trio.current_time,
            span_exporter=self._span_exporter,
        )
        world.router = await self._router.__aenter__()
        world.router.telemetry.listen(world.rows.append)
        world.server = data_server(world.router)
        await nursery.start(world.server.serve, [world.network.listen("router", 8000)])
        return world

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if exc is None:
                check_state_of(self.world.router, trio.current_time())
                await self.world.settle()
                self.world.at_rest()
        finally:
            await self._router.__aexit__(None, None, None)
            self.world.nursery.cancel_scope.cancel(reason="the world ends")
            await self._manager.__aexit__(None, None, None)


def play(
    body: Callable[[World], Awaitable[None]],
    config: FleetConfig | None = None,
    *,
    seed: int = 0,
    lease: float = 30.0,
    schedule: int | None = None,
    span_exporter: Any = None,
) -> None:
    """Run `body` in a world in virtual time.

    `seed` is for the router's own randomness. Without `schedule`, the seed of its choices, Trio's
    scheduler makes others every time.
    """

    async def main() -> None:
        opened = open_world(config, seed=seed, lease=lease, span_exporter=span_exporter)
        async with opened as world:
            await body(world)

    if schedule is None:
        trio.run(main, clock=MockClock(autojump_threshold=0))
    else:
        run_seeded(main, seed=schedule)
