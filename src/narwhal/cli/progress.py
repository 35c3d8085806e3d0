"""How far a long command is: a bar on stderr, if somebody looks."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    Advance = Callable[[int], None]

T = TypeVar("T")


@contextmanager
def bar(name: str, total: int, *, shown: bool) -> Iterator[Advance]:
    """A bar for `total` of something; what it gives is told of how many more are done."""
    with _progress(shown=shown) as progress:
        task = progress.add_task(name, total=total)
        yield lambda done: progress.advance(task, done)


def passed_on(
    each_of: Iterable[T],
    name: str,
    total: int,
    *,
    shown: bool,
    failed: Callable[[T], bool] = lambda _: False,
) -> Iterator[T]:
    """Pass values on while a bar shows how many of `total` there were, and how many failed."""
    with _progress(shown=shown) as progress:
        task = progress.add_task(name, total=total)
        failures = 0
        for each in each_of:
            failures += failed(each)
            said = f"{name} ({failures} failed)" if failures else name
            progress.update(task, advance=1, description=said)
            yield each


def _progress(*, shown: bool) -> Progress:
    """Nothing is drawn unless it is to be shown and stderr is a terminal."""
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    return Progress(
        *columns, console=console, transient=True, disable=not (shown and console.is_terminal)
    )
