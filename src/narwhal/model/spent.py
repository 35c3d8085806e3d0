"""The time ledger of one request."""

from __future__ import annotations

from narwhal.model.enums import Phase


class Stopwatch:
    """Where one request's time went, in seconds by phase.

    A request is in one phase at a time, so the phases sum to its lifetime by construction:
    nothing is counted twice and no gap stays uncounted, however often it goes back and forth.
    """

    __slots__ = ("_phase", "_since", "_spent", "arrival")

    def __init__(self, arrival: float) -> None:
        self.arrival = arrival
        self._phase = Phase.INGRESS
        self._since = arrival
        self._spent: dict[Phase, float] = {}

    @property
    def phase(self) -> Phase:
        """The phase the request is in."""
        return self._phase

    def enter(self, phase: Phase, now: float) -> None:
        """Close the present phase at `now` and open `phase`; the same one may be re-entered."""
        self._spent[self._phase] = self._spent.get(self._phase, 0.0) + (now - self._since)
        self._phase = phase
        self._since = now

    def spent(self, now: float) -> dict[Phase, float]:
        """Seconds by phase up to `now`; only phases that were entered appear."""
        spent = dict(self._spent)
        spent[self._phase] = spent.get(self._phase, 0.0) + (now - self._since)
        return spent
