"""Every metric of the router, declared once, as data.

The Prometheus objects (`narwhal.telemetry.metrics`), the values read at a scrape
(`narwhal.telemetry.scrape`) and the reference page (docs/metrics.md) are all made from
`CATALOGUE`. Guarantees:

- every label has a closed set of values: an enumeration of `narwhal.model` or of `kinds`,
  the engines of the fleet, the version. Nothing a client sends can make a series;
- so the number of series is known before the first request and never changes.
"""

from __future__ import annotations

from narwhal.telemetry.catalogue.engines import ENGINES
from narwhal.telemetry.catalogue.handoffs import HANDOFFS
from narwhal.telemetry.catalogue.labels import ENGINE, LEGS, VERSION
from narwhal.telemetry.catalogue.requests import REQUESTS
from narwhal.telemetry.catalogue.roles import ROLES
from narwhal.telemetry.catalogue.router import PROCESS, ROUTER
from narwhal.telemetry.catalogue.scales import buckets
from narwhal.telemetry.catalogue.shape import Label, Metric
from narwhal.telemetry.catalogue.times import TIMES

__all__ = [
    "CATALOGUE",
    "ENGINE",
    "LEGS",
    "PROCESS",
    "VERSION",
    "Label",
    "Metric",
    "buckets",
]

CATALOGUE: tuple[Metric, ...] = (*REQUESTS, *ENGINES, *TIMES, *HANDOFFS, *ROLES, *ROUTER)
"""In the order of the reference page."""
