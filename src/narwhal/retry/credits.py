"""The retry budget: what keeps retries from multiplying the load of a fleet in trouble."""

from fractions import Fraction
from math import lcm


class Credits:
    """A pool of retry credits between zero and its initial size.

    A retry takes one whole credit when it is scheduled and gets it back if it never dispatches;
    each original request that succeeds adds `replenish`. In the long run retries therefore stay
    below `replenish` per success, whatever the failures.

    Nothing is lost to rounding: ten successes at 0.1 are a whole credit.
    """

    __slots__ = ("_credit", "_full", "_left", "_success", "budget", "replenish")

    def __init__(self, budget: float, replenish: float) -> None:
        self.budget = float(budget)
        self.replenish = replenish
        # Counted in parts, of which a credit, a success and the budget are whole numbers.
        full, success = Fraction(str(budget)), Fraction(str(replenish))
        self._credit = lcm(full.denominator, success.denominator)
        self._success = int(success * self._credit)
        self._full = self._left = int(full * self._credit)

    @property
    def available(self) -> float:
        """Credits left."""
        return self._left / self._credit

    def take_nowait(self) -> bool:
        """Spend one credit; False, and nothing spent, if less than one is left."""
        if self._left < self._credit:
            return False
        self._left -= self._credit
        return True

    def give_back(self) -> None:
        """Return the credit of a retry that never dispatched."""
        self._left = min(self._full, self._left + self._credit)

    def succeeded(self) -> None:
        """An original request completed."""
        self._left = min(self._full, self._left + self._success)
