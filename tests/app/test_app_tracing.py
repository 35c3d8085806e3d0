"""Traces of a whole router: what is exported, what engines are told, and what it may not cost."""

from __future__ import annotations

import itertools
import logging
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import attrs
import pytest
import trio
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from trio.testing import MockClock

from narwhal import open_router
from narwhal.config import FleetConfig, TelemetrySettings, TraceSettings
from narwhal.model import ConfigError
from narwhal.telemetry import Telemetry
from narwhal.testing import fleet_config as emulated_config
from narwhal.testing import open_fleet
from narwhal.wire.trace_context import read_context

from processes import PATIENCE_S
from stub_fleet import Play, good
from worlds import World, fleet_config, open_world, play

ASK = {"model": "m", "prompt": "hello", "max_tokens": 3, "stream": True}
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
UNSAMPLED = PARENT[:-1] + "0"
FROM_CLIENT = {"traceparent": PARENT, "tracestate": "vendor=1"}


@pytest.fixture(autouse=True)
def _no_threads(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Send without a thread: virtual time does not wait for one."""
    if "sockets" in request.keywords:
        return

    async def run_here(
        work: Callable[..., Any], *arguments: Any, abandon_on_cancel: bool = False
    ) -> Any:
        await trio.lowlevel.checkpoint()
        done = work(*arguments)
        return await done if isinstance(done, Awaitable) else done

    monkeypatch.setattr("narwhal.router.tracing.run_sync", run_here)


def traced_config(config: FleetConfig | None = None, **settings: Any) -> FleetConfig:
    traces = TraceSettings(**settings)
    return attrs.evolve(config or fleet_config(), telemetry=TelemetrySettings(traces=traces))


def count(telemetry: Telemetry, name: str) -> float:
    line = next(
        line
        for line in telemetry.metrics.render().decode().splitlines()
        if line.startswith(f"narwhal_traces_{name}_total ")
    )
    return float(line.split()[1])


def run_traced(
    body: Callable[[World], Awaitable[None]],
    config: FleetConfig | None = None,
    **settings: Any,
) -> list[ReadableSpan]:
    """The spans that were exported by the end, in the order of their beginning."""
    exporter = InMemorySpanExporter()
    play(body, traced_config(config, **settings), span_exporter=exporter)
    return sorted(exporter.get_finished_spans(), key=lambda span: span.start_time or 0)


def named(spans: Sequence[ReadableSpan], name: str) -> ReadableSpan:
    (found,) = (span for span in spans if span.name == name)
    return found


def test_a_request_is_part_of_its_client_s_trace_and_engines_of_its_own() -> None:
    told: dict[str, str] = {}

    async def body(world: World) -> None:
        assert (await world.post(ASK, headers=FROM_CLIENT)).done
        for seen in world.stubs.seen:
            if seen.leg in ("prefill", "decode"):
                told[seen.leg] = seen.headers["traceparent"]
                assert seen.headers["tracestate"] == "vendor=1"
        await trio.sleep(2)
        assert count(world.router.telemetry, "exported") == 1

    spans = run_traced(body)
    root = named(spans, "text_completion m")
    assert root.kind is SpanKind.SERVER
    assert root.parent is not None
    assert root.parent.is_remote
    assert f"{root.parent.trace_id:032x}-{root.parent.span_id:016x}" in PARENT
    assert root.context is not None
    assert root.context.trace_state.to_header() == "vendor=1"
    assert root.attributes is not None
    assert root.attributes["gen_ai.usage.output_tokens"] == 3
    assert root.attributes["narwhal.terminal"] == "completed"
    assert root.attributes["http.response.status_code"] == 200
    assert root.status.status_code is StatusCode.UNSET
    assert root.resource.attributes["service.name"] == "narwhal-trio"
    for leg, parent in told.items():
        context = read_context([(b"traceparent", parent.encode())])
        assert context is not None
        span = named(spans, leg).context
        assert span is not None
        assert (context.trace_id, context.span_id) == (span.trace_id, span.span_id)
        assert context.trace_id == root.context.trace_id
        assert context.sampled
    decode = named(spans, "decode")
    assert [event.name for event in decode.events] == ["first_token"]
    assert {span.name for span in spans} >= {"ingress", "tokenize", "attempt", "handoff", "respond"}


def test_without_a_client_s_trace_each_request_has_one_of_its_own() -> None:
    async def body(world: World) -> None:
        for _ in range(2):
            await world.post(ASK)

    roots = [span for span in run_traced(body) if span.parent is None]
    assert len({span.context.trace_id for span in roots if span.context}) == 2


def test_a_retry_is_another_attempt() -> None:
    failed = False

    async def fails_once(play_: Play) -> None:
        nonlocal failed
        if play_.leg == "decode" and not failed:
            failed = True
            play_.rst()
            return
        await good(play_)

    async def body(world: World) -> None:
        world.script(fails_once)
        assert (await world.post(ASK | {"stream": False})).status == 200

    spans = run_traced(body, fleet_config(max_attempts=2, retry_base_s=0.1))
    attempts = [span for span in spans if span.name == "attempt"]
    assert [span.status.status_code for span in attempts] == [StatusCode.ERROR, StatusCode.UNSET]
    assert [(span.attributes or {})["narwhal.attempt"] for span in attempts] == [1, 2]
    assert (attempts[0].attributes or {})["error.type"] == "engine_closed"
    backoff = named(spans, "backoff")
    assert attempts[0].end_time == backoff.start_time
    assert attempts[1].start_time == backoff.end_time


def test_a_request_that_fails_and_a_client_that_leaves() -> None:
    async def hangs(play_: Play) -> None:
        await (play_.hang() if play_.leg == "decode" else good(play_))

    async def body(world: World) -> None:
        world.script(hangs)
        assert (await world.post(ASK | {"stream": False})).status == 504
        client = await (await world.connect()).ask(ASK)
        await trio.sleep(0.1)
        client.close()
        await trio.sleep(0.1)
        assert (await world.post({"model": "m"})).status == 400

    roots = [span for span in run_traced(body) if span.kind is SpanKind.SERVER]
    codes = [(span.attributes or {}).get("error.type") for span in roots]
    assert codes == ["first_token", "client_closed", "invalid_request"]
    errors = [span.status.status_code is StatusCode.ERROR for span in roots]
    assert errors == [True, False, False]
    assert (roots[0].attributes or {})["narwhal.limit"] == "first_token"


def test_what_the_client_does_not_record_is_not_recorded_here() -> None:
    async def body(world: World) -> None:
        await world.post(ASK, headers={"traceparent": UNSAMPLED, "tracestate": "vendor=1"})
        legs = [seen for seen in world.stubs.seen if seen.leg in ("prefill", "decode")]
        assert {seen.headers["traceparent"] for seen in legs} == {UNSAMPLED}
        assert {seen.headers["tracestate"] for seen in legs} == {"vendor=1"}

    assert run_traced(body) == []


def test_a_ratio_of_nothing_traces_nothing_and_says_so_to_engines() -> None:
    async def body(world: World) -> None:
        await world.post(ASK)
        legs = [seen for seen in world.stubs.seen if seen.leg in ("prefill", "decode")]
        assert {seen.headers["traceparent"][-3:] for seen in legs} == {"-00"}

    assert run_traced(body, sample_ratio=0.0) == []


def test_a_request_of_the_application_s_own_is_traced_too() -> None:
    async def body(world: World) -> None:
        ask = {"model": "m", "prompt": "x", "max_tokens": 2}
        await world.router.complete(ask, trace={"Traceparent": PARENT, "tracestate": "vendor=1"})
        (decode,) = (seen for seen in world.stubs.seen if seen.leg == "decode")
        assert decode.headers["tracestate"] == "vendor=1"

    root = named(run_traced(body), "text_completion m")
    assert root.parent is not None
    assert f"{root.parent.trace_id:032x}" in PARENT
    assert not [name for name in root.attributes or {} if name.startswith("http.")]


# What it may not cost


class Unwilling(SpanExporter):
    """Takes nothing, by an answer or by an exception."""

    def __init__(self, *, raises: bool) -> None:
        self.raises = raises

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        if self.raises:
            raise RuntimeError("no")
        return SpanExportResult.FAILURE

    def shutdown(self) -> None:
        raise RuntimeError("neither this")


@pytest.mark.parametrize("raises", [True, False])
def test_what_cannot_be_sent_is_counted_and_said_once(
    raises: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def body(world: World) -> None:
        for _ in range(3):
            assert (await world.post(ASK)).done
            await trio.sleep(10)
        assert count(world.router.telemetry, "dropped") == 3

    play(body, traced_config(), span_exporter=Unwilling(raises=raises))
    assert len([r for r in caplog.records if r.levelno >= logging.WARNING]) == 1
    assert "telemetry.traces.endpoint" in caplog.text


def test_a_collector_that_takes_nothing_is_asked_ever_less_often() -> None:
    asked: list[float] = []

    class Listening(Unwilling):
        def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
            asked.append(trio.current_time())
            return super().export(spans)

    async def body(world: World) -> None:
        for _ in range(250):
            assert (await world.post(ASK)).done
            await trio.sleep(1)

    play(body, traced_config(), span_exporter=Listening(raises=False))
    gaps = [round(after - before) for before, after in itertools.pairwise(asked)]
    assert gaps[:6] == [2, 4, 8, 16, 30, 30]


def test_a_full_buffer_drops_and_serves() -> None:
    async def body(world: World) -> None:
        await trio.sleep(0.05)
        for _ in range(5):
            assert (await world.post(ASK)).done
        assert count(world.router.telemetry, "dropped") == 3

    spans = run_traced(body, buffered_requests=2)
    assert sum(span.kind is SpanKind.SERVER for span in spans) == 2


class Stuck:
    """An exporter's thread that nobody hears of again."""

    def export(self, spans: Sequence[ReadableSpan]) -> Any:
        raise AssertionError("send is replaced")

    def shutdown(self) -> None:
        pass


def test_a_collector_that_says_nothing_delays_no_end(monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(*arguments: Any, **options: Any) -> None:
        await trio.sleep_forever()

    monkeypatch.setattr("narwhal.router.tracing.run_sync", never)
    counted: list[float] = []

    async def body(world: World) -> None:
        assert (await world.post(ASK)).done
        await trio.sleep(2)
        assert (await world.post(ASK)).done
        begun = trio.current_time()
        await world.router.drain(10.0)
        assert trio.current_time() - begun <= 0.75
        # Whoever leaves the router's block ends it once more.
        await world.router.end()
        assert trio.current_time() - begun <= 0.75

    async def main() -> None:
        async with open_world(traced_config(), span_exporter=Stuck()) as world:
            await body(world)
        counted.append(count(world.router.telemetry, "dropped"))

    trio.run(main, clock=MockClock(autojump_threshold=0))
    assert counted == [2]


def test_traces_are_sent_at_the_end() -> None:
    exporter = InMemorySpanExporter()

    async def body(world: World) -> None:
        assert (await world.post(ASK)).done
        assert await world.router.drain(10.0)
        assert exporter.get_finished_spans()

    play(body, traced_config(), span_exporter=exporter)


# On and off


def test_what_is_missing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    monkeypatch.delitem(sys.modules, "narwhal.telemetry.otel", raising=False)
    monkeypatch.delattr("narwhal.telemetry.otel", raising=False)

    async def main() -> None:
        config = traced_config(endpoint="http://127.0.0.1:4318/v1/traces")
        async with open_router(config):
            raise AssertionError("it cannot be opened")

    with pytest.raises(ConfigError) as found:
        trio.run(main)
    (problem,) = found.value.problems
    assert "telemetry.traces.endpoint is set" in problem
    assert "pip install 'narwhal-trio[otel]'" in problem


OFF = """
import sys
import narwhal, narwhal.cli
from narwhal.app import asgi
from narwhal.testing import open_fleet, run_seeded

async def main():
    async with open_fleet() as fleet, fleet.open_router() as router:
        answer = await router.complete({"model": "emulated", "prompt": "x", "max_tokens": 2})
        assert answer["usage"]["completion_tokens"] == 2

run_seeded(main, seed=1)
print([name for name in sys.modules if name.partition(".")[0] in ("opentelemetry", "google")])
"""


def test_nothing_is_imported_when_it_is_off() -> None:
    ran = subprocess.run(  # noqa: S603 - a program of this test's own
        [sys.executable, "-c", OFF],
        check=False,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert (ran.stdout, ran.stderr) == ("[]\n", "")


# A collector, or what looks like one


@contextmanager
def collector() -> Iterator[tuple[str, list[ExportTraceServiceRequest]]]:
    """Its address, and what it was sent."""
    received: list[ExportTraceServiceRequest] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            assert self.path == "/v1/traces"
            assert self.headers["content-type"] == "application/x-protobuf"
            received.append(ExportTraceServiceRequest.FromString(body))
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *arguments: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/v1/traces", received
        server.shutdown()
        thread.join()


def serve_once(endpoint: str) -> tuple[float, float]:
    """One request on engines in memory, in real time, and an orderly end: exported and dropped."""
    counted: list[float] = []

    async def main() -> None:
        config = traced_config(emulated_config(), endpoint=endpoint, timeout_s=0.5)
        async with open_fleet(config) as fleet:
            async with fleet.open_router() as router:
                await router.complete({"model": "emulated", "prompt": "x", "max_tokens": 2})
                assert await router.drain(1.0)
            counted.extend(count(router.telemetry, name) for name in ("exported", "dropped"))

    trio.run(main)
    exported, dropped = counted
    return exported, dropped


@pytest.mark.sockets
def test_a_collector_is_sent_all_spans() -> None:
    with collector() as (endpoint, received):
        assert serve_once(endpoint) == (1, 0)
    (resource,) = received[0].resource_spans
    texts = {each.key: each.value.string_value for each in resource.resource.attributes}
    assert texts["service.name"] == "narwhal-trio"
    spans = resource.scope_spans[0].spans
    assert {"text_completion emulated", "prefill", "decode"} <= {span.name for span in spans}
    assert len({span.trace_id for span in spans}) == 1
    assert all(span.end_time_unix_nano >= span.start_time_unix_nano for span in spans)


@pytest.mark.sockets
def test_a_collector_that_is_not_there_loses_spans_and_nothing_else() -> None:
    assert serve_once("http://127.0.0.1:9/v1/traces") == (0, 1)
