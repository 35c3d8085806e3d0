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

    def add(self, iid: str, tokens: int, until: float) -> None:
        """Record `tokens` tokens pinned on `iid` until the monotonic time `until`."""
        held = self._by_engine.setdefault(iid, deque())
        held.append((until, tokens))

    def tokens(self, iid: str, now: float) -> int:
        """Orphaned tokens that `iid` still pins at `now`."""
        held = self._by_engine.get(iid)
        if not held:
            return 0
        # Leases are equally long, but a retried prefill may answer late: look at each.
        live = deque(entry for entry in held if entry[0] > now)
        self._by_engine[iid] = live
        return sum(tokens for _, tokens in live)

    def forget(self, iid: str) -> None:
        """The engine restarted: its memory, orphans included, is gone."""
        self._by_engine.pop(iid, None)
