"""The one task that sends traces, off the request path."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import trio
from trio.to_thread import run_sync

from narwhal.model import ConfigError
from narwhal.telemetry import TracedRequest, Traces

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter

    from narwhal.config import FleetConfig
    from narwhal.router.life import RequestLife
    from narwhal.telemetry import RequestRow, Telemetry, Trace
    from narwhal.telemetry.otel import SpanSender
    from narwhal.wire.trace_context import TraceContext

# Traces are looked at seconds later at the earliest. Batches are small because whoever encodes
# one holds the interpreter: with 512 requests in each the event loop was measured to wait up to
# 180 ms, half of the time more than 5; with 8, 10 to 17 at worst, half of the time less than 1.
# Some 1,900 requests a second can be sent like that, on a busy machine with two cores.
_INTERVAL_S = 1.0
_BATCH_REQUESTS = 8
# Between two tries while nothing can be sent; the SDK logs an error for each.
_LONGEST_S = 30.0


class Tracing:
    """Decides which requests are traced, and sends their spans once they have ended.

    Serving never waits for it: the buffer is bounded by `telemetry.traces.buffered_requests`,
    and what does not fit, or cannot be sent, is dropped and counted.
    """

    def __init__(
        self,
        config: FleetConfig,
        sender: SpanSender,
        telemetry: Telemetry,
        *,
        rng: random.Random,
    ) -> None:
        settings = config.telemetry.traces
        self._traces = Traces(
            ratio=settings.sample_ratio, capacity=settings.buffered_requests, rng=rng
        )
        self._sender = sender
        self._telemetry = telemetry
        self._sending = trio.Lock()
        self._unsure = 0  # requests of a batch that was abandoned before it was known to be sent

    def begin(self, context: TraceContext | None) -> Trace:
        """The trace of a request that begins."""
        return self._traces.begin(context)

    def ended(self, life: RequestLife, row: RequestRow) -> None:
        """Take a request that has ended, if it is traced."""
        trace = life.trace
        if trace is None or not trace.sampled:
            return
        request = TracedRequest(row=row, marks=life.watch.marks, trace=trace, http=life.http)
        if not self._traces.ended_nowait(request):
            self._telemetry.traces_dropped(1)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Send until cancelled. A cancel does not wait for a collector that says nothing."""
        task_status.started()
        pause = _INTERVAL_S
        while True:
            await trio.sleep(pause)
            pause = _INTERVAL_S if await self.flush() else min(2 * pause, _LONGEST_S)

    async def flush(self) -> bool:
        """Send all there is, up to a batch that cannot be sent: then it is false.

        Cancelled, it leaves the rest, and the batch under way is lost.
        """
        async with self._sending:
            while batch := self._traces.drain(_BATCH_REQUESTS):
                self._unsure = len(batch)
                sent = await run_sync(self._sender.send, batch, abandon_on_cancel=True)
                self._unsure = 0
                if not sent:
                    self._telemetry.traces_dropped(len(batch))
                    return False
                self._telemetry.traces_exported(len(batch))
            return True

    def finish(self) -> None:
        """Count what was not sent as lost, and let go of the exporter."""
        self._telemetry.traces_dropped(self._unsure + len(self._traces.drain(len(self._traces))))
        self._sender.close()


def open_tracing(
    config: FleetConfig,
    telemetry: Telemetry,
    *,
    exporter: SpanExporter | None,
    ahead_s: float,
    rng: random.Random,
) -> Tracing | None:
    """What traces requests, if `telemetry.traces` or the embedding application asks for it.

    Raises `ConfigError` if the packages for it are not installed.
    """
    settings = config.telemetry.traces
    if exporter is None and settings.endpoint is None:
        return None
    try:
        # Whoever does not trace does not pay for it, nor need it be installed.
        from narwhal.telemetry import otel  # noqa: PLC0415
    except ImportError as error:
        problem = (
            f"telemetry.traces.endpoint is set ({settings.endpoint}), and what sends traces is "
            f"not installed ({error.name}): pip install 'narwhal-trio[otel]', or set it to null"
        )
        raise ConfigError([problem]) from error
    if exporter is None:
        assert settings.endpoint is not None  # noqa: S101 - for the type checker
        exporter = otel.otlp_exporter(settings.endpoint, timeout_s=settings.timeout_s)
    sender = otel.SpanSender(exporter, model=config.model, ahead_s=ahead_s)
    return Tracing(config, sender, telemetry, rng=random.Random(rng.getrandbits(64)))  # noqa: S311
