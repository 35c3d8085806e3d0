"""`narwhal-trio check`."""

from __future__ import annotations

import json
import os
import random
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click
import trio

from narwhal.cli.check_live import progress
from narwhal.cli.check_report import as_json, as_text
from narwhal.cli.numbers import FiniteRange
from narwhal.cli.running import INTERRUPTED, until_signalled
from narwhal.config import load_fleet
from narwhal.engine import engine_clients
from narwhal.model import ConfigError
from narwhal.preflight import (
    FLEET,
    LEASE_WAIT_S,
    Finding,
    Gate,
    Grade,
    Options,
    Preflight,
    Report,
)
from narwhal.profiles import load_store

if TYPE_CHECKING:
    from narwhal.cli.check_live import Progress
    from narwhal.config import FleetConfig
    from narwhal.profiles import ProfileStore

# An engine is in one handoff at a time, and asked one or two things beside it.
_CONNECTIONS = 8


@click.command("check")
@click.option("--fleet", required=True, type=click.Path(), help="The fleet file.")
@click.option(
    "--wait",
    "wait_s",
    default=0.0,
    show_default=True,
    type=FiniteRange(min=0),
    metavar="SECONDS",
    help="Wait that long for engines that still boot.",
)
@click.option(
    "--repeats",
    default=1,
    show_default=True,
    type=click.IntRange(1, 1000),
    help="Handoffs of each engine and of each pair.",
)
@click.option("--no-kv", is_flag=True, help="Make no handoffs.")
@click.option(
    "--ring",
    is_flag=True,
    help="Hand over between a few pairs, in which each engine produces and decodes, instead of "
    "between all.",
)
@click.option(
    "--lease-wait",
    "lease_wait_s",
    default=LEASE_WAIT_S,
    show_default=True,
    type=FiniteRange(min=0),
    metavar="SECONDS",
    help="Watch a forgotten handoff that long, to see whether its lease ends when it should.",
)
@click.option(
    "--calibrate-first-token",
    "calibrate",
    is_flag=True,
    help="Measure handoffs over the engines' context, and propose engine.first_token_timeout_s.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="For people, or for programs.",
)
@click.option("-v", "--verbose", is_flag=True, help="Tell what was seen at every gate.")
def check(
    *,
    fleet: str,
    wait_s: float,
    repeats: int,
    no_kv: bool,
    ring: bool,
    lease_wait_s: float,
    calibrate: bool,
    form: str,
    verbose: bool,
) -> None:
    """Find out whether a fleet can take traffic, before it does.

    Goes through gates in order and says at each what was seen, what was expected and what to do.
    Engines may be at work meanwhile, but figures are truer if they are idle. Exit status 0: ready;
    1: a gate failed; 2: the command was not used as it should be; 130: it was interrupted.
    """
    options = Options(
        wait_s=wait_s,
        repeats=repeats,
        kv=not no_kv,
        ring=ring,
        lease_wait_s=lease_wait_s,
        calibrate=calibrate,
    )
    interrupted = False
    try:
        config = load_fleet(fleet, environ=os.environ)
    except ConfigError as error:
        report = _unusable(error)
    else:
        with progress() as shown:
            report, interrupted = trio.run(_check, config, options, shown)
    if form == "json":
        click.echo(json.dumps(as_json(report, interrupted=interrupted), indent=2))
    else:
        click.echo(as_text(report, interrupted=interrupted, verbose=verbose))
    if interrupted:
        raise click.exceptions.Exit(INTERRUPTED)
    raise click.exceptions.Exit(0 if report.ok else 1)


def _unusable(error: ConfigError) -> Report:
    """What is to be said of a fleet file that cannot be read."""
    findings = tuple(
        Finding(
            gate=Gate.CONFIG,
            grade=Grade.FAIL,
            subject=FLEET,
            seen=problem,
            expected="a sound fleet file",
            advice="mend it; narwhal-trio config example prints one with notes",
        )
        for problem in error.problems
    )
    return Report(findings=findings, limits=(), calibration=None, seconds=0.0)


async def _check(config: FleetConfig, options: Options, shown: Progress) -> tuple[Report, bool]:
    """Run the preflight until it is done or interrupted; what was found, and whether it was."""
    clients = engine_clients(config, environ=os.environ, data_connections=_CONNECTIONS)
    preflight = Preflight(
        config=config,
        clients=clients,
        store=_store(config),
        rng=random.SystemRandom(),
        wall_clock=time.time,
        options=options,
        on_finding=shown.finding,
        on_gate=shown.gate,
    )
    whole = False

    async def nothing_to_wait_for() -> None:
        """Connections are closed, and what was handed over is released."""

    try:
        async with trio.open_nursery() as nursery:
            await nursery.start(until_signalled, nothing_to_wait_for, nursery.cancel_scope)
            await preflight.run()
            whole = True
            nursery.cancel_scope.cancel(reason="all gates were seen")
    finally:
        for client in clients.values():
            client.close()
    return preflight.report(), not whole


def _store(config: FleetConfig) -> ProfileStore | tuple[str, ...] | None:
    """The profile store, or what is wrong with it; None if there is no file."""
    path = Path(config.profiles.path)
    if not path.exists():
        return None
    try:
        return load_store(path)
    except ConfigError as error:
        return error.problems
