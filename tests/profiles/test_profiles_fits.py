"""Fits find what was there, never a negative cost, and say when they find nothing."""

from __future__ import annotations

import random
from itertools import combinations
from statistics import median
from typing import Any

import attrs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from narwhal.emulator.settings import TimeModel
from narwhal.model import ConfigError
from narwhal.profiles import (
    DecodeSample,
    EngineSamples,
    Fit,
    FitLimits,
    HandoffCurve,
    HandoffSample,
    Measured,
    PrefillCurve,
    PrefillSample,
    Profile,
    Range,
    Refusal,
    Refused,
    TextSample,
    fit_chars_per_token,
    fit_decode,
    fit_handoff,
    fit_prefill,
    medians,
    refit,
    refit_row,
)

LENGTHS = (16, 64, 256, 1024, 2048, 4096, 8192, 16_384, 32_768)
BATCHES = [(r, r * context) for r in (1, 2, 4, 8, 16, 32, 64) for context in (128, 1024, 4096)]
# An 8B model on an H100, and an emulated engine as it is unless told otherwise.
MODELS = [
    TimeModel(prefill=(0.8e-9, 38e-6, 4e-3), decode=(7e-3, 50e-6, 55e-9)),
    TimeModel(),
]
ANY = FitLimits(mean=float("inf"), worst=float("inf"))


def prefills(model: TimeModel, noise: Any = lambda: 1.0, repeats: int = 1) -> list[PrefillSample]:
    return [
        PrefillSample(tokens=n, seconds=model.prefill_seconds(n) * noise())
        for n in LENGTHS
        for _ in range(repeats)
    ]


def decodes(model: TimeModel, noise: Any = lambda: 1.0, repeats: int = 1) -> list[DecodeSample]:
    return [
        DecodeSample(requests=r, kv_tokens=k, interval_s=model.step_seconds(r, k) * noise())
        for r, k in BATCHES
        for _ in range(repeats)
    ]


def held(fit: Fit[Any] | Refused) -> Any:
    assert isinstance(fit, Fit), fit
    return fit.value


def refused(fit: Fit[Any] | Refused, reason: Refusal) -> str:
    assert isinstance(fit, Refused)
    assert fit.reason is reason
    return fit.text


# What is there is found


@pytest.mark.parametrize("model", MODELS)
def test_without_noise_the_coefficients_are_exact(model: TimeModel) -> None:
    prefill, decode = held(fit_prefill(prefills(model))), held(fit_decode(decodes(model)))
    assert (prefill.a, prefill.b, prefill.c) == pytest.approx(model.prefill, rel=1e-9)
    assert (decode.t0, decode.tr, decode.tk) == pytest.approx(model.decode, rel=1e-9)
    assert prefill.tokens == Range(16, 32_768)
    assert (decode.requests, decode.kv_tokens) == (Range(1, 64), Range(128, 64 * 4096))
    assert prefill.fit_mape < 1e-12 > decode.cv_mape


magnitudes = st.floats(0.05, 20.0)


@given(magnitudes, magnitudes, magnitudes)
@settings(deadline=None)
def test_prefill_of_any_make(a: float, b: float, c: float) -> None:
    model = TimeModel(prefill=(a * 2e-9, b * 1e-4, c * 1e-2))
    curve = held(fit_prefill(prefills(model)))
    assert (curve.a, curve.b, curve.c) == pytest.approx(model.prefill, rel=1e-6)


@given(magnitudes, magnitudes, magnitudes)
@settings(deadline=None)
def test_decode_of_any_make(t0: float, tr: float, tk: float) -> None:
    model = TimeModel(decode=(t0 * 1e-2, tr * 1e-4, tk * 1e-7))
    curve = held(fit_decode(decodes(model)))
    assert (curve.t0, curve.tr, curve.tk) == pytest.approx(model.decode, rel=1e-6)


@pytest.mark.parametrize(
    "prefill",
    [
        (0.0, 1e-4, 0.01),
        (0.0, 0.001528730364858345, 0.05138627063501462),  # a cost of 2.5e-23 fits it still better
        (1e-9, 0.0, 0.01),
        (1e-9, 1e-4, 0.0),
        (0.0, 1e-4, 0.0),
    ],
)
def test_a_cost_that_is_not_there_is_zero(prefill: tuple[float, float, float]) -> None:
    curve = held(fit_prefill(prefills(TimeModel(prefill=prefill))))
    found = (curve.a, curve.b, curve.c)
    assert found == pytest.approx(prefill, rel=1e-9)
    assert [each == 0.0 for each in found] == [each == 0.0 for each in prefill]


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("seed", range(5))
def test_with_noise_of_5_percent_they_are_found_within_10(model: TimeModel, seed: int) -> None:
    chance = random.Random(seed)
    noise = lambda: chance.uniform(0.95, 1.05)  # noqa: E731
    prefill = held(fit_prefill(prefills(model, noise, repeats=8)))
    decode = held(fit_decode(decodes(model, noise, repeats=8)))
    assert (prefill.a, prefill.b, prefill.c) == pytest.approx(model.prefill, rel=0.1)
    assert (decode.t0, decode.tr, decode.tk) == pytest.approx(model.decode, rel=0.1)
    assert 0.01 < prefill.fit_mape < 0.05
    assert 0.01 < decode.fit_mape < 0.05
    for n in LENGTHS:
        assert prefill.seconds(n) == pytest.approx(model.prefill_seconds(n), rel=0.05)


def test_handoffs_and_characters() -> None:
    samples = [HandoffSample(tokens=n, seconds=2e-3 + 2e-6 * n) for n in LENGTHS]
    curve = held(fit_handoff(samples))
    assert (curve.base_s, curve.token_s) == pytest.approx((2e-3, 2e-6))
    texts = [TextSample(characters=400 * n, tokens=100 * n) for n in range(1, 5)]
    fit = fit_chars_per_token(texts)
    assert held(fit) == pytest.approx(4.0)
    assert isinstance(fit, Fit)
    assert fit.cv_mape < 1e-12


# Not a negative cost, whatever was measured

seconds = st.floats(1e-9, 1e6) | st.floats(1e-3, 1.0)
some_prefills = st.lists(
    st.builds(PrefillSample, tokens=st.integers(1, 10**6), seconds=seconds), max_size=8
)
some_decodes = st.lists(
    st.builds(
        DecodeSample,
        requests=st.integers(1, 512),
        kv_tokens=st.integers(0, 10**6),
        interval_s=seconds,
    ),
    max_size=8,
)


@given(some_prefills, st.randoms(use_true_random=False))
@settings(deadline=None)
def test_any_prefills(samples: list[PrefillSample], chance: random.Random) -> None:
    fit = fit_prefill(samples, limits=ANY)
    shuffled = samples.copy()
    chance.shuffle(shuffled)
    assert fit_prefill(shuffled, limits=ANY) == fit, "the order plays no part"
    if isinstance(fit, Refused):
        assert fit.reason in {Refusal.TOO_FEW_POINTS, Refusal.DEPENDENT}
        return
    curve = fit.value
    assert min(curve.a, curve.b, curve.c) >= 0.0
    assert fit.fit_mape <= fit.worst.error
    assert_least_squares(
        [((n := s.tokens) * n, n, 1.0) for s in samples],
        [s.seconds for s in samples],
        (curve.a, curve.b, curve.c),
    )


@given(some_decodes)
@settings(deadline=None)
def test_any_decodes(samples: list[DecodeSample]) -> None:
    fit = fit_decode(samples, limits=ANY)
    if isinstance(fit, Refused):
        assert fit.text.startswith("decode: ")
        return
    curve = fit.value
    assert min(curve.t0, curve.tr) >= 0.0
    assert curve.tk > 0.0


def squares(rows: list[Any], measured: list[float], coefficients: Any) -> float:
    predicted = np.array(rows, dtype=float) @ np.array(coefficients)
    return float(np.sum((predicted / np.array(measured) - 1.0) ** 2))


def assert_least_squares(rows: list[Any], measured: list[float], found: Any) -> None:
    """No step that keeps the coefficients from going negative lowers the sum."""
    least = squares(rows, measured, found)
    assert least <= len(rows) * (1 + 1e-9)
    for index in range(len(found)):
        for factor in (0.0, 0.9, 0.999, 1.001, 1.1):
            other = list(found)
            other[index] *= factor
            assert squares(rows, measured, other) >= least * (1 - 1e-6) - 1e-12


# Errors are what they are said to be


def naive_left_out(samples: list[PrefillSample]) -> float:
    """Each point by a fit to the others, with another solver for that fit."""
    errors = []
    for sample in samples:
        rest = [each for each in samples if each.tokens != sample.tokens]
        curve = naive_fit(rest)
        errors.append(abs(curve.seconds(sample.tokens) - sample.seconds) / sample.seconds)
    return sum(errors) / len(errors)


def naive_fit(samples: list[PrefillSample]) -> PrefillCurve:
    n = np.array([each.tokens for each in samples], dtype=float)
    y = np.array([each.seconds for each in samples])
    design = np.stack([n * n / y, n / y, 1.0 / y], axis=1)
    best: tuple[float, list[float]] = (float("inf"), [])
    for size in (1, 2, 3):
        for chosen in combinations(range(3), size):
            part = design[:, chosen]
            scale = np.abs(part).max(axis=0)
            solved = np.linalg.pinv(part / scale, rcond=1e-14) @ np.ones(len(y)) / scale
            error = float(np.sum((part @ solved - 1.0) ** 2))
            if (solved >= 0).all() and error < best[0]:
                values = [0.0, 0.0, 0.0]
                for index, value in zip(chosen, solved, strict=True):
                    values[index] = float(value)
                best = (error, values)
    a, b, c = best[1]
    return PrefillCurve(a=a, b=b, c=c)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("repeats", [1, 3])
def test_left_out_errors_are_those_of_fits_without_the_point(seed: int, repeats: int) -> None:
    chance = random.Random(seed)
    samples = prefills(MODELS[0], lambda: chance.uniform(0.8, 1.2), repeats)
    fit = fit_prefill(samples, limits=ANY)
    assert isinstance(fit, Fit)
    assert fit.cv_mape == pytest.approx(naive_left_out(samples), rel=1e-6)
    curve = naive_fit(samples)
    errors = [abs(curve.seconds(s.tokens) - s.seconds) / s.seconds for s in samples]
    assert fit.fit_mape == pytest.approx(sum(errors) / len(errors), rel=1e-6)
    assert fit.worst.error == pytest.approx(max(errors), rel=1e-6)
    assert fit.worst.place == f"{samples[errors.index(max(errors))].tokens} tokens"


@pytest.mark.parametrize("seed", range(20))
def test_points_left_out_are_not_better_predicted_than_points_of_the_fit(seed: int) -> None:
    chance = random.Random(seed)
    fit = fit_decode(decodes(MODELS[1], lambda: chance.uniform(0.9, 1.1)))
    assert isinstance(fit, Fit)
    # The squares obey this exactly, the mean of absolute values nearly.
    assert fit.cv_mape > 0.98 * fit.fit_mape


# Refusals


def test_too_few_points() -> None:
    model = MODELS[0]
    for known in ([], prefills(model)[:3], prefills(model)[:3] * 5):
        text = refused(fit_prefill(known), Refusal.TOO_FEW_POINTS)
        assert text.endswith("measure prompts of four lengths or more, the longest many times "
                             "the shortest")  # fmt: skip
    assert held(fit_prefill(prefills(model)[:4]))
    refused(fit_decode(decodes(model)[:3]), Refusal.TOO_FEW_POINTS)
    refused(fit_handoff([HandoffSample(tokens=9, seconds=1.0)] * 9), Refusal.TOO_FEW_POINTS)
    refused(fit_chars_per_token([]), Refusal.TOO_FEW_POINTS)


def test_points_that_tell_nothing_apart() -> None:
    model = MODELS[0]
    same = [
        DecodeSample(requests=r, kv_tokens=100 * r, interval_s=model.step_seconds(r, 100 * r))
        for r in range(1, 9)
    ]
    text = refused(fit_decode(same), Refusal.DEPENDENT)
    assert "for each of them several lengths of context" in text
    one_apart = [*same, DecodeSample(requests=4, kv_tokens=9000, interval_s=0.1)]
    text = refused(fit_decode(one_apart), Refusal.DEPENDENT)
    assert "only the point at 4 requests with 9000 KV tokens" in text
    none = [DecodeSample(requests=r, kv_tokens=0, interval_s=0.1) for r in range(1, 9)]
    refused(fit_decode(none), Refusal.DEPENDENT)
    near = [PrefillSample(tokens=10**6 + n, seconds=1.0) for n in range(5)]
    refused(fit_prefill(near), Refusal.DEPENDENT)


def test_tokens_that_cost_nothing() -> None:
    free = [DecodeSample(requests=r, kv_tokens=k, interval_s=0.01 + 1e-3 * r) for r, k in BATCHES]
    assert "longer contexts" in refused(fit_decode(free), Refusal.NO_KV_COST)
    falling = [
        DecodeSample(requests=r, kv_tokens=k, interval_s=0.01 + 1e-3 * r - 1e-9 * k)
        for r, k in BATCHES
    ]
    refused(fit_decode(falling), Refusal.NO_KV_COST)


def test_errors_beyond_the_limits() -> None:
    model = MODELS[0]
    wild = prefills(model, iter([0.5, 1.0, 2.0] * 3).__next__)
    text = refused(fit_prefill(wild), Refusal.MEAN_ERROR)
    assert "on average, and 20% is the limit" in text
    one_off = [*prefills(model, repeats=9), PrefillSample(tokens=64, seconds=0.05)]
    text = refused(fit_prefill(one_off), Refusal.WORST_ERROR)
    assert "at 64 tokens, and 50% is the limit" in text
    assert held(fit_prefill(one_off, limits=FitLimits(worst=0.9)))
    tight = FitLimits(mean=0.001)
    assert refused(fit_prefill(one_off, limits=tight), Refusal.MEAN_ERROR)


@pytest.mark.parametrize("bad", [0.0, -1.0, 1e-10, 1e7, float("nan"), True, "1"])
def test_samples_that_no_clock_measured(bad: Any) -> None:
    with pytest.raises(ConfigError, match=r"PrefillSample\.seconds must be"):
        PrefillSample(tokens=1, seconds=bad)
    with pytest.raises(ConfigError, match=r"DecodeSample\.interval_s must be"):
        DecodeSample(requests=1, kv_tokens=0, interval_s=bad)


@given(
    st.lists(
        st.builds(PrefillSample, tokens=st.integers(1, 2**53 - 1), seconds=st.floats(1e-9, 1e6)),
        min_size=4,
        max_size=6,
    )
)
@settings(deadline=None)
def test_no_samples_overflow(samples: list[PrefillSample]) -> None:
    fit = fit_prefill(samples, limits=ANY)
    assert isinstance(fit, Refused) or fit.fit_mape < float("inf")


# All curves of an engine


def engine_samples(**changes: Any) -> EngineSamples:
    model = MODELS[0]
    values: dict[str, Any] = {
        "engine": Measured(
            iid="d0", version="0.32.0", process_start_s=1.7e9, kv_capacity_tokens=430_000
        ),
        "prefill": tuple(prefills(model)),
        "decode": tuple(decodes(model)),
    }
    return EngineSamples(**(values | changes))


def test_a_profile_is_fitted_again() -> None:
    found = refit(engine_samples())
    assert isinstance(found, Profile)
    assert found.prefill_seconds(999) == pytest.approx(MODELS[0].prefill_seconds(999))
    assert found.decode_interval(7, 999) == pytest.approx(MODELS[0].step_seconds(7, 999))
    assert (found.handoff, found.kv_capacity_tokens) == (None, 430_000)
    handoffs = tuple(HandoffSample(tokens=n, seconds=1e-3 + 1e-6 * n) for n in LENGTHS)
    with_handoff = refit(engine_samples(handoff=handoffs))
    assert isinstance(with_handoff, Profile)
    assert isinstance(with_handoff.handoff, HandoffCurve)


@pytest.mark.parametrize("curve", ["prefill", "decode"])
def test_one_curve_that_fails_is_enough(curve: str) -> None:
    found = refit_row(engine_samples(**{curve: ()}))
    assert isinstance(found, Refused)
    assert found.text.startswith(f"{curve}: ")


def test_handoffs_are_optional_and_so_is_their_fit() -> None:
    found = refit(engine_samples(handoff=(HandoffSample(tokens=1, seconds=0.1),)))
    assert isinstance(found, Profile)
    assert found.handoff is None


@given(st.lists(st.tuples(st.integers(1, 5), st.floats(1e-6, 1e3)), max_size=30))
def test_medians_are_one_sample_for_each_length(pairs: list[tuple[int, float]]) -> None:
    found = medians([PrefillSample(tokens=n, seconds=s) for n, s in pairs])
    assert [each.tokens for each in found] == sorted({n for n, _ in pairs})
    for each in found:
        assert each.seconds == median(s for n, s in pairs if n == each.tokens)


def test_a_repeat_that_was_disturbed_makes_no_difference() -> None:
    calm = [each for each in prefills(MODELS[0]) for _ in range(3)]
    disturbed = [
        attrs.evolve(each, seconds=each.seconds * (50.0 if n % 3 == 0 else 1.0))
        for n, each in enumerate(calm)
    ]
    assert refit(engine_samples(prefill=tuple(disturbed))) == refit(engine_samples())
