"""A network on which engines cannot always be reached, and connections do not always last."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING

import trio

from narwhal.net import Link, MemoryNetwork, MemoryStream
from narwhal.simulate.plan import rng_for
from narwhal.simulate.unruly import UnrulyListener

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from narwhal.net import Listener
    from narwhal.simulate.plan import Plan
    from narwhal.simulate.trace import Trace

ROUTER = ("router", 8000)
# After this the kernels at both ends have repeated themselves often enough. Theirs take minutes;
# the shorter, the more of a world sees both sides of it.
_GIVE_UP_S = 15.0


class SimulatedNetwork(MemoryNetwork):
    """The network of one world. `run` has to be running.

    Connections to engines are refused, lost, late, severed, cut after any byte, and met by
    servers that do not speak HTTP, as often as the plan says. Connections to the router are
    slow, or cut into segments, but clients are trusted to make trouble of their own.
    """

    def __init__(self, plan: Plan, trace: Trace) -> None:
        super().__init__(buffer_bytes=plan.lines.buffer_bytes, links=self._draw_link)
        self._plan = plan
        self._trace = trace
        self._rng = rng_for(plan.seed, "network")
        self._nursery: trio.Nursery
        self._gone: set[tuple[str, int]] = set()
        self._engines = {(spec.host, spec.port): spec.iid for spec in plan.config.engines}
        self._listened: Counter[str] = Counter()
        self._open: dict[MemoryStream, str] = {}
        self.severed: set[tuple[str, int]] = set()
        """Addresses from which the other end could not learn that it was left."""

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """What happens to connections happens in here, until cancelled."""
        async with trio.open_nursery() as self._nursery:
            task_status.started()
            await trio.sleep_forever()

    def _draw_link(self, host: str, port: int) -> Link:  # noqa: ARG002 - alike everywhere
        lines, rng = self._plan.lines, self._rng
        return Link(
            delay_s=rng.random() * lines.delay_s,
            bytes_per_s=lines.bytes_per_s * (1 + rng.random()),
            segment_bytes=rng.choice((100, 500, 1460)) if lines.segmented else None,
        )

    def listen(self, host: str, port: int = 0, *, backlog: int = 128) -> Listener:  # type: ignore[override]  # any will do here
        """As on any network; engines do not always play their part."""
        listener = super().listen(host, port, backlog=backlog)
        iid = self._engines.get((host, port))
        if iid is None or not self._plan.line_faults:
            return listener
        self._listened[iid] += 1
        return UnrulyListener(
            listener,
            share=self._plan.line_faults / 3,
            rng=rng_for(self._plan.seed, f"listener {iid} {self._listened[iid]}"),
            spawn=self._spawn,
            trace=partial(self._trace.add, engine=iid),
        )

    def _spawn(self, task: Callable[[], Awaitable[object]]) -> None:
        self._nursery.start_soon(task)

    async def connect(self, host: str, port: int) -> MemoryStream:
        """Connect, or meet with a fault."""
        iid = self._engines.get((host, port))
        if iid is None:
            return await super().connect(host, port)
        if (host, port) in self._gone:
            await trio.sleep_forever()
        fault = self._draw_fault()
        if fault is not None:
            self._trace.add("line", engine=iid, fault=fault)
        if fault == "refused":
            raise ConnectionRefusedError
        if fault == "lost":
            await trio.sleep_forever()
        if fault == "late":
            await trio.sleep(self._rng.choice((0.01, 0.5, 3.0)) * self._rng.random())
        stream = await super().connect(host, port)
        self._open[stream] = iid
        if fault in ("sever", "reset"):
            self._spawn(partial(self._end_later, stream, fault))
        return stream

    def _draw_fault(self) -> str | None:
        if self._rng.random() >= self._plan.line_faults:
            return None
        return self._rng.choice(("refused", "lost", "late", "late", "sever", "reset", "reset"))

    async def _end_later(self, stream: MemoryStream, how: str) -> None:
        await trio.sleep(self._rng.choice((0.0, 0.05, 0.5, 5.0)) * self._rng.random())
        self._trace.add("line", engine=self._open[stream], fault=how)
        if how == "sever":
            self._sever(stream)
        else:
            stream.break_down()

    def _sever(self, stream: MemoryStream) -> None:
        if not stream.closed:
            stream.sever(give_up_s=_GIVE_UP_S)
            self.severed.add(stream.local)

    async def vanish(self, iid: str, seconds: float) -> None:
        """Sever every connection to an engine, and lose those that are tried for a while."""
        (address,) = (address for address, name in self._engines.items() if name == iid)
        for stream, name in self._open.items():
            if name == iid:
                self._sever(stream)
        self._gone.add(address)
        await trio.sleep(seconds)
        self._gone.discard(address)
