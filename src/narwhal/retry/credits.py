"""The retry budget: what keeps retries from multiplying the load of a fleet in trouble."""


class Credits:
    """A pool of retry credits between zero and its initial size.

    A retry takes one whole credit when it is scheduled and gets it back if it never dispatches;
    each original request that succeeds adds `replenish`. In the long run retries therefore stay
    below `replenish` per success, whatever the failures.
    """

    __slots__ = ("available", "budget", "replenish")

    def __init__(self, budget: float, replenish: float) -> None:
        self.budget = float(budget)
        self.replenish = replenish
        self.available = self.budget

    def take_nowait(self) -> bool:
        """Spend one credit; False, and nothing spent, if less than one is left."""
        if self.available < 1.0:
            return False
        self.available -= 1.0
        return True

    def give_back(self) -> None:
        """Return the credit of a retry that never dispatched."""
        self.available = min(self.budget, self.available + 1.0)

    def succeeded(self) -> None:
        """An original request completed."""
        self.available = min(self.budget, self.available + self.replenish)
