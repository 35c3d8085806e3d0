"""One replay: the real router over emulated engines, and clients that keep to the trace."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import attrs
import trio

from narwhal.model import Terminal
from narwhal.simulate.overload.clients import Client
from narwhal.simulate.overload.figures import within
from narwhal.simulate.replay.requests import Request, cap_of
from narwhal.simulate.replay.results import Result, Served
from narwhal.simulate.replay.trouble import bring_about
from narwhal.simulate.replay.watching import Watch
from narwhal.testing import open_fleet, run_seeded

if TYPE_CHECKING:
    from collections.abc import Callable

    from narwhal.router import Router
    from narwhal.simulate.replay.replay import Replay
    from narwhal.telemetry import RequestRow

    Progress = Callable[[int], None]
    """Told of how many requests have come to their end, once every sample."""

# Beyond the deadline of the last request, within which all have come to an end.
_TO_SPARE_S = 1000.0


def run_replay(replay: Replay, *, progress: Progress | None = None) -> Result:
    """Serve every arrival of `replay` in virtual time, and tell what became of each.

    Blocks until it is done. The same replay gives the same result, but for `real_s`.
    """
    began = time.perf_counter()
    stage = _Stage(replay, progress or (lambda _: None))
    run_seeded(stage.play, seed=replay.seed)
    return Result(
        arm=replay.arm,
        seed=replay.seed,
        requests=tuple(stage.served(client) for client in stage.clients),
        samples=tuple(stage.watch.samples),
        moves=tuple(stage.watch.moves),
        decisions=dict(sorted(stage.watch.decisions.items())),
        virtual_s=stage.virtual_s,
        real_s=time.perf_counter() - began,
    )


@attrs.define
class _Stage:
    """What there is to be seen of a replay while it runs."""

    replay: Replay
    progress: Progress
    clients: list[Client] = attrs.field(factory=list)
    ends: dict[str, tuple[Terminal, str | None]] = attrs.field(factory=dict)
    """How each request ended, and why, by its client's name."""
    watch: Watch = attrs.field(init=False)
    virtual_s: float = 0.0

    async def play(self) -> None:
        replay = self.replay
        last = replay.arrivals[-1].at if replay.arrivals else 0.0
        most = last + replay.config.serving.request_timeout_s + _TO_SPARE_S
        # The contract is about engines that are not here: these would be blocked for what they
        # report.
        config = attrs.evolve(replay.config, engine_contract=None)
        fleet_of = open_fleet(config, seed=replay.seed, own=replay.engine_settings())
        with trio.fail_after(most):
            async with fleet_of as fleet, fleet.open_router(replay.told) as router:
                router.telemetry.listen(self._keep)
                began = trio.current_time()
                self.watch = Watch(router, began)
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self.watch.run, replay.sample_s, self._tell)
                    for incident in replay.incidents:
                        nursery.start_soon(bring_about, fleet, incident, began)
                    await self._come(router, began)
                    nursery.cancel_scope.cancel(reason="every request is over")
                self.virtual_s = trio.current_time() - began
        self._tell()

    async def _come(self, router: Router, began: float) -> None:
        """Let every client come at its time; returns when all have their answers."""
        async with trio.open_nursery() as nursery:
            for number, arrival in enumerate(self.replay.arrivals):
                cap = cap_of(arrival, self.replay.generosity)
                client = Client(
                    name=str(number),
                    at=began + arrival.at,
                    demand=Request(arrival=arrival, number=number, cap=cap),
                )
                self.clients.append(client)
                await trio.sleep_until(client.at)
                nursery.start_soon(client.ask, router)

    def _keep(self, row: RequestRow) -> None:
        assert row.client_request_id is not None  # noqa: S101 - every client has a name
        self.ends[row.client_request_id] = row.terminal, row.code

    def _tell(self) -> None:
        self.progress(len(self.ends))

    def served(self, client: Client) -> Served:
        """What became of a client's request."""
        terminal, code = self.ends[client.name]
        slo = self.replay.config.slo
        ttft_s = slo.ttft_s if self.replay.ttft_s is None else self.replay.ttft_s
        first, tpot = client.first_token_s, client.tpot_s
        return Served(
            arrival=self.replay.arrivals[int(client.name)],
            terminal=terminal,
            code=code,
            first_token_s=first,
            tpot_s=tpot,
            attained=terminal is Terminal.COMPLETED
            and within(first, ttft_s)
            and within(tpot, slo.tpot_s),
        )
