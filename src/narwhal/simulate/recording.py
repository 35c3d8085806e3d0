"""Parts of a router that remember what was done with them, to stand in for the usual ones."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import attrs
import trio

from narwhal.retry import Credits
from narwhal.router.queue import Admission, AdmissionQueue
from narwhal.router.releases import HeldHandoff, Releases

if TYPE_CHECKING:
    from narwhal.router.core import Core
    from narwhal.simulate.trace import Trace


class RecordingCredits(Credits):
    """Credits with a history."""

    def __init__(self, budget: float, replenish: float, trace: Trace) -> None:
        super().__init__(budget, replenish)
        self.changes: list[str] = []
        """`taken`, `given back` and `succeeded`, in order."""
        self._trace = trace

    def _note(self, change: str) -> None:
        self.changes.append(change)
        self._trace.add("credit", change=change, left=round(self.available, 6))

    def take_nowait(self) -> bool:  # noqa: D102 - as its base
        taken = super().take_nowait()
        if taken:
            self._note("taken")
        return taken

    def give_back(self) -> None:  # noqa: D102 - as its base
        super().give_back()
        self._note("given back")

    def succeeded(self) -> None:  # noqa: D102 - as its base
        super().succeeded()
        self.changes.append("succeeded")


@attrs.frozen
class Abandoned:
    """A handoff that was given up."""

    held: HeldHandoff
    at: float


class RecordingReleases(Releases):
    """Releases that keep the list."""

    def __init__(self, core: Core, trace: Trace) -> None:
        super().__init__(core)
        self.abandoned: list[Abandoned] = []
        self.lost_count: Counter[str] = Counter()
        """Handoffs whose names were never learned, by producer."""
        self._trace = trace

    def abandon(self, held: HeldHandoff, *, avoid: str | None) -> None:  # noqa: D102 - as its base
        self.abandoned.append(Abandoned(held, trio.current_time()))
        self._trace.add("abandoned", producer=held.producer, request=held.correlation.request_id)
        super().abandon(held, avoid=avoid)

    def lost(self, producer: str, tokens: int, *, lease_ends: float) -> None:  # noqa: D102
        self.lost_count[producer] += 1
        self._trace.add("lost", producer=producer, tokens=tokens)
        super().lost(producer, tokens, lease_ends=lease_ends)


class RecordingQueue(AdmissionQueue):
    """A queue that knows in what order they came, and in what order they were let in."""

    def __init__(self, seats: int, capacity: int) -> None:
        super().__init__(seats, capacity)
        self.admitted_in_order: list[int] = []
        """Those that waited, by the number of their coming, as they were given seats."""
        self.passed = 0
        """Requests that were let in at once while others waited."""
        self.most_waiting = 0
        self._numbers: dict[object, int] = {}

    def admit_nowait(self) -> Admission | None:  # noqa: D102 - as its base
        waiting = self.waiting
        verdict = super().admit_nowait()
        self.passed += bool(waiting) and verdict is Admission.SEAT
        return verdict

    async def admit(self, seconds: float = 0.0) -> Admission:  # noqa: D102 - as its base
        self.most_waiting = max(self.most_waiting, self.waiting + 1)
        return await super().admit(seconds)

    def _wake(self, verdict: Admission) -> None:
        # They stand in the order of their coming, so numbering them now is not too late.
        before = list(self._waiters)
        for waiter in before:
            self._numbers.setdefault(waiter, len(self._numbers))
        super()._wake(verdict)
        if verdict is Admission.SEAT:
            woken = [waiter for waiter in before if waiter not in self._waiters]
            self.admitted_in_order += [self._numbers[waiter] for waiter in woken]


def listen_in(
    core: Core, trace: Trace
) -> tuple[RecordingCredits, RecordingReleases, RecordingQueue]:
    """Put recording parts into a router that has not served anything yet."""
    serving = core.config.serving
    core.credits = credits_ = RecordingCredits(serving.retry_budget, serving.retry_replenish, trace)
    core.releases = releases = RecordingReleases(core, trace)
    core.queue = queue = RecordingQueue(serving.max_connections, serving.queue_capacity)
    return credits_, releases, queue
