"""What was found so far, and what follows for the gates to come."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from narwhal.preflight.gates import NEEDS, Finding, Gate, Grade

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_ORDER = {gate: place for place, gate in enumerate(Gate)}


class Ledger:
    """Takes findings in any order and gives them out in that of gates, each gate's as they came."""

    def __init__(self, on_finding: Callable[[Finding], None] = lambda _finding: None) -> None:
        self._on_finding = on_finding
        self._found: list[Finding] = []
        self._failed: set[tuple[Gate, str]] = set()

    def add(self, findings: Iterable[Finding]) -> None:
        """Take findings down, and pass each on."""
        for finding in findings:
            self._found.append(finding)
            if finding.grade is Grade.FAIL:
                self._failed.add((finding.gate, finding.subject))
            self._on_finding(finding)

    def obstacle(self, gate: Gate, iid: str) -> Gate | None:
        """The first gate before `gate` that the engine did not get through, if it matters here."""
        for needed in NEEDS.get(gate, ()):
            if (found := self.obstacle(needed, iid)) is not None:
                return found
            if (needed, iid) in self._failed:
                return needed
        return None

    @property
    def findings(self) -> tuple[Finding, ...]:
        """All of them, in the order of gates."""
        return tuple(sorted(self._found, key=lambda finding: _ORDER[finding.gate]))

    def counts(self) -> dict[Grade, int]:
        """How many there are of each grade."""
        return count(self._found)


def count(findings: Iterable[Finding]) -> dict[Grade, int]:
    """How many findings there are of each grade."""
    counted = Counter(finding.grade for finding in findings)
    return {grade: counted[grade] for grade in Grade}
