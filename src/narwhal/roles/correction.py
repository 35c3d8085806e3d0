"""By what factor live decode intervals differ from profiled ones, within bounds (section 7.7)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from narwhal.config.control import Reactive


class Corrections:
    """One factor per engine, 1 until something was observed; always within the bounds.

    Each window of `decode_correction_min_samples` gaps or more moves the factor by
    `decode_correction_alpha` of the way to what the window shows. Windows with fewer add up.
    """

    def __init__(self, iids: Iterable[str], settings: Reactive) -> None:
        self._settings = settings
        self._factors = dict.fromkeys(iids, self._bounded(1.0))
        self._open: dict[str, tuple[float, float]] = {}

    def _bounded(self, factor: float) -> float:
        settings = self._settings
        return max(settings.decode_correction_min, min(settings.decode_correction_max, factor))

    def of(self, iid: str) -> float:
        """The factor of one engine."""
        return self._factors[iid]

    def observe(self, iid: str, taken: float, gaps: float) -> None:
        """`gaps` gaps between tokens took `taken` times what one was profiled to take."""
        before = self._open.pop(iid, (0.0, 0.0))
        taken, gaps = taken + before[0], gaps + before[1]
        if gaps < self._settings.decode_correction_min_samples:
            self._open[iid] = (taken, gaps)
            return
        factor = self._factors[iid]
        seen = self._bounded(taken / gaps)
        step = self._settings.decode_correction_alpha * (seen - factor)
        self._factors[iid] = self._bounded(factor + step)

    def forget(self, iid: str) -> None:
        """Another process: nothing is known of it."""
        self._open.pop(iid, None)
        self._factors[iid] = self._bounded(1.0)
