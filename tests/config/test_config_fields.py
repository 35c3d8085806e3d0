"""Every field of the fleet file: its default and its bounds, written out by hand.

The table repeats the specification on purpose: it does not come from the schema, so it notices
when the schema strays.
"""

from __future__ import annotations

from typing import Any

import attrs
import pytest
from config_samples import document, get, parse, problems, put

from narwhal.config import EngineSettings, EngineSpec, FleetConfig, Serving, Slo
from narwhal.config.settings import section_of, walk
from narwhal.model import ConfigError, Role

POSITIVE = ([0.001, 1, 10**9], [0, -1, 0.0, -0.5])
NOT_NEGATIVE = ([0, 0.5, 10**9], [-1, -0.001])
COUNT = ([0, 1, 10**9], [-1, 0.5, 1.0])
FROM_ONE = ([1, 10**9], [0, -1, 1.5, 1.0])
FLAG = ([True, False], [0, 1, "true"])
FRACTION = ([0, 1, 0.5], [-0.1, 1.1])
NOT_ZERO_FRACTION = ([0.001, 1], [0, 1.1])
ABOVE_ONE = ([1.001, 7], [1, 0.5])
PATH = (["x.json", "/var/lib/x"], ["", " ", 3, "a\nb"])
BIND = (
    [None, "127.0.0.1:9000", "[::1]:0", "router.local:65535"],
    ["", "127.0.0.1", ":9000", "::1:9000", "[::z]:1", "h:65536", "u@h:1", "http://h:1", 9000],
)

# path: default, values that are accepted when nothing else is set, values that are refused
FIELDS: dict[str, tuple[object, tuple[list[Any], list[Any]]]] = {
    "slo.ttft_scope": ("prefill", (["first_token"], ["decode", None])),
    "serving.admission": ("predictive", (["open"], ["", "closed", None, True])),
    "serving.admission_margin": (0.0, NOT_NEGATIVE),
    "serving.max_connections": (512, FROM_ONE),
    "serving.queue_capacity": (0, ([0], [-1, 0.5])),
    "serving.queue_timeout_s": (0.0, NOT_NEGATIVE),
    "serving.prefill_concurrency": (0, COUNT),
    "serving.decode_concurrency": (0, COUNT),
    "serving.handoff_timeout_s": (0.0, NOT_NEGATIVE),
    "serving.max_attempts": (1, ([1], [0, 4, 1.0])),
    "serving.retry_base_s": (0.1, ([0, 1], [-0.1])),
    "serving.retry_cap_s": (1.0, ([0.1, 5], [-1, 0.09])),
    "serving.retry_budget": (10, COUNT),
    "serving.retry_replenish": (0.1, FRACTION),
    "serving.max_request_bytes": (4194304, FROM_ONE),
    "serving.max_response_bytes": (16777216, FROM_ONE),
    "serving.request_timeout_s": (600.0, POSITIVE),
    "serving.prefill_timeout_s": (120.0, POSITIVE),
    "serving.graceful_timeout_s": (30.0, NOT_NEGATIVE),
    "serving.stream_commit": ("before_decode", (["first_token"], ["now", 1])),
    "serving.api_key_env": (None, ([None], ["", "3A", "a-b", 3])),
    "serving.api_keys_file": (None, ([None, *PATH[0]], PATH[1])),
    "serving.metrics_need_key": (False, ([False], [True, 0, "true"])),
    "serving.tls_cert_file": (None, ([None, *PATH[0]], PATH[1])),
    "serving.tls_key_file": (None, ([None], ["x.pem", *PATH[1]])),
    "serving.max_client_connections": (4096, COUNT),
    "http.header_timeout_s": (10.0, POSITIVE),
    "http.keep_alive_timeout_s": (75.0, POSITIVE),
    "http.max_header_bytes": (65536, ([1024, 10**9], [1023, 0, 2048.0])),
    "http.max_headers": (128, ([8, 10**9], [7, 0, 9.0])),
    "http.max_uri_bytes": (8192, ([64, 10**9], [63, 0, 99.0])),
    "http.body_grace_s": (20.0, POSITIVE),
    "http.min_body_bytes_per_s": (500.0, NOT_NEGATIVE),
    "control.bind": (None, BIND),
    "control.token_env": (None, ([None], ["", "3A", "a-b", 3])),
    "control.tls_cert_file": (None, ([None, *PATH[0]], PATH[1])),
    "control.tls_key_file": (None, ([None], ["x.pem", *PATH[1]])),
    "control.tls_client_ca_file": (None, ([None], ["x.pem", *PATH[1]])),
    "engine.dialect": ("vllm", (["vllm"], ["sglang"])),
    "engine.connector": ("nixl", (["nixl"], ["lmcache"])),
    "engine.engine_api_key_env": (None, ([None], ["", "3A", "a-b", 3])),
    "engine.require_handoff": (True, FLAG),
    "engine.kv_lease_s": (30.0, POSITIVE),
    "engine.control_connections": (0, COUNT),
    "engine.first_token_timeout_s": (2.5, POSITIVE),
    "engine.decode_read_timeout_s": (60.0, NOT_NEGATIVE),
    "engine.tokenize": (True, FLAG),
    "engine.tokenize_timeout_s": (2.0, POSITIVE),
    "engine.chars_per_token": (3.8, POSITIVE),
    "engine.pool_timeout_s": (5.0, POSITIVE),
    "engine.connect_timeout_s": (10.0, POSITIVE),
    "engine.health_timeout_s": (5.0, POSITIVE),
    "recovery.eject_after": (3, FROM_ONE),
    "recovery.readmit_every": (10, FROM_ONE),
    "recovery.liveness_every": (10, FROM_ONE),
    "recovery.liveness_misses": (2, FROM_ONE),
    "recovery.failure_quarantine_s": (0.0, NOT_NEGATIVE),
    "recovery.engine_restart_policy": ("individual", (["whole_wave"], ["none"])),
    "recovery.state_path": ("runs/state.json", PATH),
    "recovery.resume": (False, FLAG),
    "recovery.health.window_s": (30.0, ([3, 10**9], [0, -1])),
    "recovery.health.drift_band": (2.0, ABOVE_ONE),
    "recovery.health.relative_band": (1.5, ABOVE_ONE),
    "recovery.health.min_samples": (3, ([1, 30], [0, 31, 1.5])),
    "recovery.health.probation_windows": (3, FROM_ONE),
    "recovery.health.evict_windows": (5, FROM_ONE),
    "recovery.health.recovery_windows": (3, FROM_ONE),
    "recovery.health.probation_penalty_s": (1.5, NOT_NEGATIVE),
    "telemetry.traces.endpoint": (
        None,
        (
            ["http://c:4318/v1/traces", "https://otel.example/x", None],
            ["", "c:4318", "http://me:pw@c", 3, "grpc://c:4317"],
        ),
    ),
    "telemetry.traces.sample_ratio": (1.0, FRACTION),
    "telemetry.traces.buffered_requests": (2048, FROM_ONE),
    "telemetry.traces.timeout_s": (5.0, POSITIVE),
    "profiles.path": ("runs/profiles.json", PATH),
    "profiles.max_decode_fit_mape": (0.05, NOT_NEGATIVE),
    "profiles.max_decode_cv_mape": (0.13, NOT_NEGATIVE),
    "controller.preset": ("reference", (["reference", "responsive"], ["", "fast", None, True])),
    "controller.advisory": (False, FLAG),
    "controller.monitor_interval_s": (1.0, ([0.001, 10], [0, -1])),
    "controller.monitor_failure_limit": (5, FROM_ONE),
    "controller.min_prefill": (1, ([1], [0, 2, 1.0])),
    "controller.min_decode": (1, ([1], [0, 2, 1.0])),
    "controller.flip_history": (1000, FROM_ONE),
    "controller.thresholds.expand": (1.0, ([0.51, 9], [0, -1, 0.5])),
    "controller.thresholds.shrink": (0.5, ([0, 0.99], [-0.1, 1])),
    "controller.thresholds.cooldown_s": (10.0, NOT_NEGATIVE),
    "controller.thresholds.sustained_intervals": (3, FROM_ONE),
    "controller.thresholds.dwell_s": (0.0, NOT_NEGATIVE),
    "controller.thresholds.panic_ratio": (0.0, ([0, 1, 2.5], [0.5, 0.999, -1])),
    "controller.thresholds.flip_resident_guard": (0, COUNT),
    "controller.reactive.window_s": (120.0, ([120, 10**6], [0, -1, 119])),
    "controller.reactive.confirmations": (2, FROM_ONE),
    "controller.reactive.utilization": (0.8, NOT_ZERO_FRACTION),
    "controller.reactive.min_arrivals": (10, FROM_ONE),
    "controller.reactive.demand_floor": (0.5, POSITIVE),
    "controller.reactive.noise_margin": (0.0, NOT_NEGATIVE),
    "controller.reactive.movement_margin": (0.05, ([0, 0.999], [1, -0.1])),
    "controller.reactive.step_s": (5.0, POSITIVE),
    "controller.reactive.source_guard": ("absolute", (["relative"], ["", "none", None, 1])),
    "controller.reactive.resident_signal": ("added", (["larger"], ["", "sum", None, 1])),
    "controller.reactive.content_below": (0.0, NOT_NEGATIVE),
    "controller.reactive.urgent": (False, FLAG),
    "controller.reactive.evidence_span_s": (60.0, ([0.1, 120], [0, -1, 121])),
    "controller.reactive.evidence_max_span_s": (120.0, ([60, 120], [0, 59, 121])),
    "controller.reactive.evidence_min_arrivals": (10, FROM_ONE),
    "controller.reactive.demand_rise_tolerance": (0.25, NOT_NEGATIVE),
    "controller.reactive.decode_correction_min": (0.5, ([0.001, 2], [0, -1, 2.1])),
    "controller.reactive.decode_correction_max": (2.0, ([0.5, 9], [0, 0.4])),
    "controller.reactive.decode_correction_alpha": (0.2, NOT_ZERO_FRACTION),
    "controller.reactive.decode_correction_min_samples": (8, FROM_ONE),
    "hardware": (None, ([None, {}, {"accelerator": "H100"}], [3, [], "H100"])),
    "engine_contract": (None, ([None, {}, {"a": [1, {"b": None}]}], [3, [], "x"])),
}
TOP = {"schema", "schema_version", "model", "slo.ttft_s", "slo.tpot_s"}
HARDWARE = {"accelerator", "accelerators_per_engine", "tensor_parallel"}
ENGINE = {"iid", "url", "role", "pin", "attestation_url"}

ACCEPTED = [(path, value) for path, (_, (good, _)) in FIELDS.items() for value in good]
REFUSED = [(path, value) for path, (_, (_, bad)) in FIELDS.items() for value in bad]


def test_the_schema_has_these_fields_and_no_others() -> None:
    below = {f"hardware.{name}" for name in HARDWARE} | {f"engines[].{name}" for name in ENGINE}
    expected = (set(FIELDS) - {"hardware"}) | TOP | below
    assert {path for path, _ in walk(FleetConfig)} == expected


@pytest.mark.parametrize("path", FIELDS)
def test_default(path: str) -> None:
    default, _ = FIELDS[path]
    value = get(parse(document()), path)
    assert value == default
    assert isinstance(value, type(default))


@pytest.mark.parametrize(("path", "value"), ACCEPTED)
def test_a_value_within_bounds_is_kept(path: str, value: object) -> None:
    made = document()
    put(made, path, value)
    kept = get(parse(made), path)
    if path != "hardware":
        assert kept == value
    if path.endswith("_s"):
        assert isinstance(kept, float)


@pytest.mark.parametrize(("path", "value"), REFUSED)
def test_a_value_out_of_bounds_is_one_line_that_names_it(path: str, value: object) -> None:
    made = document()
    put(made, path, value)
    (line,) = problems(made)
    # A rule between two fields may blame the other one; either way the path is in the line.
    assert path in line


@pytest.mark.parametrize(
    ("path", "more"),
    [
        ("schema", ': "narwhal.fleet"'),
        ("schema_version", ": 1"),
        ("model", ""),
        ("slo", ", with ttft_s and tpot_s"),
        ("slo.ttft_s", ""),
        ("slo.tpot_s", ""),
        ("engines", ", with iid and url"),
    ],
)
def test_required(path: str, more: str) -> None:
    made: Any = document()
    section, _, name = path.rpartition(".")
    del (made[section] if section else made)[name]
    assert problems(made) == [f"{path} is required{more}"]


@pytest.mark.parametrize("value", [0, -1, None, True, "2"])
@pytest.mark.parametrize("name", ["ttft_s", "tpot_s"])
def test_targets_are_positive_numbers(name: str, value: object) -> None:
    (line,) = problems(document(**{f"slo__{name}": value}))
    assert line.startswith(f"slo.{name} must be ")


def test_the_greatest_values() -> None:
    config = parse(document(model="m" * 256, serving__max_connections=2**53 - 1))
    assert (len(config.model), config.serving.max_connections) == (256, 2**53 - 1)


@pytest.mark.parametrize(
    ("path", "value", "line"),
    [
        ("schema", "other", 'schema must be "narwhal.fleet", not "other"'),
        ("schema_version", 2, "schema_version must be 1, not 2"),
        ("schema_version", True, "schema_version must be 1, not true"),
        ("schema_version", 1.0, "schema_version must be 1, not 1.0"),
        ("model", "", 'model must not be empty: ""'),
        ("model", "m" * 257, f'model must be at most 256 characters long, not "{"m" * 57}..."'),
        ("model", "m\n", 'model must not hold control characters: "m\\n"'),
        ("model", 3, "model must be text in quotes, not 3"),
        ("serving.max_attempts", 7, "serving.max_attempts must be between 1 and 3, not 7"),
        ("serving.max_connections", 2.0, "serving.max_connections must be an integer, not 2.0"),
        ("serving.max_connections", True, "serving.max_connections must be an integer, not true"),
        (
            "serving.max_connections",
            2**53,
            f"serving.max_connections must be at most {2**53 - 1} in size, not {2**53}",
        ),
        ("serving.retry_replenish", "x", 'serving.retry_replenish must be a number, not "x"'),
        ("serving.retry_replenish", [], "serving.retry_replenish must be a number, not a list"),
        (
            "serving.retry_replenish",
            float("-inf"),
            "serving.retry_replenish must be a finite number, not -Infinity",
        ),
        (
            "engine.kv_lease_s",
            10**400,
            "engine.kv_lease_s must be a finite number, not an integer of more than 40 digits",
        ),
        ("engine.tokenize", 1, "engine.tokenize must be true or false, not 1"),
        (
            "serving.admission",
            "Open",
            'serving.admission must be one of "predictive", "open", not "Open"',
        ),
        (
            "controller.thresholds.panic_ratio",
            0.5,
            "controller.thresholds.panic_ratio must be 0 or at least 1, not 0.5",
        ),
        (
            "controller.reactive.utilization",
            0,
            "controller.reactive.utilization must be greater than 0 and at most 1, not 0",
        ),
        (
            "controller.reactive.movement_margin",
            1,
            "controller.reactive.movement_margin must be at least 0 and less than 1, not 1",
        ),
        ("engine.kv_lease_s", 0, "engine.kv_lease_s must be positive, not 0"),
        ("serving.queue_capacity", -1, "serving.queue_capacity must be zero or positive, not -1"),
        ("recovery.eject_after", 0, "recovery.eject_after must be at least 1, not 0"),
        (
            "recovery.health.drift_band",
            1,
            "recovery.health.drift_band must be greater than 1, not 1",
        ),
        ("serving", [], "serving must be an object, not a list"),
        ("controller.reactive", None, "controller.reactive must be an object, not null"),
        ("hardware.tensor_parallel", 0, "hardware.tensor_parallel must be at least 1, not 0"),
        ("hardware.accelerator", 100, "hardware.accelerator must be text in quotes, not 100"),
    ],
)
def test_wording(path: str, value: object, line: str) -> None:
    made = document()
    put(made, path, value)
    assert problems(made) == [line]


# Values made in Python


def test_sections_are_made_by_keyword_with_defaults_and_can_be_evolved() -> None:
    serving = Serving(max_connections=4)
    assert (serving.max_connections, serving.max_attempts) == (4, 1)
    assert attrs.evolve(serving, max_attempts=2) == Serving(max_connections=4, max_attempts=2)
    config = FleetConfig(
        model="m",
        engines=(EngineSpec(iid="e", url="http://e:1"),),
        slo=Slo(ttft_s=1, tpot_s=1),
        serving=serving,
    )
    changed = attrs.evolve(config, engine=EngineSettings(tokenize=False))
    assert (changed.serving, changed.engine.tokenize) == (serving, False)
    assert {config, changed} == {changed, config}


def sections(kind: type) -> list[type]:
    inner = [section_of(field.type) for field in attrs.fields(kind)]
    return [kind, *(each for section in inner if section for each in sections(section))]


@pytest.mark.parametrize("section", sections(FleetConfig))
def test_sections_are_frozen_and_made_by_keyword(section: Any) -> None:
    assert all(field.kw_only for field in attrs.fields(section))
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        setattr(section.__new__(section), attrs.fields(section)[0].name, None)


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"max_attempts": 7}, "Serving.max_attempts must be between 1 and 3, not 7"),
        ({"max_attempts": True}, "Serving.max_attempts must be an integer, not true"),
        (
            {"admission": "open"},
            'Serving.admission must be one of "predictive", "open", not "open"',
        ),
        (
            {"retry_cap_s": float("inf")},
            "Serving.retry_cap_s must be a finite number, not Infinity",
        ),
    ],
)
def test_values_made_in_python_obey_types_and_bounds(settings: dict[str, Any], line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Serving(**settings)
    assert caught.value.problems == (line,)


def test_an_engine_made_in_python_obeys_as_well() -> None:
    with pytest.raises(ConfigError, match=r"EngineSpec\.url must be http"):
        EngineSpec(iid="e", url="ftp://e")
    with pytest.raises(ConfigError, match=r"EngineSpec\.url must be http"):
        EngineSpec(iid="e", url="e")
    with pytest.raises(ConfigError, match=r"EngineSpec\.iid must be 1 to 64"):
        EngineSpec(iid="", url="http://e")
    assert EngineSpec(iid="e", url="http://e").attestation_url is None
    assert EngineSpec(iid="e", url="http://E:1/", role=Role.PREFILL).url == "http://e:1"
