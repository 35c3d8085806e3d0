"""Runs that repeat, and instruments that act between two steps."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import trio
from trio._core import _run as trio_run
from trio.testing import MockClock

from narwhal.testing import AtStep, StepJitter, StepLimit, run_seeded, seeded_scheduler


async def order_of_many() -> list[int]:
    """What a run does that leaves every choice to the scheduler."""
    done: list[int] = []

    async def one(n: int) -> None:
        for _ in range(3):
            await trio.lowlevel.checkpoint()
            done.append(n)

    async with trio.open_nursery() as nursery:
        for n in range(20):
            nursery.start_soon(one, n)
    return done


def test_the_private_names_that_seeding_needs_are_there() -> None:
    """If this fails, Trio has changed: see `narwhal.testing.clock`."""
    assert isinstance(trio_run._ALLOW_DETERMINISTIC_SCHEDULING, bool)
    assert isinstance(trio_run._r, random.Random)


def test_the_same_seed_makes_the_same_choices() -> None:
    runs = [run_seeded(order_of_many, seed=seed) for seed in (1, 1, 2, "1")]
    assert runs[0] == runs[1] == runs[3]
    assert runs[0] != runs[2]
    assert runs[0] != sorted(runs[0])


def test_the_scheduler_is_put_back_as_it_was() -> None:
    before = (trio_run._ALLOW_DETERMINISTIC_SCHEDULING, trio_run._r)
    with pytest.raises(RuntimeError, match="inside"), seeded_scheduler(3):
        assert trio_run._r is not before[1]
        raise RuntimeError("inside")
    assert (trio_run._ALLOW_DETERMINISTIC_SCHEDULING, trio_run._r) == before


def test_a_trio_that_cannot_be_seeded_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(trio_run, "_r")
    with pytest.raises(RuntimeError, match=r"has no _r.* install a version"):
        run_seeded(order_of_many, seed=1)


def test_a_day_passes_at_once() -> None:
    async def main(seconds: float) -> float:
        await trio.sleep(seconds)
        return trio.current_time()

    assert run_seeded(main, 86_400.0) == 86_400.0


def test_every_step_can_be_the_last() -> None:
    """The example in the docstring of `AtStep`, for a thing that takes five checkpoints."""
    cleaned_up = 0

    async def thing_under_test() -> None:
        nonlocal cleaned_up
        try:
            for _ in range(5):
                await trio.lowlevel.checkpoint()
        finally:
            cleaned_up += 1

    n, at_step = 1, AtStep()

    async def main() -> bool:
        with trio.CancelScope() as scope:
            at_step.arm(n, lambda: scope.cancel(reason=f"step {n}"))
            await thing_under_test()
        return at_step.disarm()

    while not run_seeded(main, instruments=[at_step]):
        n += 1
    assert cleaned_up == n == 6


def test_steps_are_counted_from_one() -> None:
    with pytest.raises(ValueError, match="counts from 1"):
        AtStep().arm(0, lambda: None)


def test_time_passes_between_steps_too() -> None:
    async def main() -> float:
        for _ in range(1000):
            await trio.lowlevel.checkpoint()
        return trio.current_time()

    def run(seed: int) -> float:
        clock = MockClock(autojump_threshold=0)
        jitter = StepJitter(clock, random.Random(seed), 0.001)
        return run_seeded(main, clock=clock, instruments=[jitter])

    assert run(1) == run(1) != run(2)
    assert 0.005 < run(1) < 0.05


def test_a_run_that_never_waits_is_ended() -> None:
    async def main(scope: trio.CancelScope) -> bool:
        with scope:
            while True:
                await trio.lowlevel.checkpoint()
        return scope.cancelled_caught

    scope = trio.CancelScope()
    stop: Callable[[], None] = lambda: scope.cancel(reason="enough")  # noqa: E731
    limit = StepLimit(100, stop)
    assert run_seeded(main, scope, instruments=[limit])
    assert limit.steps < 110
