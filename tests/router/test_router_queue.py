"""The admission queue and the seats, by example, in virtual time."""

from collections.abc import Awaitable, Callable
from functools import partial
from math import inf

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from narwhal.fleet import Claim, Ledger
from narwhal.model import Phase
from narwhal.placement import Choice, Why
from narwhal.router.queue import Admission, AdmissionQueue
from narwhal.router.seats import SeatDesk


def leg(_iid: str) -> Claim:
    return Claim(prompt_tokens=1)


def run(main: Callable[[], Awaitable[None]]) -> None:
    trio.run(main, clock=MockClock(autojump_threshold=0))


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


def test_a_leg_need_not_stand_behind_those_who_want_another_engine() -> None:
    async def main() -> None:
        ledger = Ledger(["a", "b"])
        desk = SeatDesk(Phase.DECODE, 1, ledger)

        def only(iid: str) -> Callable[[], Choice | None]:
            return lambda: Choice(iid, Why.ONLY) if desk.free(iid) > 0 else None

        held = await desk.take(only("a"), leg)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(desk.take, only("a"), leg, key="a"))
            await wait_all_tasks_blocked()
            with trio.fail_after(1):
                (await desk.take(only("b"), leg, key="b")).release()
            held.release()

    run(main)


def test_how_long_a_leg_stood_in_line_is_told_whether_or_not_it_got_a_seat() -> None:
    told: list[tuple[Phase, float]] = []

    async def main() -> None:
        desk = SeatDesk(
            Phase.DECODE, 1, Ledger(["a"]), waited=lambda phase, s: told.append((phase, s))
        )

        def pick() -> Choice | None:
            return Choice("a", Why.ONLY) if desk.free("a") > 0 else None

        held = await desk.take(pick, leg)
        assert told == []
        with trio.move_on_after(2.0):
            await desk.take(pick, leg)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(desk.take, pick, leg)
            await trio.sleep(0.5)
            held.release()

    run(main)
    assert [phase for phase, _ in told] == [Phase.DECODE] * 2
    assert [seconds for _, seconds in told] == pytest.approx([2.0, 0.5])


def test_without_a_limit_nobody_waits() -> None:
    async def main() -> None:
        desk = SeatDesk(Phase.PREFILL, 0, Ledger(["a"]))
        places = [await desk.take(lambda: Choice("a", Why.ONLY), leg) for _ in range(100)]
        for place in places:
            place.release()

    run(main)


def test_a_leg_takes_an_engine_again_that_came_to_be_avoided_while_it_waited() -> None:
    async def main() -> None:
        ledger = Ledger(["a", "b"])
        desk = SeatDesk(Phase.DECODE, 1, ledger)
        until = dict.fromkeys(ledger.iids, 0.0)

        def pick() -> Choice | None:
            now = trio.current_time()
            usable = [iid for iid in ledger.iids if desk.free(iid) > 0 and now >= until[iid]]
            return Choice(usable[0], Why.ONLY) if usable else None

        def again_at() -> float:
            ends = [end for end in until.values() if end > trio.current_time()]
            return min(ends, default=inf)

        async def wait(scope: trio.CancelScope) -> None:
            with scope:
                await desk.take(pick, leg, again_at=again_at)
                taken.append(trio.current_time())

        taken: list[float] = []
        fails = await desk.take(pick, leg)
        await desk.take(pick, leg)
        scopes = [trio.CancelScope(), trio.CancelScope()]
        async with trio.open_nursery() as nursery:
            for scope in scopes:
                nursery.start_soon(wait, scope)
                await wait_all_tasks_blocked()
            until["a"] = 5.0
            fails.release()
            await trio.sleep(1)
            scopes[0].cancel(reason="the first in line, who would have asked for both")
            await trio.sleep(10)
            assert taken == [5.0]

    run(main)
