"""Which limit ends a request, and when, against a small model that only adds and compares."""

from __future__ import annotations

import attrs
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from arithmetic_cases import (
    DECODE_ENDS,
    LEG,
    PLAIN,
    PREFILL_ENDS,
    SCRIPT,
    STREAM_ENDS,
    TIMES,
    WIDE,
    Limits,
    Request,
    apart,
    limit,
    limits,
    moment,
    requests,
)
from arithmetic_model import Model, Wallet
from arithmetic_stage import check

SEEDS = st.integers(0, 2**32)


@settings(deadline=None, max_examples=400)
@given(limits=limits(), request=requests(), seed=SEEDS, schedule=SEEDS)
def test_the_whole_row_is_what_arithmetic_says(
    limits: Limits, request: Request, seed: int, schedule: int
) -> None:
    check(limits, [request], seed, schedule)


@settings(deadline=None, max_examples=250)
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


def test_failures_in_a_row_over_several_requests_are_reckoned_one_by_one() -> None:
    late = attrs.evolve(SCRIPT, prefill=attrs.evolve(LEG, connect=0.5))
    request = attrs.evolve(PLAIN, scripts=(late, late, late))
    tight = attrs.evolve(WIDE, connect_s=0.25 + apart(11), max_attempts=2, budget=9)
    check(tight, [request] * 4)


@settings(deadline=None, max_examples=250)
@given(
    limits=limits(attempts=2, tight=12),
    request=requests(fails=2),
    which=st.integers(0, 30),
    part=st.integers(0, 98),
    by=st.sampled_from(["client", "deadline"]),
    seed=SEEDS,
    schedule=SEEDS,
)
def test_a_departure_or_the_deadline_ends_it_in_whatever_phase(
    *, limits: Limits, request: Request, which: int, part: int, by: str, seed: int, schedule: int
) -> None:
    told = Model(limits, request, Wallet(limits, seed)).predict()
    stretches = [each for each in told.stretches if each.ends > each.begins]
    assume(stretches)
    chosen = stretches[which % len(stretches)]
    when = chosen.begins + (chosen.ends - chosen.begins) * (part / 100 + apart(53))
    if by == "client":
        check(limits, [attrs.evolve(request, leaves_at=when)], seed, schedule)
    else:
        check(attrs.evolve(limits, request_s=when), [request], seed, schedule)


@settings(deadline=None, max_examples=80)
@given(
    gaps=st.lists(TIMES, min_size=1, max_size=6),
    gap_s=limit(17, 1),
    stream=st.booleans(),
    schedule=SEEDS,
)
def test_silence_is_counted_from_the_last_token(
    gaps: list[float], gap_s: float, stream: bool, schedule: int
) -> None:
    script = attrs.evolve(SCRIPT, gaps=tuple(gaps))
    request = attrs.evolve(PLAIN, stream=stream, scripts=(script, script, script))
    check(attrs.evolve(WIDE, gap_s=gap_s), [request], schedule=schedule)


@settings(deadline=None, max_examples=120)
@given(
    cap_s=st.just(0.0) | limit(7, 1),
    lease_s=limit(11, 1),
    legs=st.tuples(TIMES, TIMES, TIMES),
    decode_at=moment(41, 0.0, 3, most=300),
    stream=st.booleans(),
    schedule=SEEDS,
)
def test_a_handoff_is_used_in_time_or_not_at_all(
    *,
    cap_s: float,
    lease_s: float,
    legs: tuple[float, float, float],
    decode_at: float,
    stream: bool,
    schedule: int,
) -> None:
    prefill, connect, first = legs
    script = attrs.evolve(
        SCRIPT,
        prefill=attrs.evolve(LEG, seconds=prefill),
        decode=attrs.evolve(LEG, connect=connect, seconds=first),
    )
    request = attrs.evolve(
        PLAIN, stream=stream, decode_at=decode_at, scripts=(script, SCRIPT, SCRIPT)
    )
    # A cap has to be below the lease where requests may be tried again.
    limits = attrs.evolve(
        WIDE, handoff_s=cap_s, lease_s=cap_s + lease_s, max_attempts=2 if cap_s else 1
    )
    check(limits, [request], schedule=schedule)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("retry_after", [None, 2])
@pytest.mark.parametrize(
    ("leg", "end"),
    [("prefill", end) for end in PREFILL_ENDS]
    + [("decode", end) for end in DECODE_ENDS]
    + [("stream", end) for end in STREAM_ENDS],
)
def test_only_what_may_end_differently_is_tried_again(
    leg: str, end: str, retry_after: int | None, stream: bool
) -> None:
    if leg == "stream":
        script = attrs.evolve(SCRIPT, end=end)
    else:
        bad = attrs.evolve(getattr(SCRIPT, leg), end=end, retry_after=retry_after)
        script = attrs.evolve(SCRIPT, **{leg: bad})
    request = attrs.evolve(PLAIN, stream=stream, scripts=(script, script, SCRIPT))
    for engines in (1, 3):
        limits = attrs.evolve(WIDE, max_attempts=3, base_s=1.0, cap_s=1.5, decode=engines)
        check(attrs.evolve(limits, prefill=engines), [request])
        check(attrs.evolve(limits, prefill=0), [request])
