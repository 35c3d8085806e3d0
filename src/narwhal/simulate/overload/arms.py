"""What the router knows of its engines: the truth, something beside it, or nothing."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Mapping

    from narwhal.profiles import Profile


class Arm(StrEnum):
    """One way to run the experiment."""

    EXACT = "exact"
    """Predictive admission, with profiles that are right."""
    LOW = "low"
    """Every coefficient is too low: engines are slower than they are said to be."""
    HIGH = "high"
    """Every coefficient is too high."""
    MIXED = "mixed"
    """Each coefficient of each engine is too low or too high, as the seed has it."""
    OPEN = "open"
    """`serving.admission` is `open`, and there are no profiles."""

    @property
    def predictive(self) -> bool:
        """Whether admission is by price."""
        return self is not Arm.OPEN


def profiles_of(
    arm: Arm, exact: Mapping[str, Profile], *, off: float, rng: random.Random
) -> dict[str, Profile] | None:
    """The profiles of an arm, off by the fraction `off`; None for the one that has none."""
    if not arm.predictive:
        return None
    sign = _signs(arm, rng)
    return {iid: _changed(exact[iid], lambda: 1.0 + sign() * off) for iid in sorted(exact)}


def _signs(arm: Arm, rng: random.Random) -> Callable[[], int]:
    if arm is Arm.MIXED:
        return lambda: rng.choice((-1, 1))
    sign = {Arm.LOW: -1, Arm.HIGH: 1}.get(arm, 0)
    return lambda: sign


def _changed(profile: Profile, factor: Callable[[], float]) -> Profile:
    """The same with each coefficient times a factor of its own."""
    prefill, decode = profile.prefill, profile.decode
    return attrs.evolve(
        profile,
        prefill=attrs.evolve(
            prefill, a=prefill.a * factor(), b=prefill.b * factor(), c=prefill.c * factor()
        ),
        decode=attrs.evolve(
            decode, t0=decode.t0 * factor(), tr=decode.tr * factor(), tk=decode.tk * factor()
        ),
    )
