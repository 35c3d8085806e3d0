"""The commands `config check`, `config show` and `config example`.

Exit status 0: the file is right. 1: it is not, and standard error says why, a line for each
mistake. 2: the command was not used as it should be.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from typing import TYPE_CHECKING

import click

from narwhal.config import read_fleet
from narwhal.config.example import example_text
from narwhal.config.report import as_json, as_text
from narwhal.model import ConfigError, Role

if TYPE_CHECKING:
    from narwhal.config import FleetConfig, Loaded

_FILE = click.argument("file", type=click.Path(path_type=str), metavar="FILE")


@click.group("config")
def config_group() -> None:
    """Check, explain and start fleet files."""


@config_group.command("check", short_help="Tell all that is wrong with a fleet file.")
@_FILE
def check(file: str) -> None:
    """Tell whether FILE is a fleet file that the router can use, or all that is wrong with it.

    What is right and probably not meant is said on standard error as well, and changes nothing.
    """
    loaded = _load(file)
    click.echo(f"{loaded.name}: ok, {_summary(loaded.config)}")
    for remark in loaded.remarks:
        click.echo(remark, err=True)


@config_group.command("show", short_help="Print every value that holds, and all time limits.")
@_FILE
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="For people, or for programs.",
)
def show(file: str, form: str) -> None:
    """Print every value that holds with FILE: given, default and derived, and all time limits."""
    loaded = _load(file)
    if form == "json":
        click.echo(json.dumps(as_json(loaded), indent=2))
    else:
        click.echo(as_text(loaded), nl=False)


@config_group.command("example")
def example() -> None:
    """Print a complete fleet file with a note on every setting."""
    click.echo(example_text(), nl=False)


def _load(file: str) -> Loaded:
    try:
        return read_fleet(file, environ=os.environ)
    except ConfigError as error:
        for problem in error.problems:
            click.echo(problem, err=True)
        raise SystemExit(1) from None


def _summary(config: FleetConfig) -> str:
    roles = Counter(engine.role for engine in config.engines)
    counted = ", ".join(f"{roles[role]} {role.value}" for role in Role)
    engines = "1 engine" if len(config.engines) == 1 else f"{len(config.engines)} engines"
    return f"{engines} ({counted}), model {config.model}"
