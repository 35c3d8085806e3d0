"""`narwhal-trio simulate tune`: which settings of the controller do best on given demand."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Any

import click
import msgspec

from narwhal.cli.replay_command import PRESETS
from narwhal.cli.replay_common import Asked, plan_of, shared_options
from narwhal.cli.replay_fleet import with_settings
from narwhal.cli.replay_options import GridOption, Setting
from narwhal.cli.replay_plan import Arm, run_plan
from narwhal.cli.replay_report import (
    LEFT,
    about_of,
    figures_document,
    head_of,
    report_of,
    row_of,
)
from narwhal.cli.running import fail
from narwhal.cli.table import table
from narwhal.cli.written import write_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from narwhal.cli.replay_report import Report
    from narwhal.simulate.replay.figures import Figures

GRID = {
    "controller.reactive.window_s": (15.0, 20.0, 30.0),
    "controller.reactive.movement_margin": (0.05, 0.1, 0.2),
    "controller.reactive.step_s": (1.0, 2.0),
}
"""What is tried without `--grid`."""
MOST_COMBINATIONS = 500
AS_GIVEN = "file"


@click.command(short_help="Replay under every combination of some settings.")
@shared_options
@click.option(
    "--grid",
    "grids",
    multiple=True,
    type=GridOption(),
    metavar="FIELD=VALUE,VALUE,...",
    help="Values to try for a field of the fleet file. Repeatable: all combinations are tried. "
    "Default: window_s 15, 20, 30, movement_margin 0.05, 0.1, 0.2 and step_s 1, 2.",
)
@click.option(
    "--preset",
    default="responsive",
    show_default=True,
    type=click.Choice([*PRESETS, AS_GIVEN]),
    help="What all combinations start from; `file` is as the fleet file says.",
)
def tune(*, grids: tuple[tuple[Setting, ...], ...], preset: str, **shared: Any) -> None:
    """Replay traces under every combination of settings, and sort them by how they do.

    First comes what serves the worst served kind of request best; among equals, what moves
    engines the least.
    """
    asked = Asked(**shared)
    combinations = _combinations(grids or _default_grid())
    start = () if preset == AS_GIVEN else (Setting("controller.preset", preset),)

    def arms(document: dict[str, Any]) -> tuple[Arm, ...]:
        return tuple(
            Arm(
                name=name_of(combination),
                config=with_settings(
                    asked.fleet,
                    document,
                    [*start, *asked.settings, *combination],
                    option="--grid, --set, --preset",
                ),
            )
            for combination in combinations
        )

    plan = plan_of(asked, arms)
    report = report_of(plan, run_plan(plan, jobs=asked.jobs, shown=asked.shown))
    best_first = sorted(report.figures, key=_rank)
    settings = {name_of(each): each for each in combinations}
    document = _as_json(best_first, settings) if asked.form == "json" or asked.out else ""
    write_text("--out", asked.out, document + "\n")
    click.echo(document if asked.form == "json" else _as_text(report, best_first))


def _default_grid() -> tuple[tuple[Setting, ...], ...]:
    return tuple(tuple(Setting(path, value) for value in values) for path, values in GRID.items())


def _combinations(grids: Sequence[tuple[Setting, ...]]) -> list[tuple[Setting, ...]]:
    paths = [grid[0].path for grid in grids]
    for path in paths:
        if paths.count(path) > 1:
            raise fail(f"--grid: {path} is given twice; give all its values at once")
    combinations = list(product(*grids))
    if len(combinations) > MOST_COMBINATIONS:
        raise fail(
            f"--grid: {len(combinations)} combinations are too many; give lists with "
            f"{MOST_COMBINATIONS} at most"
        )
    return combinations


def name_of(combination: Sequence[Setting]) -> str:
    """What an arm is called: the last name of each field, with its value."""
    return " ".join(f"{each.path.rpartition('.')[2]}={_plain(each.value)}" for each in combination)


def _plain(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _rank(each: Figures) -> tuple[float, int, float, str]:
    """Best first."""
    return -(each.worst_kind or 0.0), each.moves, -(each.all.fraction or 0.0), each.arm


def _as_text(report: Report, best_first: Sequence[Figures]) -> str:
    about = [f"{name:<9} {text}" for name, text in about_of(report.plan)]
    rows = [row_of(report, each) for each in best_first]
    return "\n".join([*about, "", *table(head_of(report), rows, left=LEFT)])


def _as_json(best_first: Sequence[Figures], settings: dict[str, tuple[Setting, ...]]) -> str:
    found = [
        {
            "settings": {each.path: each.value for each in settings[figures.arm]},
            **figures_document(figures),
        }
        for figures in best_first
    ]
    return msgspec.json.format(msgspec.json.encode({"combinations": found})).decode()
