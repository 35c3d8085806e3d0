"""`narwhal-trio simulate overload`: what is served in time, at any load."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import click

from narwhal.cli.chart import svg_chart
from narwhal.cli.overload_report import as_json, as_text, panels
from narwhal.cli.progress import passed_on
from narwhal.cli.written import check_writable, write_text
from narwhal.simulate.overload import Experiment, run_overload
from narwhal.simulate.overload.batch import DECODE, LOADS, OFF, PREFILL, REQUESTS

if TYPE_CHECKING:
    from narwhal.simulate.overload import Figures

LEAST_LOAD, MOST_LOAD = 0.01, 20.0
MOST_LOADS = 50
MOST_OFF = 0.9


def _loads(context: click.Context, parameter: click.Parameter, value: str) -> tuple[float, ...]:
    """The numbers of a list with commas, in the order in which they are given; each once."""
    loads = dict.fromkeys(_load(context, parameter, text) for text in value.split(","))
    if len(loads) > MOST_LOADS:
        says = f"{len(loads)} loads are too many; give {MOST_LOADS} at most"
        raise click.BadParameter(says, context, parameter)
    return tuple(loads)


def _load(context: click.Context, parameter: click.Parameter, text: str) -> float:
    load = _number(text)
    if load is None or not LEAST_LOAD <= load <= MOST_LOAD:
        says = (
            f"{text!r} is not a number from {LEAST_LOAD:g} to {MOST_LOAD:g}; give multiples "
            "of capacity, as in 0.7,1,1.5,3"
        )
        raise click.BadParameter(says, context, parameter)
    return load


def _share(context: click.Context, parameter: click.Parameter, value: str) -> float:
    share = _number(value)
    if share is None or not 0.0 <= share <= MOST_OFF:
        says = f"{value!r} is not a fraction from 0 to {MOST_OFF:g}; give 0.1 for 10 %"
        raise click.BadParameter(says, context, parameter)
    return share


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


@click.command(short_help="Offer a fleet more than it can do, in virtual time.")
@click.option(
    "--loads",
    default=",".join(f"{load:g}" for load in LOADS),
    show_default=True,
    callback=_loads,
    metavar="LOAD,LOAD,...",
    help="Offered rates, as multiples of capacity.",
)
@click.option(
    "--requests",
    default=REQUESTS,
    show_default=True,
    type=click.IntRange(1, 1_000_000),
    help="Requests of each run that are counted.",
)
@click.option("--seed", default=0, show_default=True, type=click.IntRange(0), help="Of all chance.")
@click.option(
    "--off",
    default=f"{OFF:g}",
    show_default=True,
    callback=_share,
    metavar="FRACTION",
    help="How far the coefficients of the profiles are off, where they are.",
)
@click.option(
    "--prefill",
    default=PREFILL,
    show_default=True,
    type=click.IntRange(1, 100),
    help="Prefill engines.",
)
@click.option(
    "--decode",
    default=DECODE,
    show_default=True,
    type=click.IntRange(1, 100),
    help="Decode engines.",
)
@click.option(
    "--jobs",
    default=1,
    show_default=True,
    type=click.IntRange(1, 256),
    help="Processes to run on.",
)
@click.option("--plot", type=click.Path(), help="Draw the figures here, as SVG.")
@click.option(
    "--format", "form", default="text", show_default=True, type=click.Choice(["text", "json"])
)
def overload(
    *,
    loads: tuple[float, ...],
    requests: int,
    seed: int,
    off: float,
    prefill: int,
    decode: int,
    jobs: int,
    plot: str | None,
    form: str,
) -> None:
    """Offer more than a fleet can do, and see how much of it is served within the targets.

    Clients come at a fixed rate, whatever becomes of those before them, to the real router over
    emulated engines, in virtual time: with exact profiles, with profiles that are off, and with
    admission open. The same seed gives the same figures.
    """
    check_writable("--plot", plot)
    experiment = Experiment(
        loads=loads, requests=requests, seed=seed, off=off, prefill=prefill, decode=decode
    )
    runs = run_overload(experiment, jobs=jobs)
    figures = list(passed_on(runs, "runs", len(experiment.points), shown=form == "text"))
    if plot is not None:
        _draw(plot, experiment, figures)
    click.echo(as_json(experiment, figures) if form == "json" else as_text(experiment, figures))


def _draw(plot: str, experiment: Experiment, figures: list[Figures]) -> None:
    text = svg_chart(panels(experiment, figures), title="Load and what is served in time")
    write_text("--plot", plot, text)
