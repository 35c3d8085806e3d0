"""The time ledger of one request."""

from __future__ import annotations

from narwhal.model.enums import Phase


class Stopwatch:
    """Where one request's time went, in seconds by phase.

    A request is in one phase at a time, so the phases sum to its lifetime by construction:
    nothing is counted twice and no gap stays uncounted, however often it goes back and forth.
    """

    __slots__ = ("_marks", "arrival")

    def __init__(self, arrival: float) -> None:
        self.arrival = arrival
        # As many as a request enters phases: bounded by its attempts.
        self._marks = [(Phase.INGRESS, arrival)]

    @property
    def phase(self) -> Phase:
        """The phase the request is in."""
        return self._marks[-1][0]

    @property
    def marks(self) -> tuple[tuple[Phase, float], ...]:
        """Each phase with the moment it was entered at, in order."""
        return tuple(self._marks)

    def enter(self, phase: Phase, now: float) -> None:
        """Close the present phase at `now` and open `phase`; the same one may be re-entered."""
        self._marks.append((phase, now))

    def spent(self, now: float) -> dict[Phase, float]:
        """Seconds by phase up to `now`; only phases that were entered appear."""
        spent: dict[Phase, float] = {}
        phase, since = self._marks[0]
        for entered, at in self._marks[1:]:
            spent[phase] = spent.get(phase, 0.0) + (at - since)
            phase, since = entered, at
        spent[phase] = spent.get(phase, 0.0) + (now - since)
        return spent
