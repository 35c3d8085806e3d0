"""`narwhal-trio emulate`."""

from __future__ import annotations

import secrets
import time
from typing import TYPE_CHECKING

import click
import trio

from narwhal.cli.numbers import FiniteRange
from narwhal.cli.running import fail, until_signalled
from narwhal.emulator import (
    EmulatedFleet,
    EngineSettings,
    Fault,
    TimeModel,
    parse_fault,
)
from narwhal.emulator.settings import MOST_NOISE
from narwhal.net import open_listeners

if TYPE_CHECKING:
    from collections.abc import Sequence

    from narwhal.net import RawListener

_DEFAULTS = EngineSettings()
_LAST_PORT = 65535


class _Coefficients(click.ParamType[tuple[float, ...]]):
    """Numbers with commas between them."""

    name = "numbers"

    def __init__(self, count: int, example: str) -> None:
        self._count = count
        self._example = example

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[float, ...]:
        """Read the numbers, or say how they are to be written."""
        if isinstance(value, tuple):
            return value
        try:
            numbers = tuple(float(part) for part in str(value).split(","))
        except ValueError:
            numbers = ()
        fine = all(0 <= number < float("inf") for number in numbers)
        if len(numbers) != self._count or not fine:
            text = f"{value!r} is not {self._count} numbers from 0, such as {self._example}"
            self.fail(text, param, ctx)
        return numbers


class _FaultText(click.ParamType[Fault]):
    """A fault in its text form."""

    name = "fault"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> Fault:
        """Read the fault, or say what is wrong with it."""
        if isinstance(value, Fault):
            return value
        try:
            return parse_fault(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


@click.command(short_help="Serve emulated engines that speak vLLM's dialect.")
@click.option(
    "--engines", default=2, show_default=True, type=click.IntRange(1, 1000), help="How many."
)
@click.option(
    "--base-port",
    required=True,
    type=click.IntRange(0, _LAST_PORT),
    help="Port of the first engine; the others follow it. 0: a free port for each.",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--model", default=_DEFAULTS.model, show_default=True, help="Name of the model they serve."
)
@click.option(
    "--prefill",
    type=_Coefficients(3, "2e-9,1e-4,0.01"),
    metavar="A,B,C",
    default=_DEFAULTS.time.prefill,
    help="A prompt of n tokens takes A n^2 + B n + C seconds.  [default: 2e-9,1e-4,0.01]",
)
@click.option(
    "--decode",
    type=_Coefficients(3, "0.012,2e-4,2e-7"),
    metavar="T0,TR,TK",
    default=_DEFAULTS.time.decode,
    help="With r requests over k KV tokens, a token takes T0 + TR r + TK k seconds.  "
    "[default: 0.012,2e-4,2e-7]",
)
@click.option(
    "--handoff",
    type=_Coefficients(2, "0.002,2e-6"),
    metavar="BASE,TOKEN",
    default=_DEFAULTS.time.handoff,
    help="Pulling the KV cache of n tokens takes BASE + TOKEN n seconds.  [default: 0,0]",
)
@click.option(
    "--chunk-tokens",
    type=click.IntRange(min=1),
    metavar="TOKENS",
    help="Prompt tokens that share one decode step, so that prefill and decode on one engine slow "
    "each other; without, they run side by side.",
)
@click.option(
    "--noise",
    default=0.0,
    show_default=True,
    type=FiniteRange(0.0, MOST_NOISE),
    help="Standard deviation of each of these times, as a fraction of it.",
)
@click.option(
    "--speed",
    default=1.0,
    show_default=True,
    type=FiniteRange(min=0, min_open=True),
    help="Run the model of time this many times as fast.",
)
@click.option(
    "--lease",
    default=_DEFAULTS.lease_s,
    show_default=True,
    type=FiniteRange(min=0, min_open=True),
    help="Seconds a prefilled KV cache waits for its decoder.",
)
@click.option(
    "--kv-capacity",
    type=click.IntRange(min=1),
    metavar="TOKENS",
    help="Tokens of KV cache of each engine; without, any number.",
)
@click.option(
    "--max-model-len",
    type=click.IntRange(min=1),
    metavar="TOKENS",
    default=_DEFAULTS.max_model_len,
    show_default=True,
    help="Longest prompt and answer together.",
)
@click.option(
    "--max-num-seqs",
    type=click.IntRange(min=1),
    default=_DEFAULTS.max_num_seqs,
    show_default=True,
    help="Requests that run at once on an engine.",
)
@click.option(
    "--max-num-queued-reqs",
    type=click.IntRange(min=1),
    help="Answer 503 when this many run and wait; without, never.",
)
@click.option(
    "--api-key",
    envvar="NARWHAL_EMULATOR_API_KEY",
    help="Ask for this bearer token on every route.",
)
@click.option(
    "--fault",
    "faults",
    type=_FaultText(),
    multiple=True,
    help="A fault for all engines, such as 'decode:tokens(3);rst*2'. May be repeated.",
)
def emulate(
    *,
    engines: int,
    base_port: int,
    host: str,
    model: str,
    prefill: tuple[float, float, float],
    decode: tuple[float, float, float],
    handoff: tuple[float, float],
    chunk_tokens: int | None,
    noise: float,
    speed: float,
    lease: float,
    kv_capacity: int | None,
    max_model_len: int,
    max_num_seqs: int,
    max_num_queued_reqs: int | None,
    api_key: str | None,
    faults: tuple[Fault, ...],
) -> None:
    """Serve emulated engines that speak vLLM's dialect, until SIGTERM or SIGINT.

    They hand KV over to each other, need no GPU, and can be told to fail: by --fault, by the
    header x-emulator-fault, by a prompt word fault=..., or through POST /emulator/fault.
    """
    if base_port + engines - 1 > _LAST_PORT:
        raise fail(
            f"--base-port {base_port} with --engines {engines} goes past port {_LAST_PORT}: "
            "choose a lower port"
        )
    if kv_capacity is not None and max_model_len > kv_capacity:
        raise fail(
            f"--max-model-len {max_model_len} does not fit into --kv-capacity {kv_capacity}: "
            "lower the first or raise the second"
        )
    try:
        settings = [
            EngineSettings(
                iid=f"e{number}",
                model=model,
                time=TimeModel(
                    prefill=prefill, decode=decode, handoff=handoff, chunk_tokens=chunk_tokens
                ).faster(speed),
                noise=noise,
                lease_s=lease,
                kv_capacity_tokens=kv_capacity,
                max_model_len=max_model_len,
                max_num_seqs=max_num_seqs,
                max_num_queued_reqs=max_num_queued_reqs,
                api_key=api_key,
            )
            for number in range(engines)
        ]
    except ValueError as error:
        raise fail(str(error)) from error
    trio.run(_serve, settings, faults, host, base_port)


async def _serve(
    settings: Sequence[EngineSettings], faults: Sequence[Fault], host: str, base_port: int
) -> None:
    listeners: list[list[RawListener]] = []
    try:
        for number in range(len(settings)):
            port = base_port and base_port + number
            own = await open_listeners(host, port)
            listeners.append(own)
    except OSError as error:
        for own in listeners:
            for listener in own:
                listener.close()
        reason = error.strerror or str(error)
        raise fail(
            f"cannot listen on {host}:{port}: {reason}; choose another --host or --base-port"
        ) from error
    epoch = time.time() - trio.current_time()
    fleet = EmulatedFleet(settings, seed=secrets.randbits(64), epoch=epoch)
    for engine in fleet.engines:
        engine.faults.set(faults)

    async def serve_fleet(*, task_status: trio.TaskStatus[object]) -> None:
        await fleet.serve(listeners, reopen=open_listeners, task_status=task_status)

    async def nothing_to_wait_for() -> None:
        """Clients of a test engine get no grace."""

    async with trio.open_nursery() as nursery:
        await nursery.start(until_signalled, nothing_to_wait_for, nursery.cancel_scope)
        await nursery.start(serve_fleet)
        for iid, url in fleet.urls.items():
            click.echo(f"{iid} {url} model {fleet[iid].settings.model}")
