"""The router itself, and its process."""

from __future__ import annotations

from narwhal.telemetry.catalogue.labels import VERSION
from narwhal.telemetry.catalogue.shape import Metric
from narwhal.telemetry.kinds import Kind, Scale

ROUTER: tuple[Metric, ...] = (
    Metric("ready", Kind.GAUGE, "", "1 while new requests are taken.", scraped=True),
    Metric("draining", Kind.GAUGE, "", "1 once shutdown has begun.", scraped=True),
    Metric(
        "loop_lag_seconds",
        Kind.HISTOGRAM,
        "seconds",
        "How late the event loop woke the monitor, once each controller.monitor_interval_s.",
        scale=Scale.LAG,
    ),
    Metric(
        "journal_dropped_total",
        Kind.COUNTER,
        "rows",
        "Journal rows lost, to a full buffer or a failed write.",
        scraped=True,
    ),
    Metric(
        "journal_write_errors_total",
        Kind.COUNTER,
        "errors",
        "Failures to open or write the journal file.",
        scraped=True,
    ),
    Metric(
        "state_write_errors_total",
        Kind.COUNTER,
        "errors",
        "Failures to write the state file.",
    ),
    Metric(
        "traces_exported_total",
        Kind.COUNTER,
        "requests",
        "Traced requests whose spans were sent.",
    ),
    Metric(
        "traces_dropped_total",
        Kind.COUNTER,
        "requests",
        "Traced requests whose spans were lost: the buffer was full, or nobody took them.",
    ),
    Metric("build_info", Kind.GAUGE, "", "Always 1.", (VERSION,)),
)

PROCESS = {
    "process_cpu_seconds_total": "CPU time that the process took.",
    "process_max_fds": "Most file descriptors that it may have open.",
    "process_open_fds": "File descriptors that it has open.",
    "process_resident_memory_bytes": "Memory that it has.",
    "process_start_time_seconds": "When it was started, in Unix time.",
    "process_virtual_memory_bytes": "Address space that it has.",
}
"""What `serve` adds of its own process. Names and values are those of prometheus_client, as every
dashboard knows them; Linux only."""
