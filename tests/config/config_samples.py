"""Documents and strategies that the tests of the fleet file share."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st

from narwhal.config import (
    Admission,
    Connector,
    Controller,
    EngineSettings,
    EngineSpec,
    FleetConfig,
    Hardware,
    Health,
    Profiles,
    Reactive,
    Recovery,
    RestartPolicy,
    Serving,
    Slo,
    TelemetrySettings,
    Thresholds,
    TraceSettings,
    parse_fleet,
)
from narwhal.config.rules import most_samples
from narwhal.model import ConfigError, Dialect, Role, StreamCommit

if TYPE_CHECKING:
    from enum import StrEnum

KEY_VARIABLE = "ENGINE_KEY"
ENVIRON = {KEY_VARIABLE: "sk-1234"}

MINIMAL: dict[str, Any] = {
    "schema": "narwhal.fleet",
    "schema_version": 1,
    "model": "m",
    "engines": [
        {"iid": "p0", "url": "http://10.0.0.1:8000", "role": "prefill"},
        {"iid": "d0", "url": "http://10.0.0.2:8000"},
    ],
    "slo": {"ttft_s": 2.0, "tpot_s": 0.05},
}


def document(**settings: Any) -> dict[str, Any]:
    """The minimal document with settings by path, dots written as two underscores."""
    made = copy.deepcopy(MINIMAL)
    for path, value in settings.items():
        put(made, path.replace("__", "."), value)
    return made


def put(made: dict[str, Any], path: str, value: object) -> None:
    """Set one setting of a document by its path."""
    *sections, name = path.split(".")
    for section in sections:
        made = made.setdefault(section, {})
    made[name] = value


def get(config: object, path: str) -> object:
    """One value of a config by its path."""
    for name in path.split("."):
        config = getattr(config, name)
    return config


def parse(made: object, **environ: str) -> FleetConfig:
    return parse_fleet(made, name="fleet.json", environ=environ)


def problems(made: object, **environ: str) -> list[str]:
    """The lines that a document is refused with, none if it is accepted."""
    try:
        parse(made, **environ)
    except ConfigError as error:
        lines = error.problems
    else:
        return []
    assert lines
    assert all(line.isprintable() and line.startswith("fleet.json: ") for line in lines)
    return [line.removeprefix("fleet.json: ") for line in lines]


# Strategies for valid configs: each value is drawn within its bounds, then rules between fields
# are met by construction, so that nothing has to be thrown away.

_positive = st.floats(min_value=1e-6, max_value=1e6)
_not_negative = st.floats(min_value=0, max_value=1e6)
_counts = st.integers(0, 10**6)
_from_one = st.integers(1, 10**6)
_ratios = st.floats(min_value=1, max_value=100, exclude_min=True)
_fractions = st.floats(min_value=0, max_value=1)
_positive_fractions = st.floats(min_value=0, max_value=1, exclude_min=True)
# Letters, numbers, punctuation and symbols of all scripts: what is printable, but for blanks.
_printable = st.characters(categories=["L", "N", "P", "S"])
_names = st.text(_printable, min_size=1, max_size=30)
_ids = st.from_regex(r"\A[A-Za-z0-9][A-Za-z0-9._:-]{0,20}\Z")
_hosts = st.sampled_from(["127.0.0.1", "engine-1.local", "[::1]", "10.1.2.3"])


def _any_of(kind: type[StrEnum]) -> st.SearchStrategy[Any]:
    return st.sampled_from(list(kind))


@st.composite
def engine_lists(draw: st.DrawFn) -> tuple[EngineSpec, ...]:
    iids = draw(st.lists(_ids, min_size=2, max_size=5, unique=True))
    ports = draw(
        st.lists(st.integers(1, 65535), min_size=len(iids), max_size=len(iids), unique=True)
    )
    return tuple(
        EngineSpec(
            iid=iid,
            url=f"{draw(st.sampled_from(['http', 'https']))}://{draw(_hosts)}:{port}",
            role=draw(_any_of(Role)),
            pin=draw(st.booleans()),
            attestation_url=draw(st.sampled_from([None, "http://identity:90/of/process"])),
        )
        for iid, port in zip(iids, ports, strict=True)
    )


@st.composite
def servings(draw: st.DrawFn, lease_s: float) -> Serving:
    queueing, retrying = draw(st.booleans()), draw(st.booleans())
    base, cap = sorted([draw(_not_negative), draw(_not_negative)])
    limited = st.floats(min_value=lease_s / 10, max_value=lease_s, exclude_max=True)
    counts = _from_one if queueing else _counts
    return Serving(
        admission=draw(_any_of(Admission)),
        admission_margin=draw(_not_negative),
        max_connections=draw(_from_one),
        queue_capacity=draw(_from_one) if queueing else 0,
        queue_timeout_s=draw(_positive if queueing else _not_negative),
        prefill_concurrency=draw(counts),
        decode_concurrency=draw(counts),
        handoff_timeout_s=draw(limited if queueing or retrying else _not_negative),
        max_attempts=draw(st.integers(2, 3)) if retrying else 1,
        retry_base_s=base,
        retry_cap_s=cap,
        retry_budget=draw(_counts),
        retry_replenish=draw(_fractions),
        max_request_bytes=draw(_from_one),
        max_response_bytes=draw(_from_one),
        request_timeout_s=draw(_positive),
        prefill_timeout_s=draw(_positive),
        graceful_timeout_s=draw(_not_negative),
        stream_commit=draw(_any_of(StreamCommit)),
    )


@st.composite
def engine_settings(draw: st.DrawFn) -> EngineSettings:
    return EngineSettings(
        dialect=draw(_any_of(Dialect)),
        connector=draw(_any_of(Connector)),
        engine_api_key_env=draw(st.sampled_from([None, KEY_VARIABLE])),
        require_handoff=draw(st.booleans()),
        kv_lease_s=draw(_positive),
        control_connections=draw(_counts),
        first_token_timeout_s=draw(_positive),
        decode_read_timeout_s=draw(_not_negative),
        tokenize=draw(st.booleans()),
        tokenize_timeout_s=draw(_positive),
        chars_per_token=draw(_positive),
        pool_timeout_s=draw(_positive),
        connect_timeout_s=draw(_positive),
        health_timeout_s=draw(_positive),
    )


@st.composite
def controllers(draw: st.DrawFn, engines: int) -> Controller:
    shrink, expand = sorted(draw(st.lists(_positive, min_size=2, max_size=2, unique=True)))
    span, max_span, window = sorted([draw(_positive), draw(_positive), draw(_positive)])
    low, high = sorted([draw(_positive), draw(_positive)])
    min_prefill = draw(st.integers(1, engines - 1))
    return Controller(
        advisory=draw(st.booleans()),
        monitor_interval_s=draw(st.floats(min_value=0.01, max_value=10)),
        monitor_failure_limit=draw(_from_one),
        min_prefill=min_prefill,
        min_decode=draw(st.integers(1, engines - min_prefill)),
        flip_history=draw(_from_one),
        thresholds=Thresholds(
            expand=expand,
            shrink=shrink,
            cooldown_s=draw(_not_negative),
            sustained_intervals=draw(_from_one),
            dwell_s=draw(_not_negative),
            panic_ratio=draw(st.just(0.0) | _ratios),
            flip_resident_guard=draw(_counts),
        ),
        reactive=Reactive(
            window_s=window,
            confirmations=draw(_from_one),
            utilization=draw(_positive_fractions),
            min_arrivals=draw(_from_one),
            demand_floor=draw(_positive),
            movement_margin=draw(st.floats(min_value=0, max_value=1, exclude_max=True)),
            step_s=draw(_positive),
            evidence_span_s=span,
            evidence_max_span_s=max_span,
            evidence_min_arrivals=draw(_from_one),
            demand_rise_tolerance=draw(_not_negative),
            decode_correction_min=low,
            decode_correction_max=high,
            decode_correction_alpha=draw(_positive_fractions),
            decode_correction_min_samples=draw(_from_one),
        ),
    )


@st.composite
def recoveries(draw: st.DrawFn, interval_s: float) -> Recovery:
    window_s = draw(st.floats(min_value=10, max_value=1000))
    return Recovery(
        eject_after=draw(_from_one),
        readmit_every=draw(_from_one),
        liveness_every=draw(_from_one),
        liveness_misses=draw(_from_one),
        failure_quarantine_s=draw(_not_negative),
        engine_restart_policy=draw(_any_of(RestartPolicy)),
        state_path=draw(_names),
        resume=draw(st.booleans()),
        health=Health(
            window_s=window_s,
            drift_band=draw(_ratios),
            relative_band=draw(_ratios),
            min_samples=draw(st.integers(1, most_samples(window_s, interval_s))),
            probation_windows=draw(_from_one),
            evict_windows=draw(_from_one),
            recovery_windows=draw(_from_one),
            probation_penalty_s=draw(_not_negative),
        ),
    )


json_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4)
    ),
    max_leaves=12,
)
_contract_keys = st.text(max_size=11).map(lambda key: f"k{key}")
_contracts = st.dictionaries(
    _contract_keys,
    st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=12),
    max_size=3,
)


@st.composite
def fleets(draw: st.DrawFn) -> FleetConfig:
    """Any config that obeys every bound and rule."""
    engines = draw(engine_lists())
    engine = draw(engine_settings())
    controller = draw(controllers(len(engines)))
    hardware = Hardware(
        accelerator=draw(st.none() | _names),
        accelerators_per_engine=draw(st.none() | _from_one),
        tensor_parallel=draw(st.none() | _from_one),
    )
    return FleetConfig(
        model=draw(_names),
        hardware=draw(st.sampled_from([None, hardware])),
        engines=engines,
        engine_contract=draw(st.none() | _contracts),
        slo=Slo(ttft_s=draw(_positive), tpot_s=draw(_positive)),
        serving=draw(servings(engine.kv_lease_s)),
        engine=engine,
        controller=controller,
        recovery=draw(recoveries(controller.monitor_interval_s)),
        profiles=Profiles(
            path=draw(_names),
            max_decode_fit_mape=draw(_not_negative),
            max_decode_cv_mape=draw(_not_negative),
        ),
        telemetry=TelemetrySettings(
            traces=TraceSettings(
                endpoint=draw(st.sampled_from([None, "http://collector:4318/v1/traces"])),
                sample_ratio=draw(st.floats(0, 1)),
                buffered_requests=draw(_from_one),
                timeout_s=draw(_positive),
            )
        ),
    )
