"""The two checks of predictive admission, as a function of what is known at one moment."""

from __future__ import annotations

import math
from enum import StrEnum
from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from narwhal.admission.paths import DecodePath, PrefillPath

LONGEST_RETRY_AFTER_S = 3600
# An engine with no room says nothing of when there will be some; a client that comes back in a
# second finds out.
SHORTEST_RETRY_AFTER_S = 1
ROUNDING_S = 1e-6
"""Far more than rounding of clocks and sums, far less than anybody can tell."""


class Cause(StrEnum):
    """Why a request is refused."""

    BACKLOG = "backlog"
    """The work ahead of it: projected TTFT over the budget."""
    PROMPT = "prompt"
    """The prompt by itself: over the budget on an idle engine."""
    DECODE = "decode"
    """No decode engine would keep to the TPOT target with it, or has room for its KV cache."""
    LENGTH = "length"
    """No decode engine would if it were idle."""
    NO_ENGINE = "no_engine"
    """There is no engine to go to."""


@attrs.frozen(kw_only=True)
class Targets:
    """What clients are promised. Seconds, and a fraction."""

    ttft_s: float
    tpot_s: float
    margin: float = 0.0
    """`serving.admission_margin`: a share of the TTFT target on top of it."""

    budget_s: float = attrs.field(init=False)
    """The longest projected TTFT that is let in."""

    @budget_s.default
    def _budget_s(self) -> float:
        return self.ttft_s * (1.0 + self.margin)

    def in_time(self, projected_s: float) -> bool:
        """Whether that TTFT is within the budget.

        The same seconds added in another order differ by rounding, which is no reason to refuse
        who came back when told to.
        """
        return projected_s <= self.budget_s + ROUNDING_S

    def met_by(self, path: PrefillPath, waited_s: float) -> bool:
        """Whether a request that came `waited_s` ago is projected to be in time on that path."""
        in_time = self.in_time(waited_s + path.price_s)
        return path.measured and in_time and path.decodes(self.tpot_s)


@attrs.frozen(kw_only=True)
class Admitted:
    """Let in: the least price is within the budget."""

    projected_s: float
    """Projected TTFT, from arrival, on the cheapest engine that will do."""
    whole: bool = False
    """Both phases on one engine."""


@attrs.frozen(kw_only=True)
class Refused:
    """Not let in, and why."""

    cause: Cause
    projected_s: float | None
    """Projected TTFT, from arrival; None if no path has one."""
    retry_after: int | None
    """Whole seconds after which it may be let in, at least 1; None: waiting does not help."""


Verdict = Admitted | Refused


def judge(
    prefills: Sequence[PrefillPath],
    decodes: Sequence[DecodePath],
    *,
    waited_s: float,
    targets: Targets,
) -> Verdict:
    """Let a request in or refuse it, by the least price of its prefill and the best decode.

    `prefills` and `decodes` are the ways it could go now, on live engines only; `waited_s` is
    the time since it arrived. Without `decodes`, a prefill's engine is to decode as well, and its
    path says how. The order of the paths makes no difference: equal ones are told apart by name.
    """
    priced = [path for path in prefills if path.measured]
    least = min((path.price_s for path in priced), default=None)
    projected = None if least is None else waited_s + least
    if (never := _never(prefills, decodes, targets)) is not None:
        return Refused(cause=never, projected_s=projected, retry_after=None)
    could = _could(priced, targets)
    if not could:
        return _refused_for_now(Cause.NO_ENGINE, projected)
    in_time = [path for path in priced if targets.in_time(waited_s + path.price_s)]
    if not in_time:
        # When it comes back it has waited for nothing yet, and the work ahead is less by the wait.
        wait = min(path.price_s for path in could) - targets.budget_s
        return _refused_for_now(Cause.BACKLOG, projected, wait)
    serving = [path for path in in_time if targets.met_by(path, waited_s)]
    if not serving or (decodes and not any(path.meets(targets.tpot_s) for path in decodes)):
        return _refused_for_now(Cause.DECODE, projected)
    best = min(serving, key=lambda path: (path.price_s, path.iid))
    return Admitted(projected_s=waited_s + best.price_s)


def _never(
    prefills: Sequence[PrefillPath], decodes: Sequence[DecodePath], targets: Targets
) -> Cause | None:
    """What would keep the request out of an idle fleet, if anything would."""
    if prefills and not any(targets.in_time(path.alone_s) for path in prefills):
        return Cause.PROMPT
    if prefills and not _could(prefills, targets):
        return Cause.LENGTH
    if decodes and not any(path.could_meet(targets.tpot_s) for path in decodes):
        return Cause.LENGTH
    return None


def _could(prefills: Sequence[PrefillPath], targets: Targets) -> list[PrefillPath]:
    """The paths that would do if their engines were idle."""
    return [
        path
        for path in prefills
        if targets.in_time(path.alone_s) and path.could_decode(targets.tpot_s)
    ]


def _refused_for_now(cause: Cause, projected_s: float | None, wait_s: float = 0.0) -> Refused:
    return Refused(cause=cause, projected_s=projected_s, retry_after=whole_seconds(wait_s))


def whole_seconds(wait_s: float) -> int:
    """`wait_s` as a `Retry-After`: rounded up, and within reason."""
    return max(SHORTEST_RETRY_AFTER_S, min(LONGEST_RETRY_AFTER_S, math.ceil(wait_s)))
