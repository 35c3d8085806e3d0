"""`narwhal-trio report`: what a journal comes to."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from narwhal.cli.moments import moment, span
from narwhal.cli.numbers import FiniteRange
from narwhal.cli.report_files import STDIN, read_journal
from narwhal.cli.report_json import as_json
from narwhal.cli.report_page import as_page
from narwhal.cli.report_tables import as_text, named
from narwhal.cli.running import fail
from narwhal.cli.written import check_writable, write_text
from narwhal.model import Route, TtftScope
from narwhal.telemetry.report import Reading, SchemaError, Wanted, figures_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from narwhal.telemetry.report import Figures

_AS = {"table": as_text, "json": as_json, "html": as_page}
_TARGET = FiniteRange(min=0, min_open=True)


@click.command("report", short_help="Sum up journals: attainment, times, engines, failures.")
@click.argument("journals", metavar="JOURNAL...", nargs=-1, required=True)
@click.option(
    "--format",
    "form",
    default="table",
    show_default=True,
    type=click.Choice([*_AS]),
    help="For people, for programs, or a page with plots.",
)
@click.option("--out", type=click.Path(), metavar="FILE", help="Write it there, not to stdout.")
@click.option(
    "--since", callback=moment, metavar="MOMENT", help="Requests that came then or later."
)
@click.option("--until", callback=moment, metavar="MOMENT", help="Requests that came before then.")
@click.option(
    "--interval",
    callback=span,
    metavar="LENGTH",
    help="Of the windows over time, if not what suits.",
)
@click.option("--model", help="Rows of routers that serve this model.")
@click.option(
    "--route", type=click.Choice([each.value for each in Route]), help="Requests of this route."
)
@click.option("--engine", metavar="IID", help="Requests that had a leg on this engine.")
@click.option("--ttft", type=_TARGET, metavar="SECONDS", help="Target, not the journal's own.")
@click.option("--tpot", type=_TARGET, metavar="SECONDS", help="Target, not the journal's own.")
@click.option(
    "--ttft-scope",
    type=click.Choice([each.value for each in TtftScope]),
    help="What the target for TTFT covers.",
)
def report(
    *,
    journals: tuple[str, ...],
    form: str,
    out: str | None,
    since: float | None,
    until: float | None,
    interval: float | None,
    model: str | None,
    route: str | None,
    engine: str | None,
    ttft: float | None,
    tpot: float | None,
    ttft_scope: str | None,
) -> None:
    """Sum up journals of requests: attainment, times, engines, what went wrong, over time.

    A JOURNAL may be compressed with gzip; `-` is standard input. A moment is 2026-03-01T12:00
    (UTC), Unix time, or 2h for two hours ago; a length is 90s, 5m or 1h.
    """
    wanted = Wanted(
        since=float("-inf") if since is None else since,
        until=float("inf") if until is None else until,
        model=model,
        route=route,
        engine=engine,
        ttft_s=ttft,
        tpot_s=tpot,
        ttft_scope=None if ttft_scope is None else TtftScope(ttft_scope),
    )
    check_writable("--out", out)
    figures = _figures(_read(journals, wanted), interval)
    text = _AS[form](figures)
    if out is None:
        click.echo(text, nl=not text.endswith("\n"))
    else:
        write_text("--out", out, text if text.endswith("\n") else text + "\n")


def _read(journals: Sequence[str], wanted: Wanted) -> Reading:
    if journals.count(STDIN) > 1:
        raise fail("standard input can be read once; give - only once")
    reading = Reading(wanted)
    for path in journals:
        try:
            read_journal(path, reading)
        except OSError as error:
            reason = error.strerror or str(error)
            raise fail(
                f"{path} cannot be read ({reason}); name a file that `serve --journal` wrote"
            ) from error
        except SchemaError as error:
            raise fail(f"{path}: {error}") from error
    if reading.bad and reading.bad == reading.lines - reading.torn:
        raise fail(
            f"no line of {', '.join(journals)} is a row of a journal: "
            f"{named(reading.bad_lines)}; name a file that `serve --journal` wrote"
        )
    return reading


def _figures(reading: Reading, interval: float | None) -> Figures:
    try:
        return figures_of(reading, width_s=interval)
    except ValueError as error:
        raise fail(f"--interval {interval:g}: {error}; give a longer one") from error
