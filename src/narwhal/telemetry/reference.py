"""The metric reference page, made from the catalogue.

`python -m narwhal.telemetry.reference` writes it to standard output; docs/metrics.md is that.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from narwhal.telemetry.catalogue import CATALOGUE, PROCESS, buckets
from narwhal.telemetry.kinds import Kind, Scale

if TYPE_CHECKING:
    from narwhal.telemetry.catalogue import Label, Metric

_HEAD = """\
# Metrics

<!-- Made by `python -m narwhal.telemetry.reference > docs/metrics.md`. Do not edit. -->

`GET /metrics` answers in the Prometheus text format. Every label has a closed set of values, so
the number of series is fixed when the router starts: nothing that a client sends can add one.
Metrics marked *at scrape* are read from the router's state when they are asked for; the others
are counted as things happen.

| metric | type | labels | unit | meaning |
|---|---|---|---|---|
"""

_PROCESS = """
## The process

`narwhal-trio serve` shows its own process as well, under the names that Prometheus' client
libraries have for it. An embedded router does not: the process is not its own, and the application
may show it already.

| metric | meaning |
|---|---|
"""

_LABELS = """
## Label values

| label | of | values |
|---|---|---|
"""

_BUCKETS = """
## Histogram buckets

The edges are scaled to the fleet's targets `slo.ttft_s` and `slo.tpot_s`. Each target is itself
an edge, so the share of requests that met it is exact:
`narwhal_ttft_seconds_bucket{{le="<target>"}} / narwhal_ttft_seconds_count`.

- `queue_wait_seconds`, `ttft_seconds`, `prefill_ttft_seconds` and `first_token_ttft_seconds`:
  `slo.ttft_s` times {ttft}. So is `seat_wait_seconds`.
- `tpot_seconds`: `slo.tpot_s` times {tpot}.
- `request_seconds`: what a request of so many output tokens takes when it just meets both
  targets, `slo.ttft_s + (tokens - 1) * slo.tpot_s`, for 1 and for 16 to 16384 tokens in doublings.
- `ttft_projection_ratio`: {ratio}.
- `loop_lag_seconds` and `monitor_pass_seconds`, whatever the targets: {lag}.
"""


def catalogue_markdown() -> str:
    """Return the text of docs/metrics.md."""
    rows = "".join(_row(metric) for metric in CATALOGUE)
    users: dict[Label, list[str]] = {}
    for metric in CATALOGUE:
        for label in metric.labels:
            users.setdefault(label, []).append(f"`{metric.name}`")
    values = "".join(
        f"| `{label.name}` | {', '.join(names)} | {_values(label)} |\n"
        for label, names in users.items()
    )
    edges = {scale: _numbers(buckets(scale, ttft_s=1.0, tpot_s=1.0)) for scale in Scale}
    tail = _BUCKETS.format(**edges)
    process = "".join(f"| `{name}` | {text} |\n" for name, text in PROCESS.items())
    return _HEAD + rows + _PROCESS + process + _LABELS + values + tail


def _row(metric: Metric) -> str:
    labels = ", ".join(f"`{label.name}`" for label in metric.labels)
    kind = f"{metric.kind}, *at scrape*" if metric.scraped else str(metric.kind)
    if metric.kind is Kind.HISTOGRAM:
        kind = "[histogram](#histogram-buckets)"
    return f"| `{metric.full_name}` | {kind} | {labels} | {metric.unit} | {metric.help} |\n"


def _values(label: Label) -> str:
    return label.meaning or ", ".join(f"`{value}`" for value in label.values)


def _numbers(values: tuple[float, ...]) -> str:
    return ", ".join(f"{value:g}" for value in values)


if __name__ == "__main__":
    sys.stdout.write(catalogue_markdown())
