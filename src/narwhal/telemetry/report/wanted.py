"""Which rows a report is about, and what they are measured by."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from narwhal.model import TtftScope

if TYPE_CHECKING:
    from narwhal.telemetry.report.lines import SloLine


@attrs.frozen(kw_only=True)
class Targets:
    """What answers are measured by, in seconds."""

    ttft_s: float
    tpot_s: float
    ttft_scope: TtftScope = TtftScope.PREFILL


@attrs.frozen(kw_only=True)
class Wanted:
    """Which rows count. A request counts by when it came; moments are Unix time."""

    since: float = float("-inf")
    until: float = float("inf")
    model: str | None = None
    route: str | None = None
    engine: str | None = None
    """Requests of which an attempt had a leg there, and that engine's own changes."""
    ttft_s: float | None = None
    """In place of the targets in the journal."""
    tpot_s: float | None = None
    ttft_scope: TtftScope | None = None

    def covers(self, moment: float) -> bool:
        """Whether it is within the time that is asked about."""
        return self.since <= moment < self.until

    def targets(self, slo: SloLine | None) -> Targets | None:
        """What to measure by, where the journal says `slo`; None if nobody says it."""
        ttft, tpot, scope = self.ttft_s, self.tpot_s, self.ttft_scope
        if slo is not None:
            ttft = slo.ttft_s if ttft is None else ttft
            tpot = slo.tpot_s if tpot is None else tpot
            scope = scope or slo.ttft_scope
        if ttft is None or tpot is None:
            return None
        return Targets(ttft_s=ttft, tpot_s=tpot, ttft_scope=scope or TtftScope.PREFILL)
