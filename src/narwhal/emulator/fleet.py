"""A fleet of emulated engines, served on listeners that the caller gives or opens for it."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Sequence
from itertools import chain
from typing import TYPE_CHECKING

import trio

from narwhal.emulator.app import EngineApp
from narwhal.emulator.engine import EmulatedEngine
from narwhal.emulator.handoff import Fleet
from narwhal.net import Listener, Server, ServerOptions

if TYPE_CHECKING:
    from narwhal.emulator.engine import Outage
    from narwhal.emulator.settings import EngineSettings
    from narwhal.net import MemoryNetwork

Listen = Callable[[str, int], Awaitable[Sequence[Listener]]]
"""Opens the listeners of one engine at a host and port; 0 lets it choose the port."""
Address = tuple[str, int]

TEST_EPOCH = 1_700_000_000.0
"""Unix time at which virtual time reads zero, for answers that repeat exactly."""


class EmulatedFleet:
    """Engines that hand KV over to each other: all in this process, each at its own address.

    `seed` makes the engines' identities and request ids; `epoch` is the Unix time at which
    Trio's clock read zero. Two fleets made alike behave alike.
    """

    def __init__(
        self, settings: Sequence[EngineSettings], *, seed: int = 0, epoch: float = TEST_EPOCH
    ) -> None:
        names = [each.iid for each in settings]
        if len(set(names)) != len(names):
            raise ValueError(f"every engine needs an iid of its own: {names}")
        randomness = random.Random(seed)  # noqa: S311 - ids that repeat, not secrets
        fleet = Fleet()
        self.engines = tuple(
            EmulatedEngine(each, fleet, index=index, random=randomness, epoch=epoch)
            for index, each in enumerate(settings)
        )
        self.apps = tuple(EngineApp(engine, self.engines) for engine in self.engines)
        self.addresses: tuple[Address, ...] = ()
        """Host and port of each engine, once the fleet is served."""

    def __getitem__(self, iid: str) -> EmulatedEngine:
        """The engine of that name; KeyError if there is none."""
        for engine in self.engines:
            if engine.iid == iid:
                return engine
        raise KeyError(iid)

    @property
    def urls(self) -> dict[str, str]:
        """The engines' base URLs by iid, once the fleet is served."""
        pairs = zip(self.engines, self.addresses, strict=True)
        return {engine.iid: f"http://{host}:{port}" for engine, (host, port) in pairs}

    @property
    def idle(self) -> bool:
        """Whether no engine holds a request, a sequence or a KV block."""
        return all(engine.idle for engine in self.engines)

    async def serve(
        self,
        listeners: Sequence[Sequence[Listener]],
        *,
        reopen: Listen,
        task_status: trio.TaskStatus[tuple[Address, ...]] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Serve every engine on its listeners until cancelled; owns and closes them.

        `reopen` opens an engine's address again after an outage.
        """
        engines = zip(self.engines, self.apps, listeners, strict=True)
        try:
            async with trio.open_nursery() as nursery:
                addresses = [
                    await nursery.start(serve_engine, engine, app, own, reopen)
                    for engine, app, own in engines
                ]
                self.addresses = tuple(addresses)
                task_status.started(self.addresses)
        finally:
            for listener in chain(*listeners):
                listener.close()

    async def serve_in(
        self,
        network: MemoryNetwork,
        *,
        task_status: trio.TaskStatus[tuple[Address, ...]] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Serve in memory, engine i at host 10.0.0.(i+1), port 8000; for virtual time.

        `addresses = await nursery.start(fleet.serve_in, network)`
        """

        async def listen(host: str, port: int) -> Sequence[Listener]:
            return [network.listen(host, port)]

        hosts = [f"10.0.0.{place + 1}" for place in range(len(self.engines))]
        listeners = [await listen(host, 8000) for host in hosts]
        await self.serve(listeners, reopen=listen, task_status=task_status)


async def serve_engine(
    engine: EmulatedEngine,
    app: EngineApp,
    listeners: Sequence[Listener],
    reopen: Listen,
    *,
    task_status: trio.TaskStatus[Address] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve one engine until cancelled, its outages included. Owns and closes `listeners`.

    After an outage `reopen` opens the same address again; `OSError` if somebody else took it.
    A cancel drops all connections at once.
    """
    address = listeners[0].address
    async with trio.open_nursery() as nursery:
        engine.began_serving()
        nursery.start_soon(engine.run)
        task_status.started(address)
        while True:
            outage = await _serve_until_outage(engine, app, listeners)
            await engine.wait_for_power(outage)
            listeners = await reopen(*address)


async def _serve_until_outage(
    engine: EmulatedEngine, app: EngineApp, listeners: Sequence[Listener]
) -> Outage:
    server = Server(app, options=ServerOptions(keep_alive_timeout=engine.settings.keep_alive_s))
    async with trio.open_nursery() as nursery:
        await nursery.start(server.serve, listeners)
        outage = await engine.wait_for_outage()
        server.stop_accepting()  # who sees his connection dropped cannot get another
        nursery.cancel_scope.cancel(reason=f"{engine.iid} goes down")
    if outage.new_process:
        engine.end_process()
    return outage
