"""How often an engine failed in a row, in each way, and what that many failures ask for."""

from __future__ import annotations

from collections import Counter
from enum import StrEnum
from typing import TYPE_CHECKING

from narwhal.model import FailureClass, Phase

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


class Remedy(StrEnum):
    """What a streak asks for."""

    EJECT = "eject"
    """It cannot be reached: nothing more to find out."""
    PROBE = "probe"
    """It is slow or busy: ask whether it is well."""
    HOLD = "hold"
    """It answers, but not as it should: ask whether it generates, and send nothing until then."""


REMEDIES: Mapping[FailureClass, Remedy] = {
    FailureClass.CONNECTION: Remedy.EJECT,
    FailureClass.LIVENESS: Remedy.EJECT,
    FailureClass.TIMEOUT: Remedy.PROBE,
    FailureClass.OVERLOAD: Remedy.PROBE,
    FailureClass.INFERENCE_STATUS: Remedy.HOLD,
    FailureClass.KV_HANDOFF: Remedy.HOLD,
    FailureClass.STREAM: Remedy.HOLD,
}
"""What `recovery.eject_after` failures of a class in a row ask for. Classes that are not here say
nothing of the engine: they neither lengthen a streak nor end one."""

# A connection is refused to every kind of leg alike.
_OF_THE_ENGINE = frozenset({FailureClass.CONNECTION, FailureClass.LIVENESS})


class Streaks:
    """Counts failures in a row, by engine, kind of leg and class.

    A leg that goes well ends the streaks of its kind, as an engine that cannot prefill may decode
    well, and those of connections. A 4xx and a fault of the router's own neither count nor end
    anything. A streak that is long enough asks for its remedy once, and begins anew.
    """

    def __init__(self, iids: Iterable[str], *, eject_after: int) -> None:
        self._counts: dict[str, Counter[tuple[Phase | None, FailureClass]]] = {
            iid: Counter() for iid in iids
        }
        self._eject_after = eject_after

    def failed(self, iid: str, phase: Phase, failure: FailureClass) -> Remedy | None:
        """Count a failed leg; what to do, if the streak is long enough now."""
        remedy = REMEDIES.get(failure)
        if remedy is None:
            return None
        key = (None if failure in _OF_THE_ENGINE else phase, failure)
        counts = self._counts[iid]
        counts[key] += 1
        if counts[key] < self._eject_after:
            return None
        del counts[key]
        return remedy

    def succeeded(self, iid: str, phase: Phase) -> None:
        """A leg went well."""
        counts = self._counts[iid]
        if not counts:
            return
        for key in [key for key in counts if key[0] in (None, phase)]:
            del counts[key]

    def reset(self, iid: str) -> None:
        """Another process, or one that was seen to generate: nothing is held against it."""
        self._counts[iid].clear()

    def counts(self, iid: str) -> dict[FailureClass, int]:
        """The longest streak of each class that has one."""
        longest: dict[FailureClass, int] = {}
        for (_, failure), count in self._counts[iid].items():
            longest[failure] = max(count, longest.get(failure, 0))
        return longest
