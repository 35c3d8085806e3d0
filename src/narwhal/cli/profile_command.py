"""`narwhal-trio profile`."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import click
import trio

from narwhal.cli.profile_options import Limits, Numbers, TextFile
from narwhal.cli.profile_report import Report, as_json, as_text, plot
from narwhal.cli.profile_run import FleetRun, Stopped
from narwhal.cli.running import INTERRUPTED, fail, fail_config, until_signalled
from narwhal.config import load_fleet
from narwhal.engine import engine_clients
from narwhal.model import ConfigError
from narwhal.profiler import TEXTS, Wanted
from narwhal.profiler.sweep import DECODE_TOKENS, PREFILL_REPEATS
from narwhal.profiles import Refused, load_samples, refit_row, samples_path, update_store

if TYPE_CHECKING:
    from collections.abc import Sequence

    from narwhal.config import FleetConfig

# A batch is as many connections, and there are a few requests beside it at the most.
_MORE_CONNECTIONS = 8


@click.command("profile", short_help="Measure how long the engines of a fleet take.")
@click.option("--fleet", required=True, type=click.Path(), help="The fleet file.")
@click.option("--only", multiple=True, metavar="IID", help="This engine alone; may be repeated.")
@click.option("--out", type=click.Path(), help="The profile store, instead of profiles.path.")
@click.option("--overwrite", is_flag=True, help="Measure engines again that have a profile.")
@click.option(
    "--refit", is_flag=True, help="Fit the samples beside the store again; measure nothing."
)
@click.option(
    "--prefill-lens",
    type=Numbers("512,2048,8192,16384"),
    metavar="N,...",
    help="Lengths of prompts, four or more.  [default: two for each doubling from 64 to the "
    "engine's context]",
)
@click.option(
    "--prefill-repeats",
    type=click.IntRange(min=3),
    default=PREFILL_REPEATS,
    show_default=True,
    help="Prefills of each length; their median counts.",
)
@click.option(
    "--decode-input-lens",
    type=Numbers("256,2048,8192"),
    metavar="N,...",
    help="Lengths of prompts of streams.  [default: 256,2048,8192, as the context allows]",
)
@click.option(
    "--decode-concurrency",
    type=Numbers("1,4,16,64"),
    metavar="N,...",
    help="Streams at one time.  [default: 1,2,8,32,64, as memory allows]",
)
@click.option(
    "--decode-tokens",
    type=click.IntRange(min=3),
    default=DECODE_TOKENS,
    show_default=True,
    help="Tokens of each stream that are timed, while all streams decode.",
)
@click.option(
    "--limits",
    type=Limits(),
    metavar="N|FILE",
    help="Most requests that an engine runs at once (its max_num_seqs): a number, or a JSON file "
    'such as {"p0": 64}. Larger batches are left out.',
)
@click.option(
    "--text",
    "texts",
    type=TextFile(),
    multiple=True,
    metavar="FILE",
    help="A prompt as your clients write them, to measure engine.chars_per_token with; may be "
    "repeated.",
)
@click.option("--plot", "plot_file", type=click.Path(), metavar="FILE.svg", help="Draw the fits.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="For people, or for programs.",
)
def profile(
    *,
    fleet: str,
    only: tuple[str, ...],
    out: str | None,
    overwrite: bool,
    refit: bool,
    prefill_lens: tuple[int, ...] | None,
    prefill_repeats: int,
    decode_input_lens: tuple[int, ...] | None,
    decode_concurrency: tuple[int, ...] | None,
    decode_tokens: int,
    limits: int | dict[str, int] | None,
    texts: tuple[str, ...],
    plot_file: str | None,
    form: str,
) -> None:
    """Measure how long the engines of a fleet take, and write its profile store.

    Engines are measured one after the other. Each has to be idle, and so has one other, which
    hands KV over to it. A finished engine is saved at once, with its samples in a file beside the
    store. Ctrl-C leaves the engines idle; the same command goes on where it stopped.
    """
    wanted = Wanted(
        prefill_lens=prefill_lens,
        prefill_repeats=prefill_repeats,
        decode_input_lens=decode_input_lens,
        decode_concurrency=decode_concurrency,
        decode_tokens=decode_tokens,
    )
    try:
        config = load_fleet(fleet, environ=os.environ)
        store = Path(out or config.profiles.path)
        chosen = _chosen(config, only)
        stopped = None
        if refit:
            report = _refit(config, store, chosen)
        else:
            run = FleetRun(
                config=config,
                store=store,
                chosen=chosen,
                overwrite=overwrite,
                wanted={iid: _limited(wanted, limits, iid) for iid in chosen},
                texts=texts or TEXTS,
                rng=random.SystemRandom(),
            )
            stopped = trio.run(_measure, run)
            report = run.report
        if plot_file is not None:
            _write_plot(plot_file, report)
    except ConfigError as error:
        raise fail_config(error) from error
    click.echo(json.dumps(as_json(report), indent=2) if form == "json" else as_text(report))
    if stopped is not None:
        failed = fail(*stopped.lines)
        raise click.exceptions.Exit(INTERRUPTED) if stopped.interrupted else failed


async def _measure(run: FleetRun) -> Stopped | None:
    """Measure until done or told to stop; why it stopped, if it did before the end."""
    widest = max((max(each.decode_concurrency or (0,)) for each in run.wanted.values()), default=0)
    clients = engine_clients(
        run.config,
        environ=os.environ,
        data_connections=max(run.config.serving.max_connections, widest) + _MORE_CONNECTIONS,
    )
    stopped, whole = None, False

    async def nothing_to_wait_for() -> None:
        """Streams are closed; nobody is cut short."""

    try:
        async with trio.open_nursery() as nursery:
            await nursery.start(until_signalled, nothing_to_wait_for, nursery.cancel_scope)
            stopped, whole = await run.measure(clients), True
            nursery.cancel_scope.cancel(reason="all engines are measured")
    finally:
        for client in clients.values():
            client.close()
    return stopped if whole else run.interrupted()


def _chosen(config: FleetConfig, only: Sequence[str]) -> list[str]:
    """The engines to measure, in the order of the fleet file."""
    iids = [spec.iid for spec in config.engines]
    unknown = [iid for iid in only if iid not in iids]
    if unknown:
        raise fail(f"--only {unknown[0]}: the fleet has no such engine, but {', '.join(iids)}")
    return [iid for iid in iids if not only or iid in only]


def _limited(wanted: Wanted, limits: int | dict[str, int] | None, iid: str) -> Wanted:
    most = limits.get(iid) if isinstance(limits, dict) else limits
    return attrs.evolve(wanted, max_requests=most)


def _refit(config: FleetConfig, store: Path, chosen: Sequence[str]) -> Report:
    """Fit what was measured before. Raises `ConfigError` if there is no fit or are no samples."""
    path = samples_path(store)
    samples = {each.engine.iid: each for each in load_samples(path).engines}
    problems = [
        f"{path.name}: has nothing about engine {iid}: measure it without --refit"
        for iid in chosen
        if iid not in samples
    ]
    report = Report(config=config, store=store)
    for iid in chosen:
        if iid in samples:
            row = refit_row(samples[iid])
            if isinstance(row, Refused):
                problems.append(f"{path.name}: {iid}: {row.text}")
            else:
                report.add(samples[iid], row)
    if problems:
        raise ConfigError(problems)
    update_store(store, report.rows)
    return report


def _write_plot(path: str, report: Report) -> None:
    try:
        Path(path).write_text(plot(report), encoding="utf-8")
    except OSError as error:
        raise fail(f"--plot: {path} cannot be written ({error.strerror})") from error
