"""The run that stands still does what it says, or no machine's verdict is worth anything."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import trio
from stepping import SteppedRun


@pytest.fixture
def run() -> Iterator[SteppedRun]:
    threads = threading.active_count()
    run = SteppedRun()
    yield run
    run.close()
    assert threading.active_count() == threads


def test_nothing_happens_between_calls(run: SteppedRun) -> None:
    event = trio.Event()
    job = run.start(event.wait)
    assert event.statistics().tasks_waiting == 0
    run.settle()
    assert event.statistics().tasks_waiting == 1
    event.set()
    assert not job.done
    run.tick()
    assert job.done


def test_everything_happens_at_its_time(run: SteppedRun) -> None:
    times: list[float] = []

    async def note(after: float) -> None:
        await trio.sleep(after)
        times.append(trio.current_time())

    async def twice() -> None:
        await note(1.0)
        await note(1.5)

    for function in (twice, lambda: note(2.0), lambda: note(9.0)):
        run.start(function)
    run.advance(5.0)
    assert times == [1.0, 2.0, 2.5]
    assert run.now == trio.current_time() == 5.0
    run.jump(10.0)
    assert len(times) == 3
    run.settle()
    assert times[3:] == [15.0], "late, as after a jump"


def test_a_job_tells_how_it_ended(run: SteppedRun) -> None:
    async def fail() -> None:
        raise ValueError("no")

    async def answer() -> int:
        return 7

    failed, answered, cancelled = run.start(fail), run.start(answer), run.start(trio.sleep_forever)
    run.settle()
    cancelled.cancel()
    run.settle()
    assert isinstance(failed.error, ValueError)
    with pytest.raises(ValueError, match="no"):
        failed.value  # noqa: B018 - it raises
    assert answered.value == 7
    assert [job.cancelled for job in (failed, answered, cancelled)] == [False, False, True]


def test_tasks_that_never_rest_are_noticed(run: SteppedRun) -> None:
    async def spin() -> None:
        while True:
            await trio.lowlevel.checkpoint()

    run.start(spin)
    with pytest.raises(AssertionError, match="come to rest"):
        run.settle()
