"""`narwhal-trio simulate replay`: recorded demand on a fleet, in virtual time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from narwhal.cli.replay_arms import Wanted, arms_of
from narwhal.cli.replay_common import Asked, plan_of, shared_options
from narwhal.cli.replay_options import SplitOption
from narwhal.cli.replay_page import as_page
from narwhal.cli.replay_plan import run_plan
from narwhal.cli.replay_report import as_json, as_text, report_of
from narwhal.cli.written import check_writable, write_text
from narwhal.config.control import Preset

if TYPE_CHECKING:
    from narwhal.cli.replay_plan import Arm
    from narwhal.roles import Split

PRESETS = tuple(preset.value for preset in Preset)


@click.command(short_help="Replay traces or a journal on a fleet.")
@shared_options
@click.option(
    "--split",
    "splits",
    multiple=True,
    type=SplitOption(),
    metavar="4P4D",
    help="The first engines prefill, the others decode, for good. Repeatable.",
)
@click.option(
    "--start",
    "starts",
    multiple=True,
    type=SplitOption(),
    metavar="4P4D",
    help="The controller, from this split. Repeatable.",
)
@click.option(
    "--preset",
    "presets",
    multiple=True,
    type=click.Choice(PRESETS),
    help="The controller, with this preset and not the fleet's. Repeatable.",
)
@click.option("--aggregated", is_flag=True, help="All engines run both phases.")
@click.option("--advisory", is_flag=True, help="The controller proposes moves and makes none.")
@click.option("--compare", is_flag=True, help="The controller, and every split beside it.")
@click.option("--html", type=click.Path(), metavar="FILE", help="Write a page with plots here.")
def replay(
    *,
    splits: tuple[Split, ...],
    starts: tuple[Split, ...],
    presets: tuple[str, ...],
    aggregated: bool,
    advisory: bool,
    compare: bool,
    html: str | None,
    **shared: Any,
) -> None:
    """Replay traces on a fleet, and see how much of them is served within the targets.

    The real router serves the requests of the traces in virtual time; its engines are emulated,
    as fast as a profile store says. Traces are Azure's CSV, Mooncake's JSON Lines, or a journal
    of this router. Without any of --split, --start, --preset, --aggregated, --advisory and
    --compare, the fleet is run as its file says. The same command gives the same figures.
    """
    asked = Asked(**shared)
    check_writable("--html", html)
    wanted = Wanted(
        splits=splits,
        starts=starts,
        presets=presets,
        aggregated=aggregated,
        advisory=advisory,
        compare=compare,
    )

    def arms(document: dict[str, Any]) -> tuple[Arm, ...]:
        return arms_of(asked.fleet, document, asked.settings, wanted)

    plan = plan_of(asked, arms)
    report = report_of(plan, run_plan(plan, jobs=asked.jobs, shown=asked.shown))
    text = as_json(report) if asked.form == "json" or asked.out else ""
    write_text("--out", asked.out, text + "\n")
    if html is not None:
        write_text("--html", html, as_page(report))
    click.echo(text if asked.form == "json" else as_text(report))
