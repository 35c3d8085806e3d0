"""A profile from what was measured on one engine."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, TypeVar

import attrs

from narwhal.profiles.fits import fit_decode, fit_handoff, fit_prefill
from narwhal.profiles.judging import FitLimits, Refused
from narwhal.profiles.profile import Profile
from narwhal.profiles.rows import ProfileRow

if TYPE_CHECKING:
    from collections.abc import Iterable

    from narwhal.profiles.samples import EngineSamples, HandoffSample, PrefillSample

_LIMITS = FitLimits()
_Timed = TypeVar("_Timed", "PrefillSample", "HandoffSample")


def medians(samples: Iterable[_Timed]) -> tuple[_Timed, ...]:
    """One sample for each length, with the median of its times: what curves are fitted to.

    A repeat that something came in the way of makes no difference to it, however late it was.
    """
    by_length: dict[int, list[_Timed]] = {}
    for each in samples:
        by_length.setdefault(each.tokens, []).append(each)
    return tuple(
        attrs.evolve(repeats[0], seconds=median(each.seconds for each in repeats))
        for _, repeats in sorted(by_length.items())
    )


def refit(samples: EngineSamples, *, limits: FitLimits = _LIMITS) -> Profile | Refused:
    """Fit all curves of an engine. The same samples give the same profile.

    The first of prefill and decode that cannot be fitted is the answer, if there is one. Handoffs
    are optional: without a fit the profile has none.
    """
    prefill = fit_prefill(medians(samples.prefill), limits=limits)
    if isinstance(prefill, Refused):
        return prefill
    decode = fit_decode(samples.decode, limits=limits)
    if isinstance(decode, Refused):
        return decode
    handoff = fit_handoff(medians(samples.handoff), limits=limits)
    return Profile(
        prefill=prefill.value,
        decode=decode.value,
        handoff=None if isinstance(handoff, Refused) else handoff.value,
        kv_capacity_tokens=samples.engine.kv_capacity_tokens,
    )


def refit_row(samples: EngineSamples, *, limits: FitLimits = _LIMITS) -> ProfileRow | Refused:
    """The same as a row for a store, bound to what the samples are bound to."""
    profile = refit(samples, limits=limits)
    if isinstance(profile, Refused):
        return profile
    engine = samples.engine
    return ProfileRow(iid=engine.iid, profile=profile, generation_digest=engine.generation_digest)
