"""What must hold of every world, whatever went wrong in it: the registry, and how it is asked."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from narwhal.simulate.evidence import Violation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from narwhal.simulate.evidence import Evidence

    Check = Callable[[Evidence], Iterator[Violation]]
    Finding = tuple[str, tuple[str, ...], float]


@attrs.frozen
class Invariant:
    """A statement about worlds, and the function that looks for exceptions."""

    name: str
    says: str
    check: Check


INVARIANTS: list[Invariant] = []
"""All of them, in the order in which they were written."""


def invariant(name: str, says: str) -> Callable[[Callable[[Evidence], Iterator[Finding]]], Check]:
    """Register a check of what `says` states, under a name.

    It yields what breaks the invariant: a text, names that stand in the trace, a time.
    """

    def register(look: Callable[[Evidence], Iterator[Finding]]) -> Check:
        def check(evidence: Evidence) -> Iterator[Violation]:
            for text, about, at in look(evidence):
                yield Violation(name, text, about, at)

        INVARIANTS.append(Invariant(name, says, check))
        return check

    return register


def violations(evidence: Evidence) -> list[Violation]:
    """Everything that is wrong with a world, and nothing if all is right."""
    found = list(evidence.seen)
    for each in INVARIANTS:
        found += each.check(evidence)
    return found
