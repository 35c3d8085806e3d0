"""The admission queue and the seats, against models, in virtual time."""

import random
from collections.abc import Awaitable, Callable
from functools import partial

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

from narwhal.fleet import Ledger
from narwhal.model import Phase
from narwhal.placement import Choice, Why
from narwhal.router.queue import Admission, AdmissionQueue
from narwhal.router.seats import SeatDesk


def run(main: Callable[[], Awaitable[None]]) -> None:
    trio.run(main, clock=MockClock(autojump_threshold=0))


@settings(deadline=None)
@given(
    seats=st.integers(1, 4),
    capacity=st.integers(0, 5),
    seed=st.integers(0, 2**32),
    requests=st.integers(1, 25),
)
def test_fifo_bounded_and_conserving(seats: int, capacity: int, seed: int, requests: int) -> None:
    async def main() -> None:
        rng = random.Random(seed)
        queue = AdmissionQueue(seats, capacity)
        arrived: list[int] = []
        served: list[int] = []
        left: set[int] = set()

        async def request(n: int) -> None:
            await trio.sleep(rng.uniform(0, 3))
            immediate = queue.admit_nowait()
            if immediate is Admission.SEAT:
                queue.leave()
            with trio.move_on_after(rng.choice([0.5, 1e9])) as patience:
                arrived.append(n)
                verdict = await queue.admit()
                if verdict is Admission.FULL:
                    assert queue.admitted == seats
                    assert queue.waiting == capacity
                    left.add(n)
                    return
                served.append(n)
                try:
                    await trio.sleep(rng.uniform(0, 2))
                finally:
                    queue.leave()
            if patience.cancelled_caught:
                left.add(n)

        async def watch() -> None:
            while True:
                assert queue.admitted <= seats
                assert queue.waiting <= capacity
                assert not queue.waiting or queue.admitted == seats, "a seat idles with a queue"
                await trio.sleep(0.1)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch)
            async with trio.open_nursery() as requests_:
                for n in range(requests):
                    requests_.start_soon(request, n)
            nursery.cancel_scope.cancel(reason="done")
        assert (queue.admitted, queue.waiting) == (0, 0)
        assert served == [n for n in arrived if n in set(served)], "nobody passes a waiting one"
        assert set(served) | left == set(arrived)

    run(main)


def test_closing_turns_away_who_waits_and_who_comes() -> None:
    async def main() -> None:
        queue = AdmissionQueue(1, 5)
        assert await queue.admit() is Admission.SEAT
        verdicts = []

        async def wait() -> None:
            verdicts.append(await queue.admit())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            nursery.start_soon(wait)
            await wait_all_tasks_blocked()
            queue.close()
        assert verdicts == [Admission.CLOSED] * 2
        assert await queue.admit() is Admission.CLOSED
        queue.leave()
        assert queue.admitted == 0

    run(main)


@pytest.mark.parametrize("first", ["cancel", "seat"])
def test_a_seat_and_a_cancel_at_the_same_moment_lose_no_seat(first: str) -> None:
    async def main() -> None:
        queue = AdmissionQueue(1, 5)
        await queue.admit()
        got = []
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:

                async def wait() -> None:
                    got.append(await queue.admit())
                    queue.leave()

                nursery.start_soon(wait)
                await wait_all_tasks_blocked()
                if first == "cancel":
                    scope.cancel(reason="test")
                    queue.leave()
                else:
                    queue.leave()
                    scope.cancel(reason="test")
        assert queue.admitted == 0
        assert queue.waiting == 0
        assert queue.admit_nowait() is Admission.SEAT

    run(main)


@settings(deadline=None)
@given(per_engine=st.integers(1, 3), seed=st.integers(0, 2**32), legs=st.integers(1, 25))
def test_places_never_exceed_the_limit_and_all_come_back(
    per_engine: int, seed: int, legs: int
) -> None:
    async def main() -> None:
        rng = random.Random(seed)
        ledger = Ledger(["a", "b"])
        desk = SeatDesk(Phase.DECODE, per_engine, ledger)

        def picker(wanted: str) -> Callable[[], Choice | None]:
            def pick() -> Choice | None:
                free = [iid for iid in wanted if desk.free(iid) > 0]
                return Choice(free[0], Why.ONLY) if free else None

            return pick

        async def leg() -> None:
            await trio.sleep(rng.uniform(0, 2))
            with trio.move_on_after(rng.choice([0.3, 1e9])):
                with await desk.take(
                    picker(wanted := rng.choice(["a", "b", "ab"])), 10, key=wanted
                ) as place:
                    assert ledger.residents(place.iid, Phase.DECODE) <= per_engine
                    await trio.sleep(rng.uniform(0, 2))

        async with trio.open_nursery() as nursery:
            for _ in range(legs):
                nursery.start_soon(leg)
        assert ledger.total == 0
        assert desk.waiting == 0

    run(main)


def test_a_leg_need_not_stand_behind_those_who_want_another_engine() -> None:
    async def main() -> None:
        ledger = Ledger(["a", "b"])
        desk = SeatDesk(Phase.DECODE, 1, ledger)

        def only(iid: str) -> Callable[[], Choice | None]:
            return lambda: Choice(iid, Why.ONLY) if desk.free(iid) > 0 else None

        held = await desk.take(only("a"), 1)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(desk.take, only("a"), 1, key="a"))
            await wait_all_tasks_blocked()
            with trio.fail_after(1):
                (await desk.take(only("b"), 1, key="b")).release()
            held.release()

    run(main)


def test_without_a_limit_nobody_waits() -> None:
    async def main() -> None:
        desk = SeatDesk(Phase.PREFILL, 0, Ledger(["a"]))
        places = [await desk.take(lambda: Choice("a", Why.ONLY), 1) for _ in range(100)]
        for place in places:
            place.release()

    run(main)
