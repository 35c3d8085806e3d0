import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from narwhal.fleet import Trust
from narwhal.fleet.trust import BUSY_PAUSE_S, FIRST_PAUSE_S, LONGEST_PAUSE_S
from narwhal.model import FailureClass, Phase

D, P = Phase.DECODE, Phase.PREFILL


@pytest.mark.parametrize("neutral", [FailureClass.NEUTRAL, FailureClass.LOCAL])
def test_a_client_error_or_our_own_says_nothing(neutral: FailureClass) -> None:
    trust = Trust()
    for now in range(20):
        trust.failed("a", D, neutral, float(now))
    assert not trust.doubtful("a", D, 19.0)
    assert trust.failures("a", D) == 0


def test_a_failed_connection_counts_in_every_phase() -> None:
    trust = Trust()
    trust.failed("a", D, FailureClass.CONNECTION, 0.0)
    assert all(trust.doubtful("a", phase, 0.5) for phase in Trust.PHASES)
    assert not any(trust.doubtful("b", phase, 0.5) for phase in Trust.PHASES)


def test_another_failure_counts_only_in_its_phase() -> None:
    trust = Trust()
    trust.failed("a", P, FailureClass.TIMEOUT, 0.0)
    assert trust.doubtful("a", P, 0.5)
    assert not trust.doubtful("a", D, 0.5)


def test_legs_that_fail_together_are_one_event() -> None:
    trust = Trust()
    for k in range(30):
        trust.failed("a", D, FailureClass.STREAM, k * 0.001)
    assert trust.failures("a", D) == 1
    assert not trust.doubtful("a", D, 0.03 + FIRST_PAUSE_S)


def test_trials_come_one_at_a_time_and_further_and_further_apart() -> None:
    trust = Trust()
    now = 0.0
    trust.failed("a", D, FailureClass.CONNECTION, now)
    trials = []
    while now < 200:
        if not trust.doubtful("a", D, now):
            trust.placed("a", D, now)
            assert trust.doubtful("a", D, now), "the others wait for the trial"
            trust.failed("a", D, FailureClass.CONNECTION, now)
            trials.append(now)
        now += 0.5
    gaps = [b - a for a, b in itertools.pairwise(trials)]
    assert gaps == sorted(gaps)
    assert gaps[-1] == LONGEST_PAUSE_S
    assert len(trials) < 12


def test_success_forgives() -> None:
    trust = Trust()
    trust.failed("a", D, FailureClass.TIMEOUT, 0.0)
    trust.succeeded("a", D)
    assert not trust.doubtful("a", D, 0.0)
    assert trust.describe("a", 0.0) == "trusted"


def test_busy_is_a_short_pause_that_does_not_grow() -> None:
    trust = Trust()
    for k in range(20):
        trust.failed("a", D, FailureClass.OVERLOAD, float(k))
    assert trust.failures("a", D) == 0
    assert trust.doubtful("a", D, 19.0)
    assert not trust.doubtful("a", D, 19.0 + BUSY_PAUSE_S)


def test_a_busy_answer_hides_no_failure_that_follows() -> None:
    trust = Trust()
    trust.failed("a", D, FailureClass.OVERLOAD, 0.0, retry_after=10.0)
    trust.failed("a", D, FailureClass.TIMEOUT, 1.0)
    assert trust.failures("a", D) == 1
    trust.failed("a", D, FailureClass.TIMEOUT, 1.0 + FIRST_PAUSE_S)
    assert trust.failures("a", D) == 2
    trust.placed("a", D, 10.0)
    assert trust.doubtful("a", D, 10.0), "the others wait for the trial"


@given(st.floats(0, 1e6, allow_nan=False))
def test_a_busy_engine_gets_the_pause_it_asks_for_within_reason(asked: float) -> None:
    trust = Trust()
    trust.failed("a", D, FailureClass.OVERLOAD, 0.0, retry_after=asked)
    pause = min(max(asked, BUSY_PAUSE_S), LONGEST_PAUSE_S)
    assert trust.doubtful("a", D, pause * 0.999)
    assert not trust.doubtful("a", D, pause)


def test_it_says_in_words_what_is_avoided() -> None:
    trust = Trust()
    trust.failed("a", P, FailureClass.TIMEOUT, 0.0)
    assert trust.describe("a", 0.1) == "avoided for prefill"
