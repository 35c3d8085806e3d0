"""One run: a router, its engines, and clients that come at a rate."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import attrs
import trio

from narwhal.app import open_router
from narwhal.simulate.overload.clients import Client
from narwhal.simulate.overload.demand import draw_demand
from narwhal.testing import open_fleet, run_seeded

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from narwhal.config import FleetConfig
    from narwhal.profiles import Profile
    from narwhal.router import Router
    from narwhal.simulate.overload.demand import Demand
    from narwhal.telemetry import RequestRow
    from narwhal.testing import MemoryFleet

# A run is over when its last counted request is. Nothing in a fleet that serves takes so long.
MOST_SECONDS = 10_000.0


@attrs.frozen(kw_only=True)
class Load:
    """What is offered to one run, at `rate` requests per second."""

    seed: int
    counted: Sequence[Demand]
    """The requests that are counted: the same at any rate, only closer together."""
    rate: float
    warm_up_s: float
    """Time under load before anything is counted."""

    @property
    def seconds(self) -> float:
        """How long the counted requests take to come."""
        return len(self.counted) / self.rate


@attrs.define
class Outcome:
    """What there was to be seen of a run."""

    clients: list[Client] = attrs.field(factory=list)
    """Those that are counted."""
    rows: dict[str, RequestRow] = attrs.field(factory=dict)
    """The journal's row of every request, by its client's name."""


def run_load(config: FleetConfig, load: Load, profiles: Mapping[str, Profile] | None) -> Outcome:
    """Offer `load` to a fleet in virtual time; the same arguments give the same outcome."""
    return run_seeded(_offer, config, load, profiles, seed=load.seed)


async def _offer(
    config: FleetConfig, load: Load, profiles: Mapping[str, Profile] | None
) -> Outcome:
    outcome = Outcome()
    with trio.fail_after(load.warm_up_s + load.seconds + MOST_SECONDS):
        async with (
            open_fleet(config, seed=load.seed) as fleet,
            _router(fleet, load.seed, profiles) as router,
        ):
            router.telemetry.listen(lambda row: _keep(outcome, row))
            await _come(router, load, outcome)
    return outcome


def _router(fleet: MemoryFleet, seed: int, profiles: Mapping[str, Profile] | None) -> open_router:
    return open_router(
        fleet.config,
        environ=fleet.environ,
        connect=fleet.connect,
        rng=random.Random(f"router {seed}"),
        wall_clock=trio.current_time,
        profiles=profiles,
    )


def _keep(outcome: Outcome, row: RequestRow) -> None:
    assert row.client_request_id is not None  # noqa: S101 - every client has a name
    outcome.rows[row.client_request_id] = row


async def _come(router: Router, load: Load, outcome: Outcome) -> None:
    """Let clients come until the last one that is counted has its answer.

    Others come after those that are counted, so that these have company to their ends.
    """
    left = len(load.counted)
    over = trio.Event()

    async def ask(client: Client) -> None:
        nonlocal left
        await client.ask(router)
        left -= client.counted
        if not left:
            over.set()

    async def come(nursery: trio.Nursery) -> None:
        for client in draw_clients(load):
            if client.counted:
                outcome.clients.append(client)
            await trio.sleep_until(client.at)
            nursery.start_soon(ask, client)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(come, nursery)
        await over.wait()
        nursery.cancel_scope.cancel(reason="all that is counted is over")


def draw_clients(load: Load) -> Iterator[Client]:
    """Clients without end, by the time they come: Poisson arrivals.

    Given how many come within a time, each comes at any moment of it, whenever the others do. So
    the counted ones come at just the rate that was asked for, and not about.
    """
    rng = random.Random(f"arrivals {load.seed}")
    others = draw_demand(random.Random(f"others {load.seed}"))
    names = iter(range(1 << 62))

    def other(at: float) -> Client:
        return Client(name=f"other-{next(names)}", at=at, demand=next(others), counted=False)

    at = rng.expovariate(load.rate)
    while at < load.warm_up_s:
        yield other(at)
        at += rng.expovariate(load.rate)
    times = sorted(rng.random() for _ in load.counted)
    for number, (share, demand) in enumerate(zip(times, load.counted, strict=True)):
        yield Client(name=f"{number}", at=load.warm_up_s + share * load.seconds, demand=demand)
    at = load.warm_up_s + load.seconds
    while True:
        at += rng.expovariate(load.rate)
        yield other(at)
