"""Instruments that act between two steps of a run, where no task has a say."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from trio.testing import MockClock


class AtStep(trio.abc.Instrument):
    """Calls an action immediately before the n-th step that any task takes.

    With n = 1, 2, 3, ... and an action that cancels something, it shows whether whatever is
    cancelled cleans up after itself, wherever it stands:

        n, at_step = 1, AtStep()

        async def main() -> bool:
            with trio.CancelScope() as scope:
                at_step.arm(n, lambda: scope.cancel(reason=f"step {n}"))
                await thing_under_test()
            return at_step.disarm()  # true once it is over before the step comes

        while not run_seeded(main, instruments=[at_step]):
            n += 1
    """

    def __init__(self) -> None:
        self._left = 0
        self._action: Callable[[], None] | None = None

    def arm(self, n: int, action: Callable[[], None]) -> None:
        """Count from here: call `action`, once, before the n-th step; n is at least 1."""
        if n < 1:
            raise ValueError(f"n counts from 1, and is {n}")
        self._left, self._action = n, action

    def disarm(self) -> bool:
        """Stop counting; true if the step had not come yet."""
        waiting, self._action = self._action is not None, None
        return waiting

    def before_task_step(self, task: trio.lowlevel.Task) -> None:  # noqa: ARG002 - Trio's
        """Called by Trio."""
        if self._action is None:
            return
        self._left -= 1
        if not self._left:
            action, self._action = self._action, None
            action()


class StepJitter(trio.abc.Instrument):
    """Lets one step in twenty take time, at most `most_s` seconds: no machine is infinitely fast.

    Without it all that happens between two waits happens at one instant, and no deadline can
    ever pass in between.
    """

    SHARE = 0.05

    def __init__(self, clock: MockClock, rng: Random, most_s: float) -> None:
        self._clock = clock
        self._random = rng.random
        self._most_s = most_s

    def before_task_step(self, task: trio.lowlevel.Task) -> None:  # noqa: ARG002 - Trio's
        """Called by Trio."""
        if self._random() < self.SHARE:
            self._clock.jump(self._random() * self._most_s)


class StepLimit(trio.abc.Instrument):
    """Calls an action once, at the `most`-th step: the end of a run that would never wait."""

    def __init__(self, most: int, action: Callable[[], None]) -> None:
        self.steps = 0
        self._most = most
        self._action = action

    def before_task_step(self, task: trio.lowlevel.Task) -> None:  # noqa: ARG002 - Trio's
        """Called by Trio."""
        self.steps += 1
        if self.steps == self._most:
            self._action()
