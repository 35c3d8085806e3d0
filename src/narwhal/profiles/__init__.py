"""How long engines take: the cost model, its fits to measurements, and the files both are kept in.

Pure: no clock, no randomness, and nothing waits. `narwhal.profiles.files` reads and writes files
when asked to; everything else works on values.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from narwhal.profiles.curves import DecodeCurve, HandoffCurve, PrefillCurve, Range
from narwhal.profiles.digest import generation_digest
from narwhal.profiles.files import (
    load_samples,
    load_store,
    samples_path,
    update_samples,
    update_store,
    write_samples,
    write_store,
)
from narwhal.profiles.limits import LimitBroken, check_limits
from narwhal.profiles.profile import Profile, SeatBound, Seats, mean_profile
from narwhal.profiles.rows import ProfileRow
from narwhal.profiles.sample_store import SampleStore, parse_samples, sample_bytes
from narwhal.profiles.samples import (
    DecodeSample,
    EngineSamples,
    HandoffSample,
    Measured,
    PrefillSample,
    TextSample,
)
from narwhal.profiles.store import ProfileStore, parse_store, store_bytes

if TYPE_CHECKING:
    from narwhal.profiles.fits import (
        Fit,
        fit_chars_per_token,
        fit_decode,
        fit_handoff,
        fit_prefill,
    )
    from narwhal.profiles.judging import FitLimits, Point, Refusal, Refused
    from narwhal.profiles.refitting import medians, refit, refit_row

# What fits needs numpy: 40 ms and 20 MB that a router, which only reads profiles, does without.
_FITTING = {
    "fits": ("Fit", "fit_chars_per_token", "fit_decode", "fit_handoff", "fit_prefill"),
    "judging": ("FitLimits", "Point", "Refusal", "Refused"),
    "refitting": ("medians", "refit", "refit_row"),
}


def __getattr__(name: str) -> object:
    """Import what fits when it is first asked for."""
    for module, names in _FITTING.items():
        if name in names:
            return getattr(import_module(f"narwhal.profiles.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "DecodeCurve",
    "DecodeSample",
    "EngineSamples",
    "Fit",
    "FitLimits",
    "HandoffCurve",
    "HandoffSample",
    "LimitBroken",
    "Measured",
    "Point",
    "PrefillCurve",
    "PrefillSample",
    "Profile",
    "ProfileRow",
    "ProfileStore",
    "Range",
    "Refusal",
    "Refused",
    "SampleStore",
    "SeatBound",
    "Seats",
    "TextSample",
    "check_limits",
    "fit_chars_per_token",
    "fit_decode",
    "fit_handoff",
    "fit_prefill",
    "generation_digest",
    "load_samples",
    "load_store",
    "mean_profile",
    "medians",
    "parse_samples",
    "parse_store",
    "refit",
    "refit_row",
    "sample_bytes",
    "samples_path",
    "store_bytes",
    "update_samples",
    "update_store",
    "write_samples",
    "write_store",
]
