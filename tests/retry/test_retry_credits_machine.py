"""Retry credits against a model in exact fractions."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from narwhal.retry import Credits


class CreditsMachine(RuleBasedStateMachine):
    """Retries are scheduled, dispatched or called off, and requests succeed, in any order."""

    @initialize(
        budget=st.integers(0, 3),
        replenish=st.sampled_from([0.1, 0.3, 0.5, 1.0, 0.0]) | st.floats(0, 1),
    )
    def build(self, budget: int, replenish: float) -> None:
        self.credits = Credits(budget, replenish)
        self.budget = self.left = Fraction(budget)
        self.success = Fraction(repr(replenish))  # what the fleet file says, not its nearest float
        self.scheduled = 0
        self.taken = self.given_back = self.successes = 0
        self.overflowed = Fraction(0)

    @rule()
    def schedule(self) -> None:
        granted = self.credits.take_nowait()
        assert granted is (self.left >= 1)
        if granted:
            self.left -= 1
            self.scheduled += 1
            self.taken += 1

    @precondition(lambda self: self.scheduled)
    @rule()
    def call_off(self) -> None:
        self.credits.give_back()
        self.scheduled -= 1
        self.given_back += 1
        self.add(Fraction(1))

    @precondition(lambda self: self.scheduled)
    @rule()
    def recover_and_call_off(self) -> None:
        self.succeed(12)
        self.call_off()

    @precondition(lambda self: self.scheduled)
    @rule()
    def dispatch(self) -> None:
        self.scheduled -= 1

    @rule(times=st.integers(1, 12))
    def succeed(self, times: int) -> None:
        for _ in range(times):
            self.credits.succeeded()
            self.add(self.success)
        self.successes += times

    def add(self, amount: Fraction) -> None:
        self.overflowed += max(Fraction(0), self.left + amount - self.budget)
        self.left = min(self.budget, self.left + amount)

    @invariant()
    def agrees(self) -> None:
        assert self.credits.available == float(self.left)

    @invariant()
    def bounded(self) -> None:
        assert 0 <= self.credits.available <= self.credits.budget == self.budget

    @invariant()
    def conserved(self) -> None:
        """What was there and what came is there, spent, or was more than there may be."""
        came = self.budget + self.given_back + self.successes * self.success
        assert came == self.left + self.taken + self.overflowed

    @invariant()
    def retries_stay_below_the_budget_and_a_share_of_the_successes(self) -> None:
        assert self.taken - self.given_back <= self.budget + self.successes * self.success


TestCredits = CreditsMachine.TestCase
TestCredits.settings = settings(deadline=None, stateful_step_count=25)


@pytest.mark.parametrize(("replenish", "successes"), [(0.1, 10), (0.05, 20), (0.2, 5), (0.3, 4)])
def test_successes_that_are_worth_a_credit_buy_one(replenish: float, successes: int) -> None:
    wallet = Credits(1, replenish)
    assert wallet.take_nowait()
    for _ in range(successes - 1):
        wallet.succeeded()
        assert not wallet.take_nowait()
    wallet.succeeded()
    assert wallet.take_nowait()
