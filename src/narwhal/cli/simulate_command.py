"""`narwhal-trio simulate`: worlds in virtual time."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import click
import msgspec

from narwhal.cli.overload_command import overload
from narwhal.cli.progress import passed_on
from narwhal.cli.replay_command import replay
from narwhal.cli.running import fail, fail_config
from narwhal.cli.tune_command import tune
from narwhal.config import load_fleet
from narwhal.model import ConfigError
from narwhal.simulate import INVARIANTS, draw_plan, run_world
from narwhal.simulate.batch import Size, Summary, run_seeds, summarize, total
from narwhal.simulate.plan import ENGINES, REQUESTS

if TYPE_CHECKING:
    from narwhal.config import FleetConfig


@click.group("simulate", short_help="Run whole worlds in virtual time.")
def simulate_group() -> None:
    """Run whole worlds in virtual time: a router, its engines, and clients."""


@simulate_group.command(short_help="Let everything go wrong, and check all promises.")
@click.option("--seed", default=0, show_default=True, type=click.IntRange(0), help="First seed.")
@click.option(
    "--runs", default=1, show_default=True, type=click.IntRange(1), help="How many seeds."
)
@click.option(
    "--fleet",
    type=click.Path(),
    help="A fleet file, for its settings and engines; without, each seed draws its own.",
)
@click.option(
    "--requests",
    default=REQUESTS,
    show_default=True,
    type=click.IntRange(1),
    help="Requests of a world, at least.",
)
@click.option(
    "--engines",
    default=ENGINES,
    show_default=True,
    type=click.IntRange(1, 1000),
    help="Engines of a drawn fleet, at least.",
)
@click.option(
    "--jobs",
    default=1,
    show_default=True,
    type=click.IntRange(1, 256),
    help="Processes to run worlds on.",
)
@click.option("--fail-fast", is_flag=True, help="Stop at the first world that fails.")
@click.option(
    "--trace", type=click.Path(), help="Write everything that happens in a world here, as JSON."
)
@click.option(
    "--format", "form", default="text", show_default=True, type=click.Choice(["text", "json"])
)
@click.pass_context
def chaos(
    context: click.Context,
    *,
    seed: int,
    runs: int,
    fleet: str | None,
    requests: int,
    engines: int,
    jobs: int,
    fail_fast: bool,
    trace: str | None,
    form: str,
) -> None:
    """Let everything go wrong, by a seed, and check that the router keeps its promises.

    Each world has a fleet, clients, and faults of engines, network and clients, all drawn from
    its seed, and hours of it pass in seconds. Exits with 1 if an invariant did not hold, and
    says how to see it again. The same seed gives the same world, to the byte.
    """
    size = Size(requests=requests, engines=engines, config=_load(fleet))
    if trace is not None:
        if runs != 1:
            raise fail(
                f"--trace writes down one world, and --runs is {runs}: leave one of them out"
            )
        summaries = [_traced(seed, size, trace)]
    else:
        worlds = run_seeds(seed, runs, size, jobs=jobs, fail_fast=fail_fast)
        shown = passed_on(
            worlds, "worlds", runs, shown=form == "text", failed=lambda each: bool(each.violations)
        )
        summaries = list(shown)
    if form == "json":
        click.echo(msgspec.json.format(msgspec.json.encode(_document(summaries))).decode())
    else:
        _report(summaries, _replay_options(fleet, requests, engines))
    if any(each.violations for each in summaries):
        context.exit(1)


@simulate_group.command()
def invariants() -> None:
    """Say what is checked of every world."""
    for each in INVARIANTS:
        click.echo(f"{each.name}\n    {each.says}")


for command in (overload, replay, tune):
    simulate_group.add_command(command)


def _load(fleet: str | None) -> FleetConfig | None:
    if fleet is None:
        return None
    try:
        config = load_fleet(fleet, environ=os.environ)
    except ConfigError as error:
        raise fail_config(error) from error
    # It is about engines that are not here: emulated ones would be blocked for what they report.
    return attrs.evolve(config, engine_contract=None)


def _traced(seed: int, size: Size, path: str) -> Summary:
    plan = draw_plan(seed, config=size.config, requests=size.requests, engines=size.engines)
    judged = run_world(plan)
    try:
        Path(path).write_bytes(b"".join(line + b"\n" for line in judged.trace.lines()))
    except OSError as error:
        raise fail(f"--trace: {path} cannot be written ({error.strerror})") from error
    return summarize(judged, real_s=0.0)


def _replay_options(fleet: str | None, requests: int, engines: int) -> str:
    options = []
    if fleet is not None:
        options += ["--fleet", fleet]
    if requests != REQUESTS:
        options += ["--requests", str(requests)]
    if engines != ENGINES:
        options += ["--engines", str(engines)]
    return "".join(f" {shlex.quote(option)}" for option in options)


def _document(summaries: list[Summary]) -> dict[str, Any]:
    worlds = [
        {
            "seed": each.seed,
            "requests": each.requests,
            "engines": each.engines,
            "virtual_s": round(each.virtual_s, 6),
            "digest": each.digest,
            "violations": [
                {"invariant": b.violation.invariant, "text": b.violation.text} for b in each.broken
            ],
        }
        for each in summaries
    ]
    figures = {name: value for name, value in total(summaries).items() if name != "real_s"}
    return {**figures, "by_world": worlds}


def _report(summaries: list[Summary], replay_options: str) -> None:
    for each in summaries:
        for broken in each.broken:
            click.echo(f"seed {each.seed}: {broken.violation.invariant}")
            click.echo(f"    {broken.violation.text}")
        if each.broken:
            click.echo("  before the first of them:")
            for line in each.broken[0].events:
                click.echo(f"    {line}")
            if each.violations > len(each.broken):
                click.echo(f"  and {each.violations - len(each.broken)} more")
            click.echo(f"  again: narwhal-trio simulate chaos --seed {each.seed}{replay_options}")
    figures = total(summaries)
    hours = sum(each.virtual_s for each in summaries) / 3600
    click.echo(f"worlds     {figures['worlds']}, {figures['failed']} failed")
    click.echo(f"requests   {figures['requests']} in {hours:.1f} hours of virtual time")
    click.echo(f"terminals  {_listed(figures['terminals'])}")
    click.echo(f"limits     {_listed(figures['limits'])}")
    click.echo(f"legs       {figures['legs']}, {figures['retries']} retries")
    click.echo(f"handoffs   {figures['kv_released']} released, {figures['kv_orphaned']} orphaned")
    click.echo(f"left over  {figures['leaks']}")


def _listed(counts: Any) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.items()) or "none"
