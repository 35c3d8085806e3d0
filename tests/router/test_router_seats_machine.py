"""The seat desk against a model that keeps a line of legs, and a list of legs on each engine."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import inf

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from stepping import Job, SteppedRun

from narwhal.fleet import Claim, Ledger
from narwhal.model import Phase
from narwhal.placement import Choice, Why
from narwhal.router.seats import Place, SeatDesk

ENGINES = "ab"
WISHES = st.sampled_from(["ab", "a", "b"])
STUBBORN = st.sampled_from([False, False, False, True])


class Leg:
    """A leg that wants a place on one of some engines."""

    def __init__(self, wanted: str, tokens: int, *, stubborn: bool) -> None:
        self.wanted = wanted
        self.tokens = tokens
        self.stubborn = stubborn
        """It takes an engine even while that should be avoided."""
        self.job: Job[Place]
        self.place: Place | None = None
        self.on: str | None = None
        """Where the model has put it."""
        self.leaving = False

    def claim(self, _iid: str) -> Claim:
        """What it takes, wherever it goes."""
        return Claim(prompt_tokens=self.tokens)

    @property
    def told(self) -> bool:
        return self.place is not None or self.job.done


class SeatsMachine(RuleBasedStateMachine):
    """Legs come, end and are cancelled, engines fail and are forgiven, and time passes.

    As in the queue's machine a rule may end before everybody has heard what happened.
    """

    def __init__(self) -> None:
        super().__init__()
        self.run = SteppedRun()

    def teardown(self) -> None:
        self.run.close()

    @initialize(per_engine=st.sampled_from([1, 1, 1, 2, 0]))
    def build(self, per_engine: int) -> None:
        self.ledger = Ledger(ENGINES)
        self.desk = SeatDesk(Phase.DECODE, per_engine, self.ledger)
        self.avoided = dict.fromkeys(ENGINES, -inf)  # until when
        self.line: list[Leg] = []
        self.placed: list[Leg] = []

    # What happens

    @precondition(lambda self: not self.line)
    @rule(wanted=WISHES, tokens=st.integers(0, 99), stubborn=STUBBORN)
    def come_and_do_not_wait(self, wanted: str, tokens: int, stubborn: bool) -> None:
        leg = Leg(wanted, tokens, stubborn=stubborn)
        leg.on = self.choose(leg)
        leg.place = self.desk.take_nowait(self.picker(leg), leg.claim)
        assert (leg.place.iid if leg.place else None) == leg.on
        if leg.on is not None:
            self.placed.append(leg)

    @rule(wanted=WISHES, tokens=st.integers(0, 99), stubborn=STUBBORN, ticks=st.integers(0, 3))
    def come(self, wanted: str, tokens: int, stubborn: bool, ticks: int) -> None:
        if any(leg.leaving for leg in self.everyone()):
            self.settle()  # otherwise it is open whether that one leaves before this one comes
        self.join(Leg(wanted, tokens, stubborn=stubborn))
        self.go_on(ticks)

    @precondition(lambda self: self.line and self.distrusts())
    @rule(wanted=WISHES, seconds=st.sampled_from([1, 2, 5]))
    def come_when_all_is_late(self, wanted: str, seconds: float) -> None:
        """A leg comes before anybody has heard that an engine need not be avoided any more."""
        self.settle()
        self.run.jump(seconds)
        self.join(Leg(wanted, 1, stubborn=False))
        self.settle()

    def join(self, leg: Leg) -> None:
        take = partial(self.desk.take, key=(leg.wanted, leg.stubborn), seconds=float(leg.tokens))
        if not leg.stubborn:
            take = partial(take, again_at=partial(self.changes_at, leg))
        leg.job = self.run.start(partial(take, self.picker(leg), leg.claim))
        self.run.tick()
        self.line.append(leg)
        self.serve()
        self.agrees()
        self.hear()

    @precondition(lambda self: any(leg.told for leg in self.placed))
    @rule(data=st.data(), failed=st.sampled_from([0, 1, 3]), ticks=st.integers(0, 4))
    def end(self, data: st.DataObject, failed: int, ticks: int) -> None:
        """A leg ends; if it failed, its engine is avoided for a while."""
        self.end_one(data, failed)
        self.go_on(ticks)

    @precondition(lambda self: self.line)
    @rule(iid=st.sampled_from(ENGINES), seconds=st.sampled_from([1, 2, 5]))
    def avoid(self, iid: str, seconds: int) -> None:
        """An engine failed elsewhere."""
        self.avoided[iid] = max(self.avoided[iid], self.run.now + seconds)

    @precondition(lambda self: self.distrusts())
    @rule(iid=st.sampled_from(ENGINES), ticks=st.integers(0, 4))
    def forgive(self, iid: str, ticks: int) -> None:
        """Whoever lets a leg choose again has the desk ask."""
        self.avoided[iid] = -inf
        self.desk.serve_waiters()
        self.serve()
        self.go_on(ticks)

    @precondition(lambda self: not all(leg.told for leg in self.everyone()))
    @rule(data=st.data(), ticks=st.integers(0, 4))
    def give_up(self, data: st.DataObject, ticks: int) -> None:
        """A waiting leg is cancelled; it may have its place, and not know."""
        if any(leg.leaving for leg in self.everyone()):
            self.settle()  # whose place comes free first would be open
        waiting = [leg for leg in self.everyone() if not leg.told]
        if waiting:
            self.cancel(data.draw(st.sampled_from(waiting)))
        self.go_on(ticks)

    @precondition(lambda self: self.line and any(leg.told for leg in self.placed))
    @rule(data=st.data(), between=st.integers(0, 3), place_first=st.booleans())
    def get_a_place_and_give_up(self, data: st.DataObject, between: int, place_first: bool) -> None:
        """A leg is cancelled in the moment in which a place comes free, mostly its own."""
        self.settle()
        if not self.line:
            return
        leg = data.draw(st.sampled_from(self.line[:2]))
        steps = [partial(self.cancel, leg), partial(self.end_one, data, 0)]
        if place_first:
            steps.reverse()
        steps[0]()
        self.go_on(between)
        if not (place_first and leg.told):
            steps[1]()
        self.settle()

    @precondition(lambda self: len(self.line) > 1 and self.distrusts())
    @rule(seconds=st.sampled_from([1, 2, 5]))
    def first_gives_up_and_time_passes(self, seconds: float) -> None:
        """Who would have asked again is gone by then."""
        self.settle()
        if self.line:
            self.cancel(self.line[0])
        self.pass_time(seconds)

    @precondition(lambda self: self.distrusts())
    @rule(seconds=st.sampled_from([0.5, 1, 2, 5]))
    def pass_time(self, seconds: float) -> None:
        self.settle()
        until = self.run.now + seconds
        ends = sorted({end for end in self.avoided.values() if self.run.now < end <= until})
        self.run.advance(seconds)
        for end in ends:
            self.serve(end)
        self.settle()

    @precondition(lambda self: not all(leg.told for leg in self.everyone()))
    @rule(ticks=st.integers(0, 4))
    def wait(self, ticks: int) -> None:
        self.go_on(ticks)

    def end_one(self, data: st.DataObject, failed: int) -> None:
        ended = [leg for leg in self.placed if leg.told and not leg.leaving]
        if not ended:
            return
        leg = data.draw(st.sampled_from(ended))
        assert leg.place is not None
        assert leg.on is not None
        if failed:
            self.avoid(leg.on, failed)
        leg.place.release()
        self.placed.remove(leg)
        self.serve()
        self.agrees()  # within the call that frees it

    def cancel(self, leg: Leg) -> None:
        leg.job.cancel()
        leg.leaving = True

    # The model

    def everyone(self) -> list[Leg]:
        return self.line + self.placed

    def on(self, iid: str) -> list[Leg]:
        return [leg for leg in self.placed if leg.on == iid]

    def distrusts(self) -> bool:
        return any(end > self.run.now for end in self.avoided.values())

    def choose(self, leg: Leg, now: float | None = None) -> str | None:
        now = self.run.now if now is None else now
        most = self.desk.per_engine or inf
        usable = [
            iid
            for iid in leg.wanted
            if len(self.on(iid)) < most and (leg.stubborn or now >= self.avoided[iid])
        ]
        return min(usable, key=lambda iid: (len(self.on(iid)), iid), default=None)

    def serve(self, now: float | None = None) -> None:
        for leg in list(self.line):
            leg.on = self.choose(leg, now)
            if leg.on is not None:
                self.line.remove(leg)
                self.placed.append(leg)

    def picker(self, leg: Leg) -> Callable[[], Choice | None]:
        """How the leg chooses in earnest: from what the desk and the ledger say."""

        def pick() -> Choice | None:
            usable = [
                iid
                for iid in leg.wanted
                if self.desk.free(iid) > 0 and (leg.stubborn or self.run.now >= self.avoided[iid])
            ]
            if not usable:
                return None
            residents = self.ledger.residents
            best = min(usable, key=lambda iid: (residents(iid, Phase.DECODE), iid))
            return Choice(best, Why.LEAST_COST)

        return pick

    def changes_at(self, leg: Leg) -> float:
        ends = [self.avoided[iid] for iid in leg.wanted]
        return min((end for end in ends if end > self.run.now), default=inf)

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
        assert all(leg.told for leg in self.placed)
        assert not any(leg.told or leg.leaving for leg in self.line)

    def hear(self) -> None:
        """Take out who has given up, and see what the others were told."""
        for leg in self.everyone():
            if leg.leaving and leg.told:
                assert leg.job.cancelled, "nobody has a place who is gone"
                (self.line if leg in self.line else self.placed).remove(leg)
                self.serve()
        for leg in self.everyone():
            if leg.told and leg.place is None:
                leg.place = leg.job.value
                assert leg.place.iid == leg.on

    # What holds at every time

    @invariant()
    def agrees(self) -> None:
        assert self.desk.waiting == len(self.line)
        assert self.desk.line_s == sum(leg.tokens for leg in self.line)
        for iid in ENGINES:
            assert self.ledger.residents(iid, Phase.DECODE) == len(self.on(iid))
            assert self.ledger.tokens(iid, Phase.DECODE) == sum(leg.tokens for leg in self.on(iid))
            assert self.ledger.residents(iid, Phase.PREFILL) == 0
        assert self.ledger.total == len(self.placed)

    @invariant()
    def no_engine_has_too_many(self) -> None:
        for iid in ENGINES:
            assert self.desk.free(iid) >= 0

    @invariant()
    def nobody_waits_who_could_be_served(self) -> None:
        assert all(self.picker(leg)() is None for leg in self.line)


TestSeats = SeatsMachine.TestCase
TestSeats.settings = settings(deadline=None, max_examples=150, stateful_step_count=40)
