"""The section `telemetry`: what the router tells other programs, unasked."""

import attrs

from narwhal.config.bounds import POSITIVE, at_least, between
from narwhal.config.settings import about, checked
from narwhal.config.texts import CollectorUrl


@attrs.frozen(kw_only=True, field_transformer=checked)
class TraceSettings:
    """Spans of requests, sent to a collector."""

    endpoint: CollectorUrl | None = attrs.field(
        default=None,
        metadata=about(
            "Where traces are sent, over OTLP/HTTP, path included "
            "(`http://127.0.0.1:4318/v1/traces`); `null` switches tracing off. It takes the "
            "extra `narwhal-trio[otel]`."
        ),
    )
    sample_ratio: float = attrs.field(
        default=1.0,
        metadata=about(
            "Fraction of requests that are traced, of those whose client has not decided.",
            unit="fraction",
            bounds=between(0, 1),
        ),
    )
    buffered_requests: int = attrs.field(
        default=2048,
        metadata=about(
            "Traced requests that wait to be sent; one more is dropped, and counted.",
            unit="requests",
            bounds=at_least(1),
        ),
    )
    timeout_s: float = attrs.field(
        default=5.0,
        metadata=about(
            "How long one batch is tried, before it is dropped, and counted.",
            unit="s",
            bounds=POSITIVE,
        ),
    )


@attrs.frozen(kw_only=True, field_transformer=checked)
class TelemetrySettings:
    """What the router tells other programs, unasked."""

    traces: TraceSettings = attrs.field(
        factory=TraceSettings, metadata=about("Spans of requests, sent to a collector.")
    )
