"""What the router knows of its engines, against models that remember everything."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from narwhal.fleet import UNPLACED, Claim, Ledger, Orphans, Reservation, Trust
from narwhal.fleet.trust import BUSY_PAUSE_S, FIRST_PAUSE_S, LONGEST_PAUSE_S
from narwhal.model import FailureClass, Phase

ENGINES = ("a", "b")
IIDS = st.sampled_from(ENGINES)
SECONDS = st.sampled_from([0.0, 0.1, 0.25, 0.5, 1.0, 3.0, 20.0])


class LedgerMachine(RuleBasedStateMachine):
    """Reservations come and go in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.ledger = Ledger(ENGINES)
        self.out: list[Reservation] = []
        self.back: list[Reservation] = []
        self.now = 0.0

    @rule(seconds=SECONDS)
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule(
        iid=st.sampled_from([*ENGINES, UNPLACED]),
        phase=st.sampled_from(Ledger.PHASES),
        claim=st.builds(
            Claim,
            prompt_tokens=st.integers(0, 10_000),
            output_tokens=st.integers(0, 999),
            seconds=SECONDS,
        ),
    )
    def reserve(self, iid: str, phase: Phase, claim: Claim) -> None:
        reservation = self.ledger.reserve(iid, phase, claim, self.now)
        assert (reservation.iid, reservation.phase, reservation.claim) == (iid, phase, claim)
        self.out.append(reservation)

    @precondition(lambda self: self.out)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        reservation = self.out.pop(data.draw(st.integers(0, len(self.out) - 1)))
        reservation.release(self.now)
        self.back.append(reservation)

    @precondition(lambda self: self.back)
    @rule(data=st.data())
    def release_again(self, data: st.DataObject) -> None:
        reservation = data.draw(st.sampled_from(self.back))
        with pytest.raises(AssertionError, match="released twice"):
            reservation.release(self.now)

    @invariant()
    def agrees(self) -> None:
        ledger = self.ledger
        for iid in (*ENGINES, UNPLACED):
            for phase in Ledger.PHASES:
                mine = [each.claim for each in self.out if (each.iid, each.phase) == (iid, phase)]
                assert ledger.residents(iid, phase) == len(mine)
                assert ledger.tokens(iid, phase) == sum(each.tokens for each in mine)
                assert ledger.load(iid, phase).mean_tokens == sum(each.mean_tokens for each in mine)
        for iid in ENGINES:
            legs = [e.claim for e in self.out if (e.iid, e.phase) == (iid, Phase.PREFILL)]
            mine = [each for each in legs if each.seconds]  # the others stand in no line
            behind = sum(each.seconds for each in mine[1:])
            whole = behind + sum(each.seconds for each in mine[:1])
            assert behind - 1e-6 <= ledger.backlog_s(iid, self.now) <= whole + 1e-6
        assert ledger.total == len(self.out)
        assert not any(each.released for each in self.out)
        assert all(each.released for each in self.back)

    def teardown(self) -> None:
        for reservation in self.out:
            reservation.release(self.now)
        self.out.clear()
        self.agrees()


class OrphansMachine(RuleBasedStateMachine):
    """Handoffs are abandoned with leases of all lengths, and engines restart."""

    def __init__(self) -> None:
        super().__init__()
        self.orphans = Orphans()
        self.pinned: list[tuple[str, int, float]] = []
        self.now = 0.0

    @rule(iid=IIDS, tokens=st.integers(0, 10_000), lease=SECONDS)
    def abandon(self, iid: str, tokens: int, lease: float) -> None:
        self.orphans.add(iid, tokens, until=self.now + lease, now=self.now)
        self.pinned.append((iid, tokens, self.now + lease))

    @rule(iid=IIDS)
    def restart(self, iid: str) -> None:
        self.orphans.forget(iid)
        self.pinned = [each for each in self.pinned if each[0] != iid]

    @rule(seconds=SECONDS)
    def pass_time(self, seconds: float) -> None:
        self.now += seconds

    @invariant()
    def agrees(self) -> None:
        for iid in ENGINES:
            mine = [tokens for on, tokens, until in self.pinned if on == iid and until > self.now]
            assert self.orphans.tokens(iid, self.now) == sum(mine)


class Standing:
    """What is held against an engine in one phase."""

    def __init__(self) -> None:
        self.events = 0  # failures that were not part of another
        self.pauses: list[float] = []  # ends; of failures and trials
        self.busy: list[float] = []
        self.on_trial = False

    @property
    def pause(self) -> float:
        return min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** (self.events - 1))

    def doubtful(self, now: float) -> bool:
        return any(now < end for end in self.pauses + self.busy)

    def failing(self, now: float) -> bool:
        """Whether a failure now belongs to one that is known."""
        return not self.on_trial and any(now < end for end in self.pauses)


class TrustMachine(RuleBasedStateMachine):
    """Legs are sent, fail and go well, and time passes."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.trust = Trust()
        self.model = {(iid, phase): Standing() for iid in ENGINES for phase in Trust.PHASES}

    @rule(
        iid=IIDS,
        phase=st.sampled_from(Trust.PHASES),
        failure=st.sampled_from(FailureClass),
        asked=st.sampled_from([None, None, 0.1, 2.0, 100.0]),
    )
    def fail(self, iid: str, phase: Phase, failure: FailureClass, asked: float | None) -> None:
        self.trust.failed(iid, phase, failure, self.now, retry_after=asked)
        if failure in {FailureClass.NEUTRAL, FailureClass.LOCAL}:
            return
        for each in Trust.PHASES if failure is FailureClass.CONNECTION else [phase]:
            standing = self.model[iid, each]
            if failure is FailureClass.OVERLOAD:
                pause = min(max(asked or 0.0, BUSY_PAUSE_S), LONGEST_PAUSE_S)
                standing.busy.append(self.now + pause)
            else:
                standing.events += not standing.failing(self.now)
                standing.on_trial = False
                standing.pauses.append(self.now + standing.pause)

    @rule(iid=IIDS, phase=st.sampled_from(Trust.PHASES))
    def go_well(self, iid: str, phase: Phase) -> None:
        self.trust.succeeded(iid, phase)
        self.model[iid, phase] = Standing()

    @rule(iid=IIDS)
    def forget(self, iid: str) -> None:
        self.trust.forget(iid)
        for phase in Trust.PHASES:
            self.model[iid, phase] = Standing()

    @rule(iid=IIDS, phase=st.sampled_from(Trust.PHASES))
    def send(self, iid: str, phase: Phase) -> None:
        """A leg to an engine in doubt whose pause is over is a trial."""
        self.trust.placed(iid, phase, self.now)
        standing = self.model[iid, phase]
        if standing.events and not standing.doubtful(self.now):
            standing.on_trial = True
            standing.pauses.append(self.now + standing.pause)

    @rule(iid=IIDS, phase=st.sampled_from(Trust.PHASES), good=st.booleans())
    def try_again(self, iid: str, phase: Phase, good: bool) -> None:
        """A leg is sent as soon as there is no doubt, and reports."""
        while self.trust.doubtful(iid, phase, self.now):
            self.now = self.trust.changes_at([iid], phase, self.now)
        self.send(iid, phase)
        self.agrees()
        if good:
            self.go_well(iid, phase)
        else:
            self.fail(iid, phase, FailureClass.STREAM, None)

    @rule(seconds=SECONDS)
    def pass_time(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def pass_time_to_a_change(self) -> None:
        change = min(self.trust.changes_at(ENGINES, phase, self.now) for phase in Trust.PHASES)
        if change < inf:
            self.now = change

    def verdicts(self, phase: Phase, now: float) -> list[bool]:
        return [self.trust.doubtful(iid, phase, now) for iid in ENGINES]

    @invariant()
    def agrees(self) -> None:
        for (iid, phase), standing in self.model.items():
            assert self.trust.failures(iid, phase) == standing.events
            assert self.trust.doubtful(iid, phase, self.now) == standing.doubtful(self.now)
            assert (iid in self.trust.doubts(phase, self.now)) == standing.doubtful(self.now)

    @invariant()
    def says_what_is_avoided(self) -> None:
        for iid in ENGINES:
            avoided = [phase for phase in Trust.PHASES if self.model[iid, phase].doubtful(self.now)]
            said = self.trust.describe(iid, self.now)
            assert said == (f"avoided for {', '.join(avoided)}" if avoided else "trusted")

    @invariant()
    def no_doubt_is_longer_than_the_longest(self) -> None:
        for iid in ENGINES:
            for phase in Trust.PHASES:
                assert not self.trust.doubtful(iid, phase, self.now + LONGEST_PAUSE_S)

    @invariant()
    def a_verdict_changes_by_itself_when_it_is_said_to_and_not_before(self) -> None:
        for phase in Trust.PHASES:
            change = self.trust.changes_at(ENGINES, phase, self.now)
            assert change > self.now
            verdicts = self.verdicts(phase, self.now)
            if change == inf:
                assert self.verdicts(phase, self.now + 1000) == verdicts
            else:
                assert self.verdicts(phase, (self.now + change) / 2) == verdicts
                assert self.verdicts(phase, change) != verdicts


SETTINGS = settings(deadline=None, stateful_step_count=20)
TestLedger = LedgerMachine.TestCase
TestLedger.settings = SETTINGS
TestOrphans = OrphansMachine.TestCase
TestOrphans.settings = SETTINGS
TestTrust = TrustMachine.TestCase
TestTrust.settings = SETTINGS
