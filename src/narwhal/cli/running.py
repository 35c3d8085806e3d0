"""What the commands that serve have in common: signals, logging, errors for people."""

from __future__ import annotations

import logging
import os
import signal
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

import click
import trio

from narwhal.model.text import visible
from narwhal.net import open_listeners

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from narwhal.model import ConfigError
    from narwhal.net import Listener

SIGNALS = (signal.SIGTERM, signal.SIGINT)
INTERRUPTED = 130
"""As shells say that a signal ended a program: 128 and the number of SIGINT."""


def fail(*lines: str) -> click.exceptions.Exit:
    """Print the reasons on stderr; raise what it returns to exit with 1."""
    for line in lines:
        click.echo(f"narwhal-trio: {visible(line)}", err=True)
    return click.exceptions.Exit(1)


def drop_output() -> None:
    """Give up what stdout holds and could not write, and all that is written to it from now on.

    Python tries once more as it ends, and changes the exit status if that fails as well.
    """
    with suppress(OSError, ValueError):  # no file behind it: then nothing is held
        number = sys.stdout.fileno()
        nowhere = os.open(os.devnull, os.O_WRONLY)
        try:
            os.dup2(nowhere, number)
        finally:
            os.close(nowhere)


def fail_config(error: ConfigError) -> click.exceptions.Exit:
    """As `fail`, for a faulty file: one line for each fault."""
    return fail(*error.problems)


class _OneLine(logging.Formatter):
    """A line for each event, whatever engines and clients have put into it; tracebacks follow."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        return visible(super().formatMessage(record))


def set_up_logging(level: str) -> None:
    """Log to stderr, a line for each event."""
    handler = logging.StreamHandler()
    handler.setFormatter(_OneLine("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=level.upper(), handlers=[handler])


async def listen(host: str, port: int, *, advice: str = "--host or --port") -> Sequence[Listener]:
    """Open the listeners; a port that cannot be had is one clear line and exit code 1."""
    try:
        return await open_listeners(host, port)
    except OSError as error:
        reason = error.strerror or str(error)
        raise fail(f"cannot listen on {host}:{port}: {reason}; choose another {advice}") from error


async def at_hangup(
    act: Callable[[], Awaitable[None]],
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Await `act` at every SIGHUP until cancelled; the process outlives its terminal meanwhile.

    Signals that come while it runs are one more.
    """
    with trio.open_signal_receiver(signal.SIGHUP) as signals:
        task_status.started()
        async for _ in signals:
            await act()


async def until_signalled(
    end: Callable[[], Awaitable[None]],
    scope: trio.CancelScope,
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Run `end` at the first SIGTERM or SIGINT and then cancel `scope`; at once at the second.

    From then on both signals are ignored: the process is about to end by itself, with its own
    exit code.
    """
    try:
        await _until_signalled(end, scope, task_status)
    finally:
        for number in SIGNALS:
            signal.signal(number, signal.SIG_IGN)


async def _until_signalled(
    end: Callable[[], Awaitable[None]],
    scope: trio.CancelScope,
    task_status: trio.TaskStatus[None],
) -> None:
    async with trio.open_nursery() as nursery:
        with trio.open_signal_receiver(*SIGNALS) as signals:
            task_status.started()
            await anext(signals)

            async def gently() -> None:
                await end()
                scope.cancel(reason="shut down")
                nursery.cancel_scope.cancel(reason="shut down")

            nursery.start_soon(gently)
            await anext(signals)
            click.echo("narwhal-trio: second signal, ending at once", err=True)
            scope.cancel(reason="second signal")
            nursery.cancel_scope.cancel(reason="second signal")
