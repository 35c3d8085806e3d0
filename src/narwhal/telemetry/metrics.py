"""The catalogue as a Prometheus registry, one a router, every series bound in advance.

No request looks a series up by its labels: it picks the cell from a dictionary keyed by
enumerations.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    ProcessCollector,
    generate_latest,
)

from narwhal.admission import Cause
from narwhal.fleet import EngineState
from narwhal.model import ClientLimit, FailureClass, Limit, Phase, Role, Route, Terminal
from narwhal.roles import Gate, Rule, Verdict
from narwhal.telemetry.catalogue import ENGINE, LEGS, VERSION
from narwhal.telemetry.cells import Cell, Cells
from narwhal.telemetry.codes import CODE_LABELS
from narwhal.telemetry.kinds import (
    AttemptResult,
    Denial,
    Door,
    Endpoint,
    PassResult,
    Probe,
    ProbeResult,
    StatusClass,
    Target,
    TargetResult,
    TokenKind,
)
from narwhal.telemetry.scrape import ScrapeCollector

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from narwhal.telemetry.live import Readings

CONTENT_TYPE = CONTENT_TYPE_LATEST
"""What `Metrics.render` returns, for the `content-type` header."""

_Key = TypeVar("_Key", bound=str)
_Second = TypeVar("_Second", bound=str)


class Metrics:
    """The metrics of one router.

    Routers in one process share nothing: neither the global registry nor any global setting of
    prometheus_client is touched. All series exist once this is built.
    """

    def __init__(
        self,
        *,
        engines: Sequence[str],
        ttft_s: float,
        tpot_s: float,
        version: str,
        read: Callable[[], Readings] = dict,
    ) -> None:
        """`read` is called once a scrape, for the values that are not counted here."""
        self.registry = CollectorRegistry()
        open_labels = {ENGINE.name: tuple(engines), VERSION.name: (version,)}
        self._cells = Cells(open_labels, ttft_s=ttft_s, tpot_s=tpot_s)
        self.registry.register(self._cells)
        self.registry.register(ScrapeCollector(read, open_labels))
        self._bind_requests()
        self._bind_engines(engines)
        self._bind_times()
        cell = self._cells.cell
        cell("build_info", version).set(1)
        cell("target_seconds", Target.TTFT).set(ttft_s)
        cell("target_seconds", Target.TPOT).set(tpot_s)

    def add_process(self) -> None:
        """Show `PROCESS` as well, of this process: for whoever has it to itself. Call it once."""
        ProcessCollector(registry=self.registry)

    def render(self) -> bytes:
        """Return the text exposition of every metric; its type is `CONTENT_TYPE`."""
        return generate_latest(self.registry)

    def counters(self) -> dict[str, dict[tuple[str, ...], float]]:
        """The counters that are not zero, by name and label values."""
        return self._cells.counters()

    def count_on(self, counters: Mapping[str, Mapping[tuple[str, ...], float]]) -> None:
        """Add to the counters what another run had counted."""
        self._cells.count_on(counters)

    # What follows is built once; the attributes are the hot-path interface.

    def _bind_requests(self) -> None:
        self.requests_received = self._each("requests_received_total", Route)
        self.requests = self._pairs("requests_total", Route, Terminal)
        self.requests_ended = self._each("requests_ended_total", CODE_LABELS)
        self.http_responses = self._pairs("http_responses_total", Endpoint, StatusClass)
        self.limits_fired = self._each("limits_fired_total", Limit)
        self.attempts = self._each("attempts_total", AttemptResult)
        self.denied = self._pairs("denied_total", Door, Denial)
        self.client_limits = self._pairs("client_limits_fired_total", Door, ClientLimit)
        self.certificate_expiry = self._each("certificate_expiry_timestamp_seconds", Door)
        cell = self._cells.cell
        self.retries = cell("retries_total")
        self.offers = cell("offers_total")
        self.unsized_offers = cell("unsized_offers_total")
        self.refusals = self._each("refusals_total", Cause)
        self.unserved = self._each("unserved_placements_total", LEGS)

    def _bind_engines(self, engines: Sequence[str]) -> None:
        self.engine_failures = self._pairs("engine_failures_total", engines, FailureClass)
        self.engine_transitions = self._pairs("engine_transitions_total", engines, EngineState)
        self.engine_restarts = self._each("engine_restarts_total", engines)
        self.role_moves = self._pairs("role_moves_total", engines, Role)
        self.role_decisions = self._pairs("role_decisions_total", Rule, Verdict)
        self.role_gates = self._each("role_gates_total", Gate)
        self.probes = self._pairs("probes_total", Probe, ProbeResult)
        self.monitor_passes = self._each("monitor_passes_total", PassResult)
        cell = self._cells.cell
        self.kv_released = cell("kv_released_total")
        self.kv_release_failures = cell("kv_release_failures_total")
        self.kv_orphaned = cell("kv_orphaned_total")
        self.state_write_errors = cell("state_write_errors_total")
        self.traces_exported = cell("traces_exported_total")
        self.traces_dropped = cell("traces_dropped_total")
        self.handoff_missing = cell("handoff_missing_total")
        self.handoff_expired = cell("handoff_expired_total")
        self.handoff_incomplete = cell("handoff_incomplete_total")
        self.prefill_rewrite_rejected = cell("prefill_rewrite_rejected_total")
        self.tokenize_fallback = cell("tokenize_fallback_total")

    def _bind_times(self) -> None:
        self.tokens_prompt = self._cells.cell("tokens_total", TokenKind.PROMPT)
        self.tokens_completion = self._cells.cell("tokens_total", TokenKind.COMPLETION)
        self.phase_seconds = self._each("phase_seconds_total", Phase)
        histogram = self._cells.histogram
        self.queue_wait = histogram("queue_wait_seconds")
        self.ttft = histogram("ttft_seconds")
        self.prefill_ttft = histogram("prefill_ttft_seconds")
        self.first_token_ttft = histogram("first_token_ttft_seconds")
        self.tpot = histogram("tpot_seconds")
        self.request = histogram("request_seconds")
        self.projection_ratio = histogram("ttft_projection_ratio")
        self.seat_wait = {leg: histogram("seat_wait_seconds", leg) for leg in LEGS}
        self.monitor_pass = histogram("monitor_pass_seconds")
        self.loop_lag = histogram("loop_lag_seconds")
        self.target_results = self._pairs("target_results_total", Target, TargetResult)

    def _each(self, name: str, values: Iterable[_Key]) -> dict[_Key, Cell]:
        return {value: self._cells.cell(name, value) for value in values}

    def _pairs(
        self, name: str, firsts: Iterable[_Key], seconds: Iterable[_Second]
    ) -> dict[tuple[_Key, _Second], Cell]:
        inner = tuple(seconds)
        return {
            (first, second): self._cells.cell(name, first, second)
            for first in firsts
            for second in inner
        }
