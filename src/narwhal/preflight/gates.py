"""The gates of a preflight, and what is found at them. Pure."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from collections.abc import Mapping


class Gate(StrEnum):
    """What is looked at, in this order."""

    CONFIG = "config"
    """The limits of the fleet file, and how they go together."""
    REACH = "reach"
    """`/health` answers 200."""
    AUTH = "auth"
    """The engine takes the router's key."""
    IDENTITY = "identity"
    """It says its version and when its process started; all versions are the same."""
    CONTRACT = "contract"
    """It reports what `engine_contract` says."""
    PROFILE = "profile"
    """It has a profile of itself as it runs now, with small errors and a range that covers it."""
    MODEL = "model"
    """It serves the fleet's model, with the same context as the others."""
    PACE = "pace"
    """Its clock is right, `/metrics` has what is read there, and it is as fast as its profile."""
    TOKENIZE = "tokenize"
    """It counts tokens, and makes the same ones as the others."""
    PRODUCE = "produce"
    """Its prefill leg returns a complete handoff."""
    CONSUME = "consume"
    """A decoder that pulls the handoff says what one engine alone says, and KV moved."""
    RELEASE = "release"
    """A handoff that nobody wants is freed: at once by a release leg, and by the lease."""
    SLO = "slo"
    """The targets can be met on these profiles."""


NEEDS: Mapping[Gate, tuple[Gate, ...]] = {
    Gate.AUTH: (Gate.REACH,),
    Gate.IDENTITY: (Gate.REACH, Gate.AUTH),
    Gate.CONTRACT: (Gate.IDENTITY,),
    Gate.MODEL: (Gate.AUTH,),
    Gate.PACE: (Gate.MODEL,),
    Gate.TOKENIZE: (Gate.MODEL,),
    Gate.PRODUCE: (Gate.MODEL,),
    Gate.CONSUME: (Gate.MODEL,),
    Gate.RELEASE: (Gate.PRODUCE,),
}
"""Gates that an engine must have got through before another one can tell anything of it."""


class Grade(StrEnum):
    """How it went at a gate."""

    PASS = "pass"
    WARN = "warn"
    """Traffic can be taken, but somebody should know."""
    FAIL = "fail"
    SKIPPED = "skipped"
    """Not looked at; `seen` says why."""


FLEET = "fleet"
"""The subject of what is no single engine's."""


def pair_name(producer: str, decoder: str) -> str:
    """The subject of a handoff between two engines."""
    return f"{producer} -> {decoder}"


@attrs.frozen(kw_only=True)
class Finding:
    """What was found at one gate about one engine, one pair of engines, or the fleet."""

    gate: Gate
    grade: Grade
    subject: str
    """An engine, `p0 -> d0` for a handoff, or `fleet`."""
    seen: str
    expected: str = ""
    advice: str = ""
    """What to do about it."""
    # A mapping, although frozen: treat it as a constant. It is no part of the hash.
    figures: Mapping[str, float] = attrs.field(factory=dict, hash=False)
    """What was measured, by name; times in seconds."""


@attrs.frozen
class About:
    """Makes the findings of one gate about one subject."""

    gate: Gate
    subject: str

    def passed(self, seen: str, expected: str = "", **figures: float) -> Finding:
        """All is well."""
        return self._finding(Grade.PASS, seen, expected, "", figures)

    def warned(self, seen: str, expected: str, advice: str, **figures: float) -> Finding:
        """Traffic can be taken, but somebody should know."""
        return self._finding(Grade.WARN, seen, expected, advice, figures)

    def failed(self, seen: str, expected: str, advice: str, **figures: float) -> Finding:
        """Traffic would go wrong."""
        return self._finding(Grade.FAIL, seen, expected, advice, figures)

    def skipped(self, why: str, advice: str = "") -> Finding:
        """It was not looked at."""
        return self._finding(Grade.SKIPPED, why, "", advice, {})

    def _finding(
        self, grade: Grade, seen: str, expected: str, advice: str, figures: Mapping[str, float]
    ) -> Finding:
        return Finding(
            gate=self.gate,
            grade=grade,
            subject=self.subject,
            seen=seen,
            expected=expected,
            advice=advice,
            figures=figures,
        )
