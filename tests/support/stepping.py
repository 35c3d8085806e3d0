"""A Trio run that stands still between two calls, for tests whose steps are plain functions."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from math import inf
from typing import Generic, TypeVar

import outcome
import trio

T = TypeVar("T")

# More ticks than any step can need: past this, tasks wake each other for ever.
MOST_TICKS = 10_000


class StillClock(trio.abc.Clock):
    """Time that passes when it is set.

    It never lets a run sleep, so one in guest mode has no use for the thread it would sleep in.
    """

    def __init__(self) -> None:
        self.now = 0.0

    def start_clock(self) -> None:
        """There is nothing to start."""

    def current_time(self) -> float:
        return self.now

    def deadline_to_sleep_time(self, deadline: float) -> float:
        return 0.0


class Job(Generic[T]):
    """An async function under way in a `SteppedRun`, and what became of it."""

    def __init__(self, function: Callable[[], Awaitable[T]]) -> None:
        self.done = False
        self.cancelled = False
        """Whether it ended because it was cancelled."""
        self.error: Exception | None = None
        """What it raised."""
        self._function = function
        self._scope = trio.CancelScope()
        self._values: list[T] = []

    @property
    def value(self) -> T:
        """What it returned; raises what it raised."""
        if self.error is not None:
            raise self.error
        return self._values[0]

    def cancel(self) -> None:
        """Ask it to end; it hears of it when it is next run."""
        self._scope.cancel(reason="test")

    async def run(self) -> None:
        with self._scope:
            try:
                self._values.append(await self._function())
            except Exception as error:  # noqa: BLE001 - the test judges it
                self.error = error
        self.cancelled = self._scope.cancelled_caught
        self.done = True


class SteppedRun:
    """A Trio run that goes on only within `tick`, `settle`, `advance` and `close`.

    In between, synchronous calls act on it as if a task of its own made them: `start`, a cancel,
    an event that is set, `trio.current_time`. All that is done between two ticks happens in the
    same moment. It is a run in guest mode whose host is the caller: there is one thread, and the
    same calls always have the same effects.
    """

    def __init__(self) -> None:
        self._clock = StillClock()
        self._next: deque[Callable[[], object]] = deque()
        self._over: outcome.Outcome[None] | None = None
        trio.lowlevel.start_guest_run(
            self._main,
            run_sync_soon_threadsafe=self._next.append,
            done_callback=self._end,
            host_uses_signal_set_wakeup_fd=True,
            clock=self._clock,
        )
        self.settle()

    @property
    def now(self) -> float:
        """The time in the run."""
        return self._clock.now

    def start(self, function: Callable[[], Awaitable[T]]) -> Job[T]:
        """Start a task; its first step is in the next tick."""
        job = Job(function)
        self._nursery.start_soon(job.run)
        return job

    def tick(self) -> None:
        """Let every task that can run take one step."""
        self._next.popleft()()

    def settle(self) -> None:
        """Go on until every task waits for something that this moment will not bring."""
        for _ in range(MOST_TICKS):
            if self._next_deadline() > self.now and not self._runnable():
                return
            self.tick()
        raise AssertionError("the tasks do not come to rest")

    def advance(self, seconds: float) -> None:
        """Let time pass, and everything happen at its time."""
        until = self.now + seconds
        self.settle()
        while (deadline := self._next_deadline()) <= until:
            self._clock.now = deadline
            self.settle()
        self._clock.now = until

    def jump(self, seconds: float) -> None:
        """Let time pass in which nothing runs: what is due by then is late."""
        self._clock.now += seconds

    def close(self) -> None:
        """Cancel what is under way, and end."""
        self._nursery.cancel_scope.cancel(reason="the test is over")
        while self._over is None:
            self.tick()
        self._over.unwrap()

    async def _main(self) -> None:
        async with trio.open_nursery() as self._nursery:
            await trio.sleep_forever()

    def _end(self, result: outcome.Outcome[None]) -> None:
        self._over = result

    def _runnable(self) -> int:
        return trio.lowlevel.current_statistics().tasks_runnable

    def _next_deadline(self) -> float:
        left = trio.lowlevel.current_statistics().seconds_to_next_deadline
        return self.now + left if left < inf else inf
