"""What a metric and a label are, as data."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from narwhal.telemetry.kinds import Kind, Scale

PREFIX = "narwhal_"


@attrs.frozen
class Label:
    """A label and the closed set of its values; an empty set is filled in by the fleet."""

    name: str
    values: tuple[str, ...] = ()
    meaning: str = ""


@attrs.frozen
class Metric:
    """One metric: its name without the prefix, and all that is needed to build and document it."""

    name: str
    kind: Kind
    unit: str
    help: str
    labels: tuple[Label, ...] = ()
    scale: Scale | None = attrs.field(default=None, kw_only=True)
    scraped: bool = attrs.field(default=False, kw_only=True)
    """Whether it is read from the router's state at each scrape rather than counted."""
    kept: bool = attrs.field(default=True, kw_only=True)
    """Whether a router that is started again counts on from it. What is counted with every
    evaluation is not: the state file would have to be written for nothing else."""

    @property
    def full_name(self) -> str:
        """The name a scraper sees."""
        return PREFIX + self.name

    def series(self, open_labels: Mapping[str, Sequence[str]]) -> Iterator[tuple[str, ...]]:
        """All combinations of label values; `open_labels` fills the sets left empty here."""
        return product(*(label.values or tuple(open_labels[label.name]) for label in self.labels))
