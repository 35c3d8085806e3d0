"""Runs that repeat: virtual time, and a scheduler whose choices come from a seed.

Trio shuffles the tasks that are ready, so that nobody comes to rely on their order. It can be
told to shuffle by a seed, though not by a public name; the private ones stand in this module and
nowhere else.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Self, TypeVar, TypeVarTuple, Unpack

import trio
from trio._core import _run as trio_run
from trio.testing import MockClock

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from types import TracebackType

T = TypeVar("T")
Args = TypeVarTuple("Args")

Seed = int | str

_PRIVATE = ("_ALLOW_DETERMINISTIC_SCHEDULING", "_r")


class seeded_scheduler:  # noqa: N801 - used as a function
    """Within this block Trio's scheduler makes its choices from `seed`.

    A `trio.run` in it repeats in any process, whatever its hash seed, if its tasks have no other
    source of chance: the time of day, `random`, threads, or the order of a set of objects.

    Raises `RuntimeError` on entry if this version of Trio cannot be seeded.
    """

    def __init__(self, seed: Seed) -> None:
        self._random = random.Random(f"scheduler {seed}")  # noqa: S311 - to repeat, not to hide

    def __enter__(self) -> Self:
        missing = [name for name in _PRIVATE if not hasattr(trio_run, name)]
        if missing:
            raise RuntimeError(
                f"trio {trio.__version__} has no {' and no '.join(missing)}, so its scheduler "
                "cannot be seeded: install a version that narwhal.testing was tested with (0.31 "
                "to 0.35), or run without a seed"
            )
        self._saved = {name: getattr(trio_run, name) for name in _PRIVATE}
        trio_run._ALLOW_DETERMINISTIC_SCHEDULING = True  # type: ignore[misc]  # noqa: SLF001 - see above
        trio_run._r = self._random  # noqa: SLF001 - see above
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for name, value in self._saved.items():
            setattr(trio_run, name, value)


def run_seeded(
    async_fn: Callable[[Unpack[Args]], Awaitable[T]],
    *args: *Args,
    seed: Seed = 0,
    clock: MockClock | None = None,
    instruments: Sequence[trio.abc.Instrument] = (),
) -> T:
    """Run `async_fn(*args)` as `trio.run` does, in virtual time and with a seeded scheduler.

    Whenever every task waits, the clock jumps to the next deadline: hours pass in the time that
    the work in them takes. If there is no deadline and nobody to wake anybody, the run hangs, so
    bound what may hang with `trio.fail_after`. Real sockets and threads do not go with it: the
    clock jumps while they are at work.

    `clock` lets the caller keep hold of the clock, to let time pass between two steps.
    """
    clock = clock or MockClock(autojump_threshold=0)
    with seeded_scheduler(seed):
        return trio.run(async_fn, *args, clock=clock, instruments=instruments)
