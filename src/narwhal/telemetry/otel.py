"""Spans into the OpenTelemetry SDK: the one module that knows it, and is imported when it is used.

`pip install 'narwhal-trio[otel]'` brings the SDK and its exporter.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, TraceFlags, TraceState
from opentelemetry.trace.status import Status, StatusCode

from narwhal.model.version import __version__
from narwhal.telemetry import spans

if TYPE_CHECKING:
    from collections.abc import Sequence

    from narwhal.telemetry.traces import TracedRequest

logger = logging.getLogger(__name__)

_KINDS = {
    spans.SpanKind.SERVER: SpanKind.SERVER,
    spans.SpanKind.CLIENT: SpanKind.CLIENT,
    spans.SpanKind.INTERNAL: SpanKind.INTERNAL,
}
_SCOPE = InstrumentationScope("narwhal", __version__)
_NS = 1_000_000_000


def otlp_exporter(endpoint: str, *, timeout_s: float) -> SpanExporter:
    """What sends spans to a collector over OTLP/HTTP, and gives up after `timeout_s` seconds.

    The SDK's environment variables for headers, certificates and compression hold.
    """
    return OTLPSpanExporter(endpoint=endpoint, timeout=timeout_s)


class SpanSender:
    """Makes spans of requests and gives them to an exporter. It blocks: it belongs in a thread.

    `ahead_s` is what has to be added to the router's clock for Unix time.
    """

    def __init__(self, exporter: SpanExporter, *, model: str, ahead_s: float) -> None:
        self._exporter = exporter
        self._model = model
        self._ahead_s = ahead_s
        # What the environment says comes last, and so wins.
        own = Resource({"service.name": "narwhal-trio", "service.version": __version__})
        self._resource = own.merge(OTELResourceDetector().detect())
        self._failing = False

    def send(self, requests: Sequence[TracedRequest]) -> bool:
        """Export the spans of these requests; whether that worked. Never raises."""
        made = [each for request in requests for each in self.spans(request)]
        try:
            sent = self._exporter.export(made) is SpanExportResult.SUCCESS
        except Exception:
            sent = False
            logger.debug("traces: the exporter raised", exc_info=True)
        if not sent and not self._failing:
            logger.warning(
                "traces: spans cannot be sent (telemetry.traces.endpoint); they are lost and "
                "counted until it works again"
            )
        elif sent and self._failing:
            logger.warning("traces: spans can be sent again")
        self._failing = not sent
        return sent

    def close(self) -> None:
        """Have the exporter give up what it waits for. Never raises."""
        try:
            self._exporter.shutdown()
        except Exception:
            logger.debug("traces: the exporter raised", exc_info=True)

    def spans(self, request: TracedRequest) -> list[ReadableSpan]:
        """The spans of a request, as the SDK has them."""
        made = spans.request_spans(request, model=self._model)
        parent = request.trace.parent
        state = None if parent is None else parent.tracestate
        shared = TraceState() if state is None else TraceState.from_header([state])

        def context(span_id: int, *, remote: bool) -> SpanContext:
            return SpanContext(
                request.trace.trace_id,
                span_id,
                is_remote=remote,
                trace_flags=TraceFlags(TraceFlags.SAMPLED),
                trace_state=shared,
            )

        return [
            ReadableSpan(
                name=span.name,
                context=context(span.span_id, remote=False),
                parent=None
                if span.parent_id is None
                else context(span.parent_id, remote=span.kind is spans.SpanKind.SERVER),
                resource=self._resource,
                attributes=span.attributes,
                events=[Event(name, timestamp=self._ns(at)) for name, at in span.events],
                kind=_KINDS[span.kind],
                status=Status(StatusCode.UNSET)
                if span.error is None
                else Status(StatusCode.ERROR, span.error),
                start_time=self._ns(span.begun),
                end_time=self._ns(span.ended),
                instrumentation_scope=_SCOPE,
            )
            for span in made
        ]

    def _ns(self, moment: float) -> int:
        return round((moment + self._ahead_s) * _NS)
