"""Everything that a router counted, as a value that another router can count on from."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from narwhal.telemetry.catalogue import CATALOGUE, ENGINE
from narwhal.telemetry.codes import CODE_LABELS
from narwhal.telemetry.kinds import Kind

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from narwhal.telemetry.catalogue import Label

COUNTED = {
    metric.name: metric
    for metric in CATALOGUE
    if metric.kind is Kind.COUNTER and not metric.scraped
}
"""The metrics that `Counters` may have: every counter that is counted as things happen. Those that
are not `kept` are never written, but a document that has them is read."""

REJECTION_CODES = CODE_LABELS
"""What `Counters.rejections` can have for keys."""


@attrs.frozen(kw_only=True)
class Counters:
    """Counts up to one moment. What is zero is left out, so that equal counts are equal values."""

    # Mappings, although frozen: treat them as constants. They are no part of the hash.
    series: Mapping[str, Mapping[tuple[str, ...], float]] = attrs.field(factory=dict, hash=False)
    """By the metric's name without the prefix, and the values of its labels."""
    rejections: Mapping[str, int] = attrs.field(factory=dict, hash=False)
    """Requests that were turned away, by the code that they were told."""

    def total(self, name: str, *labels: str) -> float:
        """The sum of a metric's series whose labels begin with these."""
        series = self.series.get(name, {})
        return sum(value for key, value in series.items() if key[: len(labels)] == labels)


def values_of(label: Label, engines: Sequence[str]) -> Sequence[str]:
    """The values that a label of a counter can have, in a fleet of these engines."""
    return tuple(engines) if label.name == ENGINE.name else label.values
