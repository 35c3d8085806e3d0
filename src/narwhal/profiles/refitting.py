"""A profile from what was measured on one engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from narwhal.profiles.fits import fit_decode, fit_handoff, fit_prefill
from narwhal.profiles.judging import FitLimits, Refused
from narwhal.profiles.profile import Profile
from narwhal.profiles.rows import ProfileRow

if TYPE_CHECKING:
    from narwhal.profiles.samples import EngineSamples

_LIMITS = FitLimits()


def refit(samples: EngineSamples, *, limits: FitLimits = _LIMITS) -> Profile | Refused:
    """Fit all curves of an engine. The same samples give the same profile.

    The first curve that cannot be fitted is the answer, if there is one. Handoffs are left out
    if none was measured.
    """
    prefill = fit_prefill(samples.prefill, limits=limits)
    if isinstance(prefill, Refused):
        return prefill
    decode = fit_decode(samples.decode, limits=limits)
    if isinstance(decode, Refused):
        return decode
    handoff = fit_handoff(samples.handoff, limits=limits) if samples.handoff else None
    if isinstance(handoff, Refused):
        return handoff
    return Profile(
        prefill=prefill.value,
        decode=decode.value,
        handoff=None if handoff is None else handoff.value,
        kv_capacity_tokens=samples.engine.kv_capacity_tokens,
    )


def refit_row(samples: EngineSamples, *, limits: FitLimits = _LIMITS) -> ProfileRow | Refused:
    """The same as a row for a store, bound to what the samples are bound to."""
    profile = refit(samples, limits=limits)
    if isinstance(profile, Refused):
        return profile
    engine = samples.engine
    return ProfileRow(iid=engine.iid, profile=profile, generation_digest=engine.generation_digest)
