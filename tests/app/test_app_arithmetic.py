"""Which limit ends a request, and when, against a small model that only adds and compares."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from arithmetic_cases import Limits, Request, limits, requests
from arithmetic_stage import check

SEEDS = st.integers(0, 2**32)


@settings(deadline=None, max_examples=400)
@given(limits=limits(), request=requests(), seed=SEEDS, schedule=SEEDS)
def test_the_whole_row_is_what_arithmetic_says(
    limits: Limits, request: Request, seed: int, schedule: int
) -> None:
    check(limits, [request], seed, schedule)


@settings(deadline=None, max_examples=300)
@given(
    limits=limits(attempts=2, tight=12),
    requests=st.lists(requests(fails=2), min_size=1, max_size=3),
    seed=SEEDS,
    schedule=SEEDS,
)
def test_retries_take_credits_and_time_that_there_is(
    limits: Limits, requests: list[Request], seed: int, schedule: int
) -> None:
    check(limits, requests, seed, schedule)
