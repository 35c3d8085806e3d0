"""The client of `narwhal-trio demo --load`: seeded arrivals over HTTP, and a live table."""

from __future__ import annotations

import random
from collections import deque
from typing import TYPE_CHECKING

import msgspec
import trio
from rich.live import Live
from rich.table import Table

from narwhal.model import NarwhalError, Terminal
from narwhal.net import ConnectionPool, connect_tcp

if TYPE_CHECKING:
    from narwhal.router import Router

# At the rate of a demo this is some tens of seconds: the table shows what is going on now.
_WINDOW = 500
_REFRESH_S = 0.5
_OK = 200
# A demo that asks for more than its machine can do is shown by the router's refusals, not by
# the client's own growth.
_MOST_AT_ONCE = 2000


class DemoLoad:
    """Sends requests at random moments, `rate` a second on average, and shows how they fare."""

    def __init__(self, router: Router, address: tuple[str, int], rate: float, model: str) -> None:
        self._router = router
        self._rate = rate
        self._model = model
        # Load only: nothing here is secret.
        self._rng = random.Random(1)  # noqa: S311
        self._pool = ConnectionPool(
            *address,
            connect=connect_tcp,
            limit=_MOST_AT_ONCE,
            pool_timeout=5.0,
            connect_timeout=5.0,
        )
        self._head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: {address[0]}\r\n".encode()
        self._ttft: deque[float] = deque(maxlen=_WINDOW)
        self._total: deque[float] = deque(maxlen=_WINDOW)
        self._statuses: dict[str, int] = {}
        self._sent = 0

    async def run(self) -> None:
        """Send and show until cancelled."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._show)
                while not self._router.not_ready():
                    await trio.sleep(self._rng.expovariate(self._rate))
                    if self._pool.busy < _MOST_AT_ONCE:
                        nursery.start_soon(self._one)
        finally:
            self._pool.close()

    async def _one(self) -> None:
        self._sent += 1
        words = " ".join(["word"] * self._rng.randint(10, 2000))
        body = msgspec.json.encode(
            {
                "model": self._model,
                "messages": [{"role": "user", "content": words}],
                "max_tokens": self._rng.randint(5, 100),
                "stream": True,
            }
        )
        head = self._head + b"content-type: application/json\r\ncontent-length: %d\r\n\r\n"
        start = trio.current_time()
        try:
            with await self._pool.send(head % len(body) + body, replayable=True) as exchange:
                status = await exchange.response()
                tail = b""
                while data := await exchange.read():
                    if not tail and status == _OK:
                        self._ttft.append(trio.current_time() - start)
                    tail = (tail + data)[-64:]
            whole = tail.endswith(b"data: [DONE]\n\n")
            kind = "completed" if whole else str(status)
        except NarwhalError as error:
            kind = error.code
        self._statuses[kind] = self._statuses.get(kind, 0) + 1
        if kind == "completed":
            self._total.append(trio.current_time() - start)

    async def _show(self) -> None:
        with Live(self._table(), auto_refresh=False) as live:
            while True:
                await trio.sleep(_REFRESH_S)
                live.update(self._table(), refresh=True)

    def _table(self) -> Table:
        table = Table(title=f"{self._rate:g} requests a second", title_justify="left")
        table.add_column("what")
        table.add_column("value", justify="right")
        table.add_row("sent", str(self._sent))
        for kind, count in sorted(self._statuses.items()):
            table.add_row(kind, str(count))
        for name, values in (("first byte", self._ttft), ("whole answer", self._total)):
            for label, share in (("p50", 0.5), ("p99", 0.99)):
                table.add_row(f"{name} {label}, ms", _percentile(values, share))
        live = self._router.live_state()
        table.add_row("waiting", str(live.waiting))
        for engine in live.engines:
            legs = ", ".join(f"{phase} {count}" for phase, count in engine.residents.items())
            table.add_row(f"on {engine.iid}", legs)
        totals = self._router.telemetry.totals()
        table.add_row("retries", str(totals.retries))
        table.add_row("failed", str(totals.terminals[Terminal.FAILED]))
        return table


def _percentile(values: deque[float], share: float) -> str:
    if not values:
        return "-"
    ordered = sorted(values)
    return f"{ordered[min(len(ordered) - 1, int(share * len(ordered)))] * 1000:.0f}"
