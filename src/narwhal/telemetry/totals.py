"""Counts since the start, as values for the state document."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from narwhal.telemetry.catalogue import LEGS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from narwhal.admission import Cause
    from narwhal.model import Limit, Phase, Terminal, TtftScope
    from narwhal.telemetry.metrics import Metrics


@attrs.frozen(kw_only=True)
class AdmissionTotals:
    """What admission was offered since the start, and what it made of it."""

    sized: int
    """Requests whose length was known when they were offered."""
    unsized: int
    """Those that were turned away before they were read."""
    refusals: Mapping[Cause, int]
    """Requests that predictive admission refused, by cause."""
    rejections: Mapping[str, int]
    """Requests that were turned away in whatever way, by the code that they were told."""
    unserved: Mapping[Phase, int]
    """Legs placed where they are projected to miss their target."""
    ttft_scope: TtftScope
    """Which stretch of time projections are about."""
    projected: int
    """Requests whose projection could be compared with what it was about."""
    mean_ratio: float | None
    """Actual over projected TTFT, on average over those."""


@attrs.frozen(kw_only=True)
class Totals:
    """Counts since the start."""

    received: int
    terminals: Mapping[Terminal, int]
    limits_fired: Mapping[Limit, int]
    attempts: int
    retries: int
    prompt_tokens: int
    """Of prefills that were answered."""
    completion_tokens: int
    """Generated, also for answers that then failed."""
    kv_released: int
    kv_orphaned: int
    journal_dropped: int
    admission: AdmissionTotals

    @property
    def in_flight(self) -> int:
        """Requests received and not ended."""
        return self.received - sum(self.terminals.values())


def admission_totals(
    metrics: Metrics, rejections: Mapping[str, int], ttft_scope: TtftScope
) -> AdmissionTotals:
    """Return what the metrics have of admission, with `rejections` by code."""
    ratio, unsized = metrics.projection_ratio, int(metrics.unsized_offers.value)
    return AdmissionTotals(
        sized=int(metrics.offers.value) - unsized,
        unsized=unsized,
        refusals={cause: int(cell.value) for cause, cell in metrics.refusals.items()},
        rejections=dict(rejections),
        unserved={leg: int(metrics.unserved[leg].value) for leg in LEGS},
        ttft_scope=ttft_scope,
        projected=ratio.count,
        mean_ratio=ratio.total / ratio.count if ratio.count else None,
    )
