"""Places on engines: a leg takes one before it starts and gives it back when it ends."""

from __future__ import annotations

from collections import OrderedDict
from math import inf
from typing import TYPE_CHECKING, Self

import trio

from narwhal.model import NoEngine

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from narwhal.fleet import Claim, Ledger, Reservation
    from narwhal.model import Phase
    from narwhal.placement import Choice

    Pick = Callable[[], Choice | None]
    ClaimOn = Callable[[str], Claim]
    """What the leg takes of an engine, once that is known."""


class Place:
    """One leg's place on one engine; a context manager that gives it back."""

    __slots__ = ("_desk", "choice", "iid", "reservation")

    def __init__(self, desk: SeatDesk, choice: Choice, reservation: Reservation) -> None:
        self._desk = desk
        self.choice = choice
        self.iid = choice.iid
        """The engine."""
        self.reservation = reservation

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.release()

    def done(self) -> None:
        """The leg came to its end, and took the engine as long as it now has."""
        self.reservation.done = True

    def release(self) -> None:
        """Give the place back, exactly once; whoever waits and can use it has it on return."""
        self.reservation.release(self._desk.now())
        if self._desk.waiting:
            self._desk.serve_waiters()


class _Waiter:
    __slots__ = (
        "_again_at",
        "_alarm",
        "claim",
        "error",
        "key",
        "pick",
        "place",
        "seconds",
        "woken",
    )

    def __init__(
        self,
        pick: Pick,
        claim: ClaimOn,
        key: object,
        again_at: Callable[[], float],
        seconds: float,
    ) -> None:
        self.seconds = seconds
        self.pick = pick
        self.claim = claim
        self.key = key
        self.place: Place | None = None
        self.error: NoEngine | None = None
        """There is no engine to wait for any more."""
        self.woken = trio.Event()
        self._again_at = again_at
        self._alarm = trio.CancelScope()

    @property
    def armed(self) -> bool:
        """Whether it will ask again by itself."""
        return self._alarm.deadline < inf

    def arm(self) -> None:
        """It asked in vain: note when to ask again."""
        self._alarm.deadline = self._again_at()

    async def wait(self) -> None:
        """Wait for a place, or until it is time to ask again."""
        with self._alarm:
            await self.woken.wait()
        self._alarm = trio.CancelScope()


class SeatDesk:
    """Hands out places of one phase: at most `per_engine` on each engine, 0 for no limit.

    Guarantees: no engine ever has more than `per_engine` legs of the phase; a place that comes
    free goes, within the call that frees it, to the longest waiting leg that can use it.
    Waiters are bounded by the admitted requests: each waits for one place at a time.
    """

    def __init__(
        self,
        phase: Phase,
        per_engine: int,
        ledger: Ledger,
        *,
        waited: Callable[[Phase, float], None] = lambda _phase, _seconds: None,
    ) -> None:
        """`waited` is told how long each leg stood in line that had to, whatever came of it."""
        self.now: Callable[[], float] = trio.lowlevel.current_clock().current_time
        """Trio's time; see `Core.now`."""
        self._waited = waited
        self.phase = phase
        self.per_engine = per_engine
        self._ledger = ledger
        self._waiters: OrderedDict[_Waiter, None] = OrderedDict()
        self._line_s = 0.0

    @property
    def waiting(self) -> int:
        """Legs that wait for a place."""
        return len(self._waiters)

    @property
    def line_s(self) -> float:
        """What those are predicted to take, in seconds of one engine."""
        return self._line_s if self._waiters else 0.0

    def free(self, iid: str) -> float:
        """Places left on `iid`."""
        if not self.per_engine:
            return float("inf")
        return self.per_engine - self._ledger.residents(iid, self.phase)

    def take_nowait(self, pick: Pick, claim: ClaimOn) -> Place | None:
        """A place on the engine that `pick` chooses; None if it finds none free."""
        choice = pick()
        return None if choice is None else self.place(choice, claim(choice.iid))

    def place(self, choice: Choice, claim: Claim) -> Place:
        """A place on the engine that was chosen, which has one free."""
        now = self.now()
        return Place(self, choice, self._ledger.reserve(choice.iid, self.phase, claim, now))

    async def take(
        self,
        pick: Pick,
        claim: ClaimOn,
        *,
        key: object = None,
        again_at: Callable[[], float] = lambda: inf,
        seconds: float = 0.0,
    ) -> Place:
        """As `take_nowait`, and wait in line if there is none free.

        Legs with the same `key` choose alike: where one finds nothing, the others need not ask.

        `pick` is called again, synchronously, whenever a place comes free, and at the time that
        `again_at` gives: when it may next choose differently for other reasons. That is asked
        each time `pick` finds nothing, for an engine may come to be avoided during the wait. A
        cancel leaves the line, and gives the place back if it just came; after a wait, one that
        was asked for in the same moment is heard first. `seconds` is what the leg is predicted to
        take. Raises the `NoEngine` that `pick` raises, now or while it waits.
        """
        if not self._waiters and (place := self.take_nowait(pick, claim)) is not None:
            return place
        since = self.now()
        waiter = _Waiter(pick, claim, key, again_at, seconds)
        self._stand_in_line(waiter)
        # Others may wait for engines that this leg does not want: it need not stand behind them.
        self.serve_waiters()
        try:
            while waiter.place is None and waiter.error is None:
                await waiter.wait()
                self.serve_waiters()
            await trio.lowlevel.checkpoint()
        except trio.Cancelled:
            if waiter.place is not None:
                waiter.place.release()
            elif waiter.error is None:
                self._leave_line(waiter)
                if waiter.armed:
                    self.serve_waiters()  # another one has to see to it that they ask again
            raise
        finally:
            self._waited(self.phase, self.now() - since)
        if waiter.place is None:
            raise waiter.error or NoEngine("no engine is in service")
        return waiter.place

    def serve_waiters(self) -> None:
        """Give free places to waiting legs, the longest waiting first.

        To be called whenever a leg may choose differently although no place came free. Of those
        that choose alike, the first asks again for all of them when its time comes.
        """
        in_vain: set[object] = set()
        for waiter in list(self._waiters):
            if waiter.key in in_vain:
                continue
            try:
                waiter.place = self.take_nowait(waiter.pick, waiter.claim)
            except NoEngine as error:
                waiter.error = error
            if waiter.place is None and waiter.error is None:
                in_vain.add(waiter.key)
                waiter.arm()
            else:
                self._leave_line(waiter)
                waiter.woken.set()

    def _stand_in_line(self, waiter: _Waiter) -> None:
        self._line_s = self.line_s + waiter.seconds
        self._waiters[waiter] = None

    def _leave_line(self, waiter: _Waiter) -> None:
        del self._waiters[waiter]
        self._line_s -= waiter.seconds
