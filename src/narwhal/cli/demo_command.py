"""`narwhal-trio demo`: a fleet of emulated engines and a router, in one process."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING

import click
import trio

from narwhal.app import data_server, open_router
from narwhal.cli.demo_load import DemoLoad
from narwhal.cli.numbers import FiniteRange
from narwhal.cli.running import listen, set_up_logging, until_signalled
from narwhal.config import FleetConfig, parse_fleet
from narwhal.emulator import EmulatedFleet, EngineSettings
from narwhal.net import open_listeners

if TYPE_CHECKING:
    from collections.abc import Sequence

    from narwhal.net import Listener

MODEL = "demo"
# The demo's streams last a second or two; who ends it does not want to wait for more.
GRACE_S = 2.0


@click.command(short_help="Serve an emulated fleet: no GPU, no configuration.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port",
    default=8000,
    show_default=True,
    type=click.IntRange(0, 65535),
    help="Port of the router; 0 takes a free one.",
)
@click.option(
    "--prefill", default=2, show_default=True, type=click.IntRange(1, 64), help="Prefill engines."
)
@click.option(
    "--decode", default=2, show_default=True, type=click.IntRange(1, 64), help="Decode engines."
)
@click.option(
    "--load",
    metavar="RPS",
    type=FiniteRange(min=0, min_open=True),
    help="Send this many requests a second and show a live table.",
)
@click.option(
    "--seconds",
    type=FiniteRange(min=0, min_open=True),
    help="End after this long instead of at Ctrl-C.",
)
def demo(
    *,
    host: str,
    port: int,
    prefill: int,
    decode: int,
    load: float | None,
    seconds: float | None,
) -> None:
    """Serve an emulated fleet until interrupted; no GPU and no configuration needed."""
    set_up_logging("warning")
    trio.run(_demo, host, port, {"prefill": prefill, "decode": decode}, load, seconds)


async def _demo(
    host: str, port: int, counts: dict[str, int], load: float | None, seconds: float | None
) -> None:
    listeners = await listen(host, port)
    settings = [
        EngineSettings(iid=f"{role[0]}{n}", model=MODEL)
        for role, count in counts.items()
        for n in range(count)
    ]
    async with trio.open_nursery() as engines:
        fleet = EmulatedFleet(settings, epoch=time.time() - trio.current_time())
        own = [await open_listeners("127.0.0.1", 0) for _ in settings]
        await engines.start(partial(fleet.serve, own, reopen=open_listeners))
        await _route(fleet_config(fleet.urls), listeners, load, seconds)
        engines.cancel_scope.cancel(reason="the demo is over")


def fleet_config(urls: dict[str, str]) -> FleetConfig:
    """Return the demo's fleet file, as a value: bounded everywhere, so that overload is seen."""
    roles = {"p": "prefill", "d": "decode"}
    document = {
        "schema": "narwhal.fleet",
        "schema_version": 1,
        "model": MODEL,
        "engines": [{"iid": iid, "url": url, "role": roles[iid[0]]} for iid, url in urls.items()],
        "slo": {"ttft_s": 2.0, "tpot_s": 0.1},
        "serving": {
            "admission": "open",
            "queue_capacity": 256,
            "queue_timeout_s": 10.0,
            "prefill_concurrency": 64,
            "decode_concurrency": 256,
            "handoff_timeout_s": 20.0,
            "max_attempts": 2,
        },
    }
    return parse_fleet(document, name="demo", environ={})


async def _route(
    config: FleetConfig,
    listeners: Sequence[Listener],
    load: float | None,
    seconds: float | None,
) -> None:
    address, port = listeners[0].address
    async with open_router(config) as router:
        server = data_server(router)

        async def drain() -> None:
            await router.drain(GRACE_S)
            await server.drain(0.1)

        async with trio.open_nursery() as nursery:
            await nursery.start(until_signalled, drain, nursery.cancel_scope)
            await nursery.start(server.serve, listeners)
            _greet(config, f"http://{address}:{port}")
            if load is not None:
                nursery.start_soon(DemoLoad(router, (address, port), load, MODEL).run)
            if seconds is not None:
                await trio.sleep(seconds)
                await drain()
                nursery.cancel_scope.cancel(reason="the demo's time is over")


def _greet(config: FleetConfig, url: str) -> None:
    body = '{"model": "demo", "messages": [{"role": "user", "content": "Hello"}], "stream": true}'
    click.echo(f"narwhal-trio: {len(config.engines)} emulated engines behind {url}; try\n")
    click.echo(f"  curl -N {url}/v1/chat/completions -H 'content-type: application/json' \\")
    click.echo(f"    -d '{body}'\n")
    click.echo(f"Status: {url}/narwhal/ui  Metrics: {url}/metrics  End with Ctrl-C.")
