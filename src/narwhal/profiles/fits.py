"""From samples to curves, or to the reason why there is none.

All fits are alike: no coefficient is negative, and the relative error is the least there is, as
`narwhal.profiles.regression` says. `fit_mape` is the mean of `|predicted - measured| / measured`
over the samples; for `cv_mape` each point is predicted by a fit to all others. A point is a place
that was measured, however often. The order of the samples plays no part.

Nothing raises. A fit is refused if there are no more points than coefficients, if the points do
not tell the coefficients apart, if resident tokens seem to cost nothing, or if the errors on the
samples are beyond `limits`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

import attrs

from narwhal.profiles.curves import DecodeCurve, HandoffCurve, PrefillCurve, Range
from narwhal.profiles.judging import FitLimits, Point, Refusal, Refused, Task, solve

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from narwhal.profiles.samples import DecodeSample, HandoffSample, PrefillSample, TextSample

T = TypeVar("T")

_LIMITS = FitLimits()


@attrs.frozen(kw_only=True)
class Fit(Generic[T]):
    """A fit that holds, its errors as fractions, and its worst point."""

    value: T
    fit_mape: float
    cv_mape: float
    worst: Point


def fit_prefill(
    samples: Sequence[PrefillSample], *, limits: FitLimits = _LIMITS
) -> Fit[PrefillCurve] | Refused:
    """Fit `a n^2 + b n + c` to prefills of four lengths or more."""
    rows = [(_powers(each.tokens), each.seconds, _length(each.tokens)) for each in samples]
    advice = "measure prompts of four lengths or more, the longest many times the shortest"
    found = solve(Task(curve="prefill", rows=rows, advice=advice), limits)
    if isinstance(found, Refused):
        return found
    a, b, c = found.coefficients
    curve = PrefillCurve(
        a=a,
        b=b,
        c=c,
        tokens=_range(each.tokens for each in samples),
        fit_mape=found.fit_mape,
        cv_mape=found.cv_mape,
    )
    return Fit(value=curve, fit_mape=found.fit_mape, cv_mape=found.cv_mape, worst=found.worst)


def fit_decode(
    samples: Sequence[DecodeSample], *, limits: FitLimits = _LIMITS
) -> Fit[DecodeCurve] | Refused:
    """Fit `t0 + tr r + tk k` to four batches or more.

    Their tokens must not follow from their requests. A fit without a cost of tokens is refused:
    by it, any context would be as good as none.
    """
    rows = [
        (
            (1.0, float(each.requests), float(each.kv_tokens)),
            each.interval_s,
            f"{each.requests} requests with {each.kv_tokens} KV tokens",
        )
        for each in samples
    ]
    advice = "measure several numbers of requests, and for each of them several lengths of context"
    found = solve(Task(curve="decode", rows=rows, advice=advice), limits)
    if isinstance(found, Refused):
        return found
    t0, tr, tk = found.coefficients
    if tk == 0.0:
        text = "decode: resident KV tokens seem to cost nothing: measure longer contexts"
        return Refused(Refusal.NO_KV_COST, text)
    curve = DecodeCurve(
        t0=t0,
        tr=tr,
        tk=tk,
        requests=_range(each.requests for each in samples),
        kv_tokens=_range(each.kv_tokens for each in samples),
        fit_mape=found.fit_mape,
        cv_mape=found.cv_mape,
    )
    return Fit(value=curve, fit_mape=found.fit_mape, cv_mape=found.cv_mape, worst=found.worst)


def fit_handoff(
    samples: Sequence[HandoffSample], *, limits: FitLimits = _LIMITS
) -> Fit[HandoffCurve] | Refused:
    """Fit `base_s + token_s n` to handoffs of three lengths or more."""
    rows = [((1.0, float(each.tokens)), each.seconds, _length(each.tokens)) for each in samples]
    advice = "measure handoffs of three lengths or more"
    found = solve(Task(curve="handoff", rows=rows, advice=advice), limits)
    if isinstance(found, Refused):
        return found
    base_s, token_s = found.coefficients
    curve = HandoffCurve(base_s=base_s, token_s=token_s)
    return Fit(value=curve, fit_mape=found.fit_mape, cv_mape=found.cv_mape, worst=found.worst)


def fit_chars_per_token(
    samples: Sequence[TextSample], *, limits: FitLimits = _LIMITS
) -> Fit[float] | Refused:
    """The characters to a token, for `engine.chars_per_token`, from two prompts or more.

    The errors are those of token counts that are estimated with it. Prompts of one length and
    count are one point.
    """
    rows = [
        (
            (float(each.characters),),
            float(each.tokens),
            f"{each.characters} characters in {each.tokens} tokens",
        )
        for each in samples
    ]
    advice = "count two different prompts or more"
    found = solve(Task(curve="characters to a token", rows=rows, advice=advice), limits)
    if isinstance(found, Refused):
        return found
    # One positive column and positive counts: the coefficient is positive.
    ratio = 1.0 / found.coefficients[0]
    return Fit(value=ratio, fit_mape=found.fit_mape, cv_mape=found.cv_mape, worst=found.worst)


def _powers(tokens: int) -> tuple[float, float, float]:
    return float(tokens) ** 2, float(tokens), 1.0


def _length(tokens: int) -> str:
    return f"{tokens} tokens"


def _range(values: Iterable[int]) -> Range:
    found = list(values)
    return Range(min(found), max(found))
