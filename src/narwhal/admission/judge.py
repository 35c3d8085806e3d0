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

    @property
    def budget_s(self) -> float:
        """The longest projected TTFT that is let in."""
        return self.ttft_s * (1.0 + self.margin)


@attrs.frozen(kw_only=True)
class Admitted:
    """Let in: the least price is within the budget."""

    projected_s: float
    """Projected TTFT, from arrival."""
    iid: str
    """Whose prefill is the cheapest."""
    runner_up: str | None = None
    whole: bool = False
    """Both phases on that engine."""


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

    `prefills` and `decodes` are the ways it could go now, from live engines only; `waited_s` is
    the time since it arrived. Without `decodes` its prefill's engine decodes as well and is not
    checked for it. The order of the paths makes no difference: equal ones are told apart by name.
    """
    if not prefills:
        return Refused(cause=Cause.NO_ENGINE, projected_s=None, retry_after=SHORTEST_RETRY_AFTER_S)
    best, *others = sorted(prefills, key=lambda path: (path.price_s, path.iid))
    projected = waited_s + best.price_s
    could = [path for path in prefills if path.alone_s <= targets.budget_s]
    if not could:
        return Refused(cause=Cause.PROMPT, projected_s=projected, retry_after=None)
    if decodes and not any(path.could_meet(targets.tpot_s) for path in decodes):
        return Refused(cause=Cause.LENGTH, projected_s=projected, retry_after=None)
    if projected > targets.budget_s:
        # When it comes back it has waited for nothing yet, and the work ahead is less by the wait.
        wait = whole_seconds(min(path.price_s for path in could) - targets.budget_s)
        return Refused(cause=Cause.BACKLOG, projected_s=projected, retry_after=wait)
    if decodes and not any(path.meets(targets.tpot_s) for path in decodes):
        return Refused(
            cause=Cause.DECODE, projected_s=projected, retry_after=SHORTEST_RETRY_AFTER_S
        )
    return Admitted(
        projected_s=projected, iid=best.iid, runner_up=others[0].iid if others else None
    )


def whole_seconds(wait_s: float) -> int:
    """`wait_s` as a `Retry-After`: rounded up, and within reason."""
    return max(SHORTEST_RETRY_AFTER_S, min(LONGEST_RETRY_AFTER_S, math.ceil(wait_s)))
