"""The admission queue against a model that keeps two lists."""

from __future__ import annotations

from functools import partial

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from stepping import Job, SteppedRun

from narwhal.router.queue import Admission, AdmissionQueue


class Request:
    """A request that asked to be admitted, and the verdict that it should have."""

    def __init__(self, job: Job[Admission] | None, verdict: Admission | None) -> None:
        self.job = job
        self.verdict = verdict
        """None while it waits."""
        self.leaving = False
        """It was cancelled, and may not have heard of it yet."""

    @property
    def told(self) -> bool:
        return self.job is None or self.job.done


class QueueMachine(RuleBasedStateMachine):
    """Requests come, leave and give up; several of these may happen in the same moment.

    A rule ends with some ticks, which may be none, too few for everybody to hear what happened,
    or enough. What the queue says of itself must be right at every time, and what requests have
    been told once they are told.
    """

    def __init__(self) -> None:
        super().__init__()
        self.run = SteppedRun()

    def teardown(self) -> None:
        self.run.close()

    @initialize(seats=st.integers(1, 2), capacity=st.sampled_from([3, 4, 2, 1, 0]))
    def build(self, seats: int, capacity: int) -> None:
        self.queue = AdmissionQueue(seats, capacity)
        self.closed = False
        self.seated: list[Request] = []
        self.line: list[Request] = []
        self.turned_away: list[Request] = []

    # What happens

    @rule()
    def come_and_do_not_wait(self) -> None:
        expected = self.at_once()
        assert self.queue.admit_nowait() is expected
        if expected is Admission.SEAT:
            self.seated.append(Request(None, expected))

    @rule(ticks=st.integers(0, 2))
    def come(self, ticks: int) -> None:
        if any(request.leaving for request in self.everyone()):
            self.settle()  # otherwise it is open whether they leave before this one comes
        expected = self.at_once()
        request = Request(self.run.start(partial(self.queue.admit, 0.5)), expected)
        self.run.tick()
        if expected is None:
            self.line.append(request)
            assert not request.told
        else:
            assert request.told, "nobody waits without need"
            self.keep(request)
        self.go_on(ticks)

    @rule(count=st.integers(2, 5))
    def come_in_numbers(self, count: int) -> None:
        for _ in range(count):
            self.come(0)

    @precondition(lambda self: self.seated)
    @rule(data=st.data(), ticks=st.integers(0, 4))
    def leave(self, data: st.DataObject, ticks: int) -> None:
        self.free_one(data)
        self.go_on(ticks)

    @precondition(lambda self: not all(request.told for request in self.everyone()))
    @rule(data=st.data(), ticks=st.integers(0, 4))
    def give_up(self, data: st.DataObject, ticks: int) -> None:
        """A waiting request is cancelled; it may have its verdict, and not know."""
        waiting = [request for request in self.everyone() if not request.told]
        if waiting:
            self.cancel(data.draw(st.sampled_from(waiting)))
        self.go_on(ticks)

    @precondition(lambda self: self.line and any(request.told for request in self.seated))
    @rule(data=st.data(), between=st.integers(0, 2), seat_first=st.booleans())
    def get_a_seat_and_give_up(self, data: st.DataObject, between: int, seat_first: bool) -> None:
        """The first in line is cancelled in the moment in which its seat comes free."""
        first = self.line[0]
        steps = [partial(self.cancel, first), partial(self.free_one, data)]
        if seat_first:
            steps.reverse()
        steps[0]()
        self.go_on(between)
        if not (seat_first and first.told):
            steps[1]()
        self.settle()

    @precondition(lambda self: not all(request.told for request in self.everyone()))
    @rule(ticks=st.integers(0, 4))
    def wait(self, ticks: int) -> None:
        self.go_on(ticks)

    @precondition(lambda self: not self.closed and len(self.line) > 1)
    @rule(certain=st.booleans(), ticks=st.integers(0, 4), gone=st.booleans())
    def close(self, certain: bool, ticks: int, gone: bool) -> None:
        """For good, so it is not done at once; perhaps as a waiting request is cancelled."""
        if not certain:
            return
        if gone:
            self.cancel(self.line[0])
        self.queue.close()
        self.closed = True
        for request in self.line:
            request.verdict = Admission.CLOSED
        self.turned_away += self.line
        self.line = []
        self.come_and_do_not_wait()
        self.go_on(ticks)

    def free_one(self, data: st.DataObject) -> None:
        served = [request for request in self.seated if request.told]
        if served:
            self.seated.remove(data.draw(st.sampled_from(served)))
            self.queue.leave()
            self.pass_on()

    def cancel(self, request: Request) -> None:
        assert request.job is not None
        request.job.cancel()
        request.leaving = True

    # The model

    def everyone(self) -> list[Request]:
        return self.seated + self.line + self.turned_away

    def at_once(self) -> Admission | None:
        if self.closed:
            return Admission.CLOSED
        if len(self.seated) < self.queue.seats:
            return Admission.SEAT
        return Admission.FULL if len(self.line) == self.queue.capacity else None

    def keep(self, request: Request) -> None:
        (self.seated if request.verdict is Admission.SEAT else self.turned_away).append(request)

    def pass_on(self) -> None:
        """A seat is free: whoever came first has it."""
        if self.line:
            request = self.line.pop(0)
            request.verdict = Admission.SEAT
            self.keep(request)

    def go_on(self, ticks: int) -> None:
        """Take a few ticks; from 3 on, as many as it takes."""
        if ticks > 2:
            self.settle()
            return
        for _ in range(ticks):
            self.run.tick()
        self.hear()

    def settle(self) -> None:
        self.run.settle()
        self.hear()
        for request in self.everyone():
            assert request.told == (request.verdict is not None)
            assert not request.leaving

    def hear(self) -> None:
        """Take out those who have given up, and see what the others were told."""
        for request in self.everyone():
            if request.job is None or not request.told:
                continue
            if request.leaving:
                assert request.job.cancelled, "nobody is admitted who is gone"
                if request in self.line:
                    self.line.remove(request)
                elif request in self.seated:
                    self.seated.remove(request)
                    self.pass_on()
                else:
                    self.turned_away.remove(request)
            else:
                assert request.job.value is request.verdict

    # What holds at every time

    @invariant()
    def agrees(self) -> None:
        assert self.queue.admitted == len(self.seated)
        assert self.queue.waiting == len(self.line)
        assert self.queue.line_s == 0.5 * len(self.line)

    @invariant()
    def bounded(self) -> None:
        assert 0 <= self.queue.admitted <= self.queue.seats
        assert 0 <= self.queue.waiting <= self.queue.capacity

    @invariant()
    def no_seat_is_idle_while_somebody_waits(self) -> None:
        assert not self.queue.waiting or self.queue.admitted == self.queue.seats

    @invariant()
    def nobody_waits_for_a_closed_queue(self) -> None:
        assert not (self.closed and self.queue.waiting)


TestQueue = QueueMachine.TestCase
TestQueue.settings = settings(deadline=None, max_examples=150, stateful_step_count=30)
