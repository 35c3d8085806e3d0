"""Prices, domains, seats and means."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from profile_samples import decodes, handoffs, profile, profiles, tokens

from narwhal.model import ConfigError
from narwhal.profiles import (
    DecodeCurve,
    HandoffCurve,
    PrefillCurve,
    Profile,
    Range,
    SeatBound,
    Seats,
    mean_profile,
)

# Prices


def test_prices_are_those_of_the_formulas() -> None:
    known = profile(handoff=HandoffCurve(base_s=0.01, token_s=1e-5))
    assert known.prefill_seconds(1000) == pytest.approx(0.01 + 0.1 + 0.01)
    assert known.decode_interval(8, 20_000) == pytest.approx(0.01 + 0.008 + 0.02)
    assert known.idle_interval() == pytest.approx(0.011)
    assert known.handoff_seconds(1000) == pytest.approx(0.02)
    assert profile().handoff_seconds(1000) == 0.0


@given(profiles, tokens, tokens)
@settings(deadline=None)
def test_a_longer_prompt_never_costs_less(known: Profile, one: int, other: int) -> None:
    less, more = sorted((one, other))
    assert 0.0 <= known.prefill_seconds(less) <= known.prefill_seconds(more)
    assert 0.0 <= known.handoff_seconds(less) <= known.handoff_seconds(more)


@given(profiles, st.tuples(tokens, tokens), st.tuples(tokens, tokens))
@settings(deadline=None)
def test_a_larger_batch_never_has_shorter_intervals(
    known: Profile, requests: tuple[int, int], kv: tuple[int, int]
) -> None:
    small = known.decode_interval(min(requests), min(kv))
    assert 0.0 <= small <= known.decode_interval(max(requests), min(kv))
    assert small <= known.decode_interval(min(requests), max(kv))


@given(profiles, st.integers(1, 10**6), tokens)
@settings(deadline=None)
def test_no_interval_is_below_the_idle_one(known: Profile, requests: int, kv: int) -> None:
    assert known.idle_interval() <= known.decode_interval(requests, kv)


CURVES: list[tuple[type, dict[str, Any]]] = [
    (PrefillCurve, {"a": 0.0, "b": 0.0, "c": 0.0}),
    (DecodeCurve, {"t0": 0.0, "tr": 0.0, "tk": 1e-9}),
    (HandoffCurve, {"base_s": 0.0, "token_s": 0.0}),
]


@pytest.mark.parametrize("bad", [-1e-300, math.nan, math.inf, True, "1", None, 10**400])
@pytest.mark.parametrize(("curve", "good"), CURVES)
def test_a_coefficient_that_is_no_cost_is_refused(
    curve: type, good: dict[str, Any], bad: Any
) -> None:
    curve(**good)
    for name in good:
        with pytest.raises(ConfigError, match=rf"{curve.__name__}\.{name} must be"):
            curve(**(good | {name: bad}))


def test_what_else_is_refused() -> None:
    with pytest.raises(ConfigError, match="tk must be positive"):
        DecodeCurve(t0=0.0, tr=0.0, tk=0.0)
    with pytest.raises(ConfigError, match=r"low must be at most Range.high \(4\), not 5"):
        Range(5, 4)
    with pytest.raises(ConfigError, match="kv_capacity_tokens must be at least 1"):
        profile(kv_capacity_tokens=0)


# Domains


def test_a_domain_reaches_up_to_what_was_measured() -> None:
    known = profile()
    assert [known.fits_prefill(n) for n in (0, 16, 8192, 8193)] == [True, True, True, False]
    assert known.fits_decode(64, 100_000)
    assert known.fits_decode(0, 0), "less than was measured costs no more"
    assert not known.fits_decode(65, 100)
    assert not known.fits_decode(1, 100_001)


def test_nothing_fits_a_domain_that_is_not_known() -> None:
    unknown = profile(
        prefill=PrefillCurve(a=0.0, b=0.0, c=0.0), decode=DecodeCurve(t0=0.0, tr=0.0, tk=1e-9)
    )
    assert not unknown.fits_prefill(1)
    assert not unknown.fits_decode(1, 1)
    half = profile(decode=DecodeCurve(t0=0.0, tr=0.0, tk=1e-9, requests=Range(1, 9)))
    assert not half.fits_decode(1, 1)


def test_memory_is_a_bound_only_where_it_is_known() -> None:
    assert profile().fits_memory(10**12)
    assert profile(kv_capacity_tokens=100).fits_memory(100)
    assert not profile(kv_capacity_tokens=100).fits_memory(101)


# Seats


@pytest.mark.parametrize(
    ("context", "tpot", "changes", "seats"),
    [
        (1000, 0.05, {}, Seats(20, SeatBound.TPOT)),
        (1000, 0.0119, {}, Seats(0, SeatBound.TPOT)),
        (1000, 9.0, {}, Seats(64, SeatBound.MEASURED_REQUESTS)),
        (0, 9.0, {}, Seats(64, SeatBound.MEASURED_REQUESTS)),
        (10_000, 9.0, {}, Seats(10, SeatBound.MEASURED_KV_TOKENS)),
        (10_000, 9.0, {"kv_capacity_tokens": 90_000}, Seats(9, SeatBound.KV_CAPACITY)),
        (10_000, 9.0, {"kv_capacity_tokens": 100_000}, Seats(10, SeatBound.KV_CAPACITY)),
        (10_000, 9.0, {"kv_capacity_tokens": 9_999}, Seats(0, SeatBound.KV_CAPACITY)),
        (10_000, 0.03, {"kv_capacity_tokens": 90_000}, Seats(1, SeatBound.TPOT)),
    ],
)
def test_seats(context: int, tpot: float, changes: dict[str, Any], seats: Seats) -> None:
    # The sums are rounded: a nanosecond more than the numbers of the formula.
    assert profile(**changes).decode_seats(context, tpot + 1e-9) == seats


def test_an_interval_that_just_meets_the_target_has_a_seat() -> None:
    curve = DecodeCurve(t0=0.25, tr=0.25, tk=0.25, requests=Range(1, 9), kv_tokens=Range(1, 9))
    assert profile(decode=curve).decode_seats(1, 1.25) == Seats(2, SeatBound.TPOT)


def test_an_unmeasured_engine_has_one_seat_at_most() -> None:
    unknown = profile(decode=DecodeCurve(t0=0.01, tr=0.001, tk=1e-6))
    assert unknown.decode_seats(1000, 9.0) == Seats(1, SeatBound.UNMEASURED)
    assert unknown.decode_seats(1000, 0.01) == Seats(0, SeatBound.TPOT)


@given(profiles, st.integers(1, 10**7), st.floats(0.0, 1e300))
@settings(deadline=None, max_examples=300)
def test_seats_hold_and_one_more_does_not(known: Profile, context: int, tpot: float) -> None:
    seats = known.decode_seats(context, tpot)
    count, kv = seats.count, seats.count * context
    assert count == 0 or known.decode_interval(count, kv) <= tpot
    assert count == 0 or known.fits_memory(kv)
    assert count <= 1 or known.fits_decode(count, kv)
    more, kv = count + 1, (count + 1) * context
    broken = {
        SeatBound.TPOT: known.decode_interval(more, kv) > tpot,
        SeatBound.KV_CAPACITY: not known.fits_memory(kv),
        SeatBound.UNMEASURED: None in (known.decode.requests, known.decode.kv_tokens),
        SeatBound.MEASURED_REQUESTS: not known.fits_decode(more, 0),
        SeatBound.MEASURED_KV_TOKENS: not known.fits_decode(1, kv),
    }
    assert broken[seats.bound]


@given(profiles, st.tuples(tokens, tokens), st.tuples(st.floats(0.0, 9.0), st.floats(0.0, 9.0)))
@settings(deadline=None)
def test_seats_grow_with_the_target_and_shrink_with_the_context(
    known: Profile, contexts: tuple[int, int], targets: tuple[float, float]
) -> None:
    count = known.decode_seats(min(contexts), min(targets)).count
    assert known.decode_seats(min(contexts), max(targets)).count >= count
    assert known.decode_seats(max(contexts), min(targets)).count <= count


# Means


def test_a_mean_is_of_prices_and_of_nothing_that_was_not_measured_everywhere() -> None:
    one = profile(
        prefill=PrefillCurve(a=1e-8, b=1e-4, c=0.01, tokens=Range(16, 8192), cv_mape=0.01),
        handoff=HandoffCurve(base_s=0.01, token_s=0.0),
        kv_capacity_tokens=500,
    )
    other = profile(
        prefill=PrefillCurve(a=3e-8, b=3e-4, c=0.03, tokens=Range(32, 4096), cv_mape=0.04),
        decode=DecodeCurve(t0=0.03, tr=3e-3, tk=3e-6, requests=Range(65, 70)),
        kv_capacity_tokens=400,
    )
    mean = mean_profile([one, other])
    assert mean.prefill.a == pytest.approx(2e-8)
    assert (mean.prefill.tokens, mean.prefill.cv_mape) == (Range(32, 4096), 0.04)
    assert mean_profile([one, profile()]).prefill.cv_mape is None
    assert mean.decode.tr == pytest.approx(2e-3)
    assert (mean.decode.requests, mean.decode.kv_tokens) == (None, None)
    assert (mean.handoff, mean.kv_capacity_tokens) == (None, 400)
    assert mean_profile([one, profile()]).kv_capacity_tokens == 500
    assert mean_profile([one] * 49) == one, "49 times a 49th is less than 1 in floating point"
    with pytest.raises(ValueError, match="no profiles"):
        mean_profile([])


@given(st.lists(profiles, min_size=1, max_size=4), st.integers(0, 10**6), st.integers(0, 10**6))
@settings(deadline=None, max_examples=200)
def test_the_mean_of_prices_is_the_price_of_the_mean(
    known: list[Profile], requests: int, kv: int
) -> None:
    mean = mean_profile(known)
    pairs = [
        (mean.prefill_seconds(kv), [one.prefill_seconds(kv) for one in known]),
        (mean.decode_interval(requests, kv), [one.decode_interval(requests, kv) for one in known]),
    ]
    for price, prices in pairs:
        if all(math.isfinite(each) for each in [price, *prices]):
            expected = math.fsum(each / len(prices) for each in prices)
            assert price == pytest.approx(expected, rel=1e-9, abs=1e-300)
    assert not mean.fits_prefill(kv) or all(one.fits_prefill(kv) for one in known)
    assert not mean.fits_decode(requests, kv) or all(one.fits_decode(requests, kv) for one in known)
    assert not mean.fits_memory(kv) or all(one.fits_memory(kv) for one in known)


@given(decodes, handoffs)
@settings(deadline=None)
def test_curves_are_values(decode: DecodeCurve, handoff: HandoffCurve) -> None:
    assert {decode, handoff} == {decode, handoff}
    with pytest.raises(AttributeError):
        decode.tk = 1.0  # type: ignore[misc]  # that is the point
