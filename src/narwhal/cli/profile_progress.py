"""How far `narwhal-trio profile` is: a bar on a terminal, else a line now and then."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import click
import trio
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from narwhal.cli.units import span

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from narwhal.profiler import Progress as Step

    Show = Callable[[int, Step], None]

# Lines of a log: often enough to see that it goes on, and few enough to read.
_LINES = 10
# A batch of many long prompts is one step of minutes: what is left is judged by more than that.
_SPEED_OVER_S = 3600.0


@contextmanager
def progress(engines: int) -> Iterator[Show]:
    """Say on stderr what is about to happen; what it gives is told of each step of an engine."""
    console = Console(stderr=True)
    if engines:
        click.echo(
            f"measuring {engines} {'engine' if engines == 1 else 'engines, one after the other'}: "
            "by default some minutes each; Ctrl-C keeps those that are done, and the same command "
            "goes on",
            err=True,
        )
    if not console.is_terminal:
        yield _Lines(engines).show
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(),
    )
    with Progress(
        *columns, console=console, transient=True, speed_estimate_period=_SPEED_OVER_S
    ) as bars:
        task = bars.add_task("profiling", total=max(1, engines))

        def show(number: int, step: Step) -> None:
            text = f"{step.iid} ({number + 1} of {engines}): {step.doing}"
            bars.update(task, completed=number + step.done, description=text)

        yield show


class _Lines:
    """A line for each engine, and for each tenth of all the work the time that is left.

    The work left is taken to go on as fast as that before it did.
    """

    def __init__(self, engines: int) -> None:
        self._engines = engines
        self._began = trio.current_time()
        self._engine = -1
        self._told = 0

    def show(self, number: int, step: Step) -> None:
        done = (number + step.done) / self._engines
        part = int(_LINES * done)
        if number == self._engine and part == self._told:
            return
        self._engine, self._told = number, part
        text = f"measuring {step.iid}, {number + 1} of {self._engines}"
        if part:
            left = (trio.current_time() - self._began) * (1 / done - 1)
            text += f": {done:.0%} done, about {span(left)} left"
        click.echo(text, err=True)
