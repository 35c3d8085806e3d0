"""The options that `simulate replay` and `simulate tune` share, and the work behind them."""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING, Any, TypeVar

import attrs
import click

from narwhal.cli.replay_fleet import profiles_of, read_document
from narwhal.cli.replay_options import (
    PhasesOption,
    PositiveOption,
    RatesOption,
    SeedsOption,
    SettingOption,
    TraceOption,
)
from narwhal.cli.replay_plan import Arm, Plan, read_workload
from narwhal.cli.running import fail
from narwhal.cli.written import check_writable
from narwhal.simulate.replay.workload import PHASE_S, Shape

if TYPE_CHECKING:
    from collections.abc import Callable

    from narwhal.cli.replay_options import Setting, TraceFile

Command = TypeVar("Command", bound="Callable[..., None]")

_OPTIONS = (
    click.option(
        "--trace",
        "traces",
        required=True,
        multiple=True,
        type=TraceOption(),
        metavar="[NAME=]FILE",
        help="What to replay; its kind is NAME, or the file's own. Repeatable.",
    ),
    click.option(
        "--fleet", required=True, type=click.Path(), metavar="FILE", help="The fleet file."
    ),
    click.option(
        "--profiles",
        type=click.Path(),
        metavar="FILE",
        help="The store that engines are made from, if it is not the fleet's.",
    ),
    click.option(
        "--believed",
        type=click.Path(),
        metavar="FILE",
        help="The store that the router is given, if engines are not as it thinks.",
    ),
    click.option(
        "--rate",
        default=1.0,
        show_default=True,
        type=PositiveOption(),
        metavar="SCALE",
        help="Times as many requests per second.",
    ),
    click.option(
        "--phases",
        default=(),
        type=PhasesOption(),
        metavar="NAME,NAME,...",
        help="Slices of these traces in turn, and not all of them at once.",
    ),
    click.option(
        "--phase-s",
        default=PHASE_S,
        show_default=True,
        type=PositiveOption(),
        metavar="SECONDS",
        help="Length of a phase.",
    ),
    click.option(
        "--rates",
        default={},
        type=RatesOption(),
        metavar="NAME=RATE,...",
        help="Requests per second of traces, before --rate.",
    ),
    click.option(
        "--smooth",
        default=0,
        show_default=True,
        type=click.IntRange(0, 1_000_000),
        metavar="N",
        help="Neighbours over which gaps between requests are smoothed.",
    ),
    click.option(
        "--limit",
        type=PositiveOption(),
        metavar="SECONDS",
        help="Only so much of each trace, from its beginning.",
    ),
    click.option(
        "--set",
        "settings",
        multiple=True,
        type=SettingOption(),
        metavar="FIELD=VALUE",
        help="Another value for a field of the fleet file, by its path. Repeatable.",
    ),
    click.option(
        "--seeds",
        default="0",
        show_default=True,
        type=SeedsOption(),
        metavar="N,N,...",
        help="Every arm is replayed with each of them.",
    ),
    click.option(
        "--score-ttft",
        type=PositiveOption(),
        metavar="SECONDS",
        help="The target that first tokens are judged by, if it is not the fleet's.",
    ),
    click.option(
        "--jobs",
        default=1,
        show_default=True,
        type=click.IntRange(1, 256),
        help="Processes to run on.",
    ),
    click.option("--out", type=click.Path(), metavar="FILE", help="Write the JSON here as well."),
    click.option(
        "--format", "form", default="text", show_default=True, type=click.Choice(["text", "json"])
    ),
)


def shared_options(command: Command) -> Command:
    """Give a command all of them; it passes what it is not named for on to `Asked`."""
    return reduce(lambda wrapped, option: option(wrapped), reversed(_OPTIONS), command)


@attrs.frozen(kw_only=True)
class Asked:
    """The values of the shared options."""

    traces: tuple[TraceFile, ...]
    fleet: str
    profiles: str | None
    believed: str | None
    rate: float
    phases: tuple[str, ...]
    phase_s: float
    rates: dict[str, float]
    smooth: int
    limit: float | None
    settings: tuple[Setting, ...]
    seeds: tuple[int, ...]
    score_ttft: float | None
    jobs: int
    out: str | None
    form: str

    @property
    def shape(self) -> Shape:
        """What is made of the traces."""
        return Shape(
            scale=self.rate,
            rates=self.rates,
            seconds=self.limit,
            smooth=self.smooth,
            phases=self.phases,
            phase_s=self.phase_s,
        )

    @property
    def shown(self) -> bool:
        """Whether a person reads what comes out."""
        return self.form == "text"


def plan_of(asked: Asked, arms_of: Callable[[dict[str, Any]], tuple[Arm, ...]]) -> Plan:
    """Read all files and check all options; exits with the first that is wrong.

    `arms_of` makes the arms of the fleet file's document.
    """
    check_writable("--out", asked.out)
    arms = arms_of(read_document(asked.fleet))
    config = arms[0].config
    truth = profiles_of(config, asked.profiles, option="--profiles")
    believed = None
    if asked.believed is not None:
        believed = profiles_of(config, asked.believed, option="--believed")
    workload = read_workload(asked.traces, asked.shape, asked.seeds)
    plan = Plan(
        workload=workload,
        arms=arms,
        truth=truth,
        believed=believed,
        score_ttft_s=asked.score_ttft,
    )
    try:
        _ = plan.replays
    except ValueError as error:
        raise fail(str(error)) from error
    return plan
