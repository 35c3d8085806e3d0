"""KV cache that a producer still pins although nobody will pull it."""

from __future__ import annotations

from collections import deque


class Orphans:
    """Tokens of abandoned handoffs by engine, until their leases end.

    An orphan occupies its producer exactly as resident work does, so it has to be priced until
    `engine.kv_lease_s` after the prefill's answer: the engine frees it then, and not before.
    """

    def __init__(self) -> None:
        self._by_engine: dict[str, deque[tuple[float, int]]] = {}

    def add(self, iid: str, tokens: int, *, until: float, now: float) -> None:
        """Record `tokens` tokens pinned on `iid` until the monotonic time `until`."""
        self._live(iid, now).append((until, tokens))

    def tokens(self, iid: str, now: float) -> int:
        """Orphaned tokens that `iid` still pins at `now`."""
        if not self._by_engine.get(iid):  # as mostly: it is asked for each request and engine
            return 0
        return sum(tokens for _, tokens in self._live(iid, now))

    def last_ends(self, iid: str, now: float) -> float:
        """When the last of them is freed, by the monotonic clock; `now` if there is none."""
        return max((until for until, _ in self._live(iid, now)), default=now)

    def _live(self, iid: str, now: float) -> deque[tuple[float, int]]:
        """What is left on `iid` at `now`; the rest is forgotten."""
        held = self._by_engine.setdefault(iid, deque())
        # Leases are equally long, but a retried prefill may answer late: look at each.
        if any(until <= now for until, _ in held):
            held = self._by_engine[iid] = deque(entry for entry in held if entry[0] > now)
        return held

    def forget(self, iid: str) -> None:
        """The engine restarted: its memory, orphans included, is gone."""
        self._by_engine.pop(iid, None)
