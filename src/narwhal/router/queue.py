"""The admission queue: who is being served, and who waits for it, in order of arrival."""

from __future__ import annotations

from collections import OrderedDict
from enum import Enum, auto

import trio


class Admission(Enum):
    """What became of a request that asked to be admitted."""

    SEAT = auto()
    """It is admitted, and must call `leave` exactly once."""
    FULL = auto()
    """Every seat and every place in the queue is taken."""
    CLOSED = auto()
    """It waited, and the router stopped admitting."""


class _Waiter:
    __slots__ = ("seconds", "told", "verdict", "woken")

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.verdict = Admission.CLOSED  # until somebody says better
        self.told = False
        self.woken = trio.Event()


class AdmissionQueue:
    """`seats` requests at a time, at most `capacity` waiting, first come first served.

    Guarantees: a seat that comes free goes to the request that has waited longest, within the
    call that frees it; nobody who arrives later passes a waiting one; a request that stops
    waiting, for whatever reason, leaves no trace.
    """

    def __init__(self, seats: int, capacity: int) -> None:
        self.seats = seats
        self.capacity = capacity
        self.admitted = 0
        self._waiters: OrderedDict[_Waiter, None] = OrderedDict()
        self._closed = False
        self._line_s = 0.0

    @property
    def waiting(self) -> int:
        """Requests that wait for a seat."""
        return len(self._waiters)

    @property
    def line_s(self) -> float:
        """What their prefills are predicted to take, in seconds of one engine."""
        return self._line_s if self._waiters else 0.0

    def admit_nowait(self) -> Admission | None:
        """Admit or turn away at once; None if there is a place to wait in."""
        if self._closed:
            return Admission.CLOSED
        if self.admitted < self.seats and not self._waiters:
            self.admitted += 1
            return Admission.SEAT
        if len(self._waiters) >= self.capacity:
            return Admission.FULL
        return None

    async def admit(self, seconds: float = 0.0) -> Admission:
        """Admit, or wait for a seat. `seconds` is what the prefill is predicted to take.

        A cancel gives up the place, or the seat if it just came; one that was asked for in the
        same moment as the seat is heard first, so that nobody is admitted who is gone.
        """
        verdict = self.admit_nowait()
        if verdict is not None:
            return verdict
        waiter = _Waiter(seconds)
        self._line_s = self.line_s + seconds
        self._waiters[waiter] = None
        try:
            await waiter.woken.wait()
            await trio.lowlevel.checkpoint()
        except trio.Cancelled:
            if not waiter.told:
                del self._waiters[waiter]
                self._line_s -= waiter.seconds
            elif waiter.verdict is Admission.SEAT:
                self.leave()
            raise
        return waiter.verdict

    def leave(self) -> None:
        """Give up a seat; it passes to the longest waiting request."""
        self.admitted -= 1
        if self._waiters:
            self.admitted += 1
            self._wake(Admission.SEAT)

    def close(self) -> None:
        """Admit nobody any more, and turn away all that wait."""
        self._closed = True
        while self._waiters:
            self._wake(Admission.CLOSED)

    def _wake(self, verdict: Admission) -> None:
        waiter, _ = self._waiters.popitem(last=False)
        self._line_s -= waiter.seconds
        waiter.verdict = verdict
        waiter.told = True
        waiter.woken.set()
