"""`narwhal-trio top`: a router, live in a terminal."""

from __future__ import annotations

import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

import attrs
import click
import trio
from rich.console import Console
from rich.live import Live

from narwhal.cli.numbers import FiniteRange
from narwhal.cli.reach import reach_options
from narwhal.cli.running import fail
from narwhal.cli.top_call import StateCall, Unreachable
from narwhal.cli.top_rates import History
from narwhal.cli.top_view import Frame, draw, fitted
from narwhal.cli.units import span

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from typing import NoReturn

    from narwhal.cli.reach import Reach
    from narwhal.cli.top_state import State

    Ask = Callable[[], Awaitable[State]]


@click.command("top", short_help="Watch a running router in the terminal.")
@click.option(
    "--interval",
    default=1.0,
    show_default=True,
    type=FiniteRange(min=0.1),
    metavar="SECONDS",
    help="Between two looks.",
)
@click.option("--once", is_flag=True, help="Print one frame and end: for scripts.")
@reach_options
def top(*, reach: Reach, interval: float, once: bool) -> None:
    """Watch a router: requests, limits, engines, roles, and what to look at.

    Ctrl-C ends it. It outlives restarts of the router. What is not a terminal gets one frame
    after the other.
    """
    call, url = StateCall(reach.asker()), reach.url
    console = Console()
    if once:
        try:
            state = call()
        except Unreachable as error:
            raise fail(f"no state from {url}: {error}") from error
        console.print(draw(Frame(url=url, state=state), console.width))
        return
    with suppress(KeyboardInterrupt):
        trio.run(watch, Watch(url, in_thread(call), interval), console)


def in_thread(call: StateCall) -> Ask:
    """As `call`, and without blocking: one that is cancelled leaves its thread to itself."""
    return partial(trio.to_thread.run_sync, call, abandon_on_cancel=True)


@attrs.define
class Watch:
    """Looks at a router again and again, and says what there is to be drawn."""

    url: str
    ask: Ask
    """Raises `Unreachable`."""
    interval_s: float
    wall_clock: Callable[[], float] = time.time
    _history: History = attrs.field(factory=History, init=False)
    _state: State | None = attrs.field(default=None, init=False)
    _trouble: str | None = attrs.field(default=None, init=False)
    _since: tuple[float, float] = attrs.field(default=(0.0, 0.0), init=False)

    async def look(self) -> None:
        """Ask once, for at most `patience_s`. What goes wrong is shown, not raised."""
        trouble = f"no answer within {self.patience_s:g} s"
        with trio.move_on_after(self.patience_s):
            try:
                state = await self.ask()
            except Unreachable as error:
                trouble = str(error)
            else:
                self._history.add(state)
                self._state, self._trouble = state, None
                return
        if self._trouble is None:
            self._since = trio.current_time(), self.wall_clock()
        self._trouble = trouble

    @property
    def patience_s(self) -> float:
        """How long a look may take."""
        return max(2.0, self.interval_s)

    def frame(self) -> Frame:
        """What is known now."""
        began, wall = self._since
        when = time.strftime("%H:%M:%S", time.localtime(wall))
        return Frame(
            url=self.url,
            state=self._state,
            rates=self._history.rates,
            trouble=self._trouble,
            since=f"{when} ({span(trio.current_time() - began)})",
        )


async def watch(watched: Watch, console: Console) -> None:
    """Draw until cancelled: in place on a terminal that can, else one frame below the other."""
    if not console.is_terminal or console.is_dumb_terminal:
        await _show(watched, lambda frame: console.print(draw(frame, console.width), ""))
    with Live(console=console, auto_refresh=False, screen=True) as live:
        await _show(watched, lambda frame: live.update(fitted(frame, console), refresh=True))


async def _show(watched: Watch, show: Callable[[Frame], None]) -> NoReturn:
    while True:
        await watched.look()
        show(watched.frame())
        await trio.sleep(watched.interval_s)
