"""What a pass decided, by which rule, from which numbers, and what stood in the way."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from narwhal.model import Role
    from narwhal.roles.evidence import EvidenceState
    from narwhal.roles.loads import Projection
    from narwhal.roles.snapshot import Split


class Verdict(StrEnum):
    """What becomes of the roles."""

    HELD = "held"
    """They stay."""
    ADVISED = "advised"
    """An engine would move, but `controller.advisory` is set."""
    MOVED = "moved"
    """An engine moves."""


class Rule(StrEnum):
    """What a proposal rests on."""

    NONE = "none"
    """Nothing is proposed."""
    DECODE_FLOOR = "decode_floor"
    """Fewer live decode engines than `controller.min_decode` (section 7.2)."""
    PREFILL_FLOOR = "prefill_floor"
    """Fewer live prefill engines than `controller.min_prefill` (section 7.2)."""
    TOWARD_DECODE = "toward_decode"
    """Decode is the worse off, and prefill can spare an engine (section 7.5)."""
    CONSOLIDATION = "consolidation"
    """Prefill is the worse off, and decode can spare an engine (section 7.5)."""
    MIXED_PRESSURE = "mixed_pressure"
    """Prefill is over its target; decode gives an engine although it is loaded (section 7.5)."""


class Gate(StrEnum):
    """Why roles stay as they are."""

    NONE = "none"
    """Nothing stood in the way."""
    NOT_DUE = "not_due"
    """It is not time for an evaluation (`reactive.step_s`)."""
    NO_PROFILES = "no_profiles"
    """Nothing can be priced."""
    FEW_ARRIVALS = "few_arrivals"
    """Fewer than `reactive.min_arrivals` in the window."""
    WEAK_DEMAND = "weak_demand"
    """Less than `reactive.demand_floor` engines' worth of work."""
    CONTENT = "content"
    """The worst ratio is below `reactive.content_below`."""
    MARGIN = "margin"
    """No adjacent split is better by `reactive.movement_margin`."""
    CHANCE = "chance"
    """Too few arrivals to tell the better split from chance (`reactive.noise_margin`)."""
    FLOOR = "floor"
    """The pool would fall below its floor."""
    SOURCE = "source"
    """The pool that gives would be loaded too much (`thresholds.shrink`, `source_guard`)."""
    EVIDENCE = "evidence"
    """The evidence window is open (section 7.6)."""
    RISING = "rising"
    """Decode demand rises (section 7.6)."""
    COOLDOWN = "cooldown"
    """The last move from prefill to decode is too recent (`thresholds.cooldown_s`)."""
    UNAVAILABLE = "unavailable"
    """Every engine of the pool is pinned."""
    DWELL = "dwell"
    """Every engine of the pool changed its role too recently (`thresholds.dwell_s`)."""
    RESIDENTS = "residents"
    """Every engine of the pool decodes more than `thresholds.flip_resident_guard` streams."""
    DOMAIN = "domain"
    """The move leads beyond what was measured (section 7.3)."""
    KV_CAPACITY = "kv_capacity"
    """Resident work would not fit into the memory that is left (section 7.3)."""
    CONFIRMING = "confirming"
    """The proposal has not been made often enough in a row."""


@attrs.frozen(kw_only=True)
class Decision:
    """One pass, with everything that it rests on."""

    at: float
    verdict: Verdict = Verdict.HELD
    rule: Rule = Rule.NONE
    gate: Gate = Gate.NONE
    iid: str | None = None
    """The engine that moves, or would."""
    to: Role | None = None
    split: Split
    """The live engines before."""
    proposed: Split | None = None
    confirmations: int = 0
    """How often this was proposed in a row."""
    needed: int = 0
    prefill_load: float | None = None
    decode_load: float | None = None
    now: Projection | None = None
    """The current split's ratios."""
    then: Projection | None = None
    """The proposed split's ratios; the better adjacent one's if nothing is proposed."""
    evidence: EvidenceState | None = None

    @property
    def change(self) -> Flip | None:
        """The change of roles that is made, or only advised; None if they are held."""
        if self.verdict is Verdict.HELD:
            return None
        assert self.iid is not None  # noqa: S101 - what is not held has an engine
        assert self.to is not None  # noqa: S101 - as above
        assert self.proposed is not None  # noqa: S101 - as above
        return Flip(at=self.at, iid=self.iid, to=self.to, rule=self.rule, split=self.proposed)

    @property
    def made(self) -> Flip | None:
        """The same, if it is made."""
        return self.change if self.verdict is Verdict.MOVED else None

    @property
    def reason(self) -> str:
        """In words, for people."""
        what = f"{self.split}: {self.rule}"
        if self.now is not None and self.then is not None:
            what += (
                f", ratios {self.now.prefill:.2f} and {self.now.decode:.2f} would be "
                f"{self.then.prefill:.2f} and {self.then.decode:.2f} with {self.then.split}"
            )
        if self.gate is Gate.CONFIRMING:
            return f"{what}; confirmed {self.confirmations} of {self.needed} times"
        if self.gate is not Gate.NONE:
            return f"{what}; held by {self.gate}"
        return what


@attrs.frozen(kw_only=True)
class Flip:
    """An engine changed its role."""

    at: float
    iid: str
    to: Role
    rule: Rule
    split: Split
    """Live engines after it."""
