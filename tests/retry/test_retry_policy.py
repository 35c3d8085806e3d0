from random import Random
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from narwhal.model import Failure, FailureClass, Phase
from narwhal.retry import Credits, NoRetry, RetryIn, RetryPolicy, Why, classify_status

FAILURE = Failure(
    phase=Phase.DECODE,
    failure=FailureClass.CONNECTION,
    engine="d0",
    status=502,
    code="engine_closed",
    message="gone",
)
POLICY = RetryPolicy(max_attempts=3, base_s=0.1, cap_s=1.0)


def decide(
    failure: Failure = FAILURE,
    *,
    wallet: Credits | None = None,
    policy: RetryPolicy = POLICY,
    **changes: Any,
) -> RetryIn | NoRetry:
    given_: dict[str, Any] = {
        "attempt": 1,
        "now": 0.0,
        "deadline": 100.0,
        "rng": Random(1),
    } | changes
    return policy.decide(failure, retry_credits=wallet or Credits(10, 0.1), **given_)


@pytest.mark.parametrize(
    ("status", "failure", "transient"),
    [
        (408, FailureClass.OVERLOAD, True),
        (429, FailureClass.OVERLOAD, True),
        (503, FailureClass.OVERLOAD, True),
        (500, FailureClass.INFERENCE_STATUS, True),
        (502, FailureClass.INFERENCE_STATUS, True),
        (504, FailureClass.INFERENCE_STATUS, True),
        (501, FailureClass.INFERENCE_STATUS, False),
        (400, FailureClass.NEUTRAL, False),
        (401, FailureClass.NEUTRAL, False),
        (404, FailureClass.NEUTRAL, False),
        (422, FailureClass.NEUTRAL, False),
    ],
)
def test_statuses(status: int, failure: FailureClass, transient: bool) -> None:
    assert classify_status(status) == (failure, transient)


@pytest.mark.parametrize(
    ("change", "arguments", "why"),
    [
        ({"visible": True}, {}, Why.VISIBLE_OUTPUT),
        ({"transient": False}, {}, Why.PERMANENT),
        ({}, {"attempt": 3}, Why.ATTEMPTS),
        ({}, {"wallet": Credits(0, 0.1)}, Why.NO_CREDIT),
        ({}, {"now": 100.0}, Why.DEADLINE),
        ({}, {"floor_s": 100.0}, Why.DEADLINE),
    ],
)
def test_what_ends_it(change: dict[str, Any], arguments: dict[str, Any], why: Why) -> None:
    assert decide(attrs.evolve(FAILURE, **change), **arguments) == NoRetry(why)


@given(st.integers(1, 2), st.floats(0, 5), st.floats(0, 5), st.floats(0, 10), st.integers(0, 2**32))
def test_full_jitter_below_its_ceiling_and_before_the_deadline(
    attempt: int, base: float, cap: float, left: float, seed: int
) -> None:
    cap = max(base, cap)
    policy = RetryPolicy(max_attempts=3, base_s=base, cap_s=cap)
    wallet = Credits(5, 0.1)
    decision = decide(
        policy=policy, wallet=wallet, attempt=attempt, deadline=left, rng=Random(seed)
    )
    if isinstance(decision, RetryIn):
        assert 0 <= decision.delay <= min(cap, base * 2 ** (attempt - 1))
        assert decision.delay < left
        assert wallet.available == 4
    else:
        assert decision.why is Why.DEADLINE
        assert wallet.available == 5, "a retry that is not scheduled costs nothing"
