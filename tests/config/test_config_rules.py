"""Rules between fields: each one broken, each one just met."""

from __future__ import annotations

from typing import Any

import pytest
from config_samples import MINIMAL, document, get, parse, problems
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from narwhal.config import FleetConfig, broken_rules
from narwhal.config.rules import RULES, most_samples
from narwhal.config.settings import walk

QUEUEING = {
    "serving__queue_capacity": 1,
    "serving__queue_timeout_s": 5,
    "serving__prefill_concurrency": 2,
    "serving__decode_concurrency": 8,
    "serving__handoff_timeout_s": 20,
}
RETRYING = {"serving__max_attempts": 2, "serving__handoff_timeout_s": 20}

NEEDED = "must be positive when serving.queue_capacity is positive"
QUEUE_REASON = "when serving.queue_capacity is positive"
RETRY_REASON = "when serving.max_attempts is above 1"
LEASE = "serving.handoff_timeout_s must be positive and below engine.kv_lease_s"

BROKEN: list[tuple[dict[str, Any], str]] = [
    ({**QUEUEING, "serving__queue_timeout_s": 0}, f"serving.queue_timeout_s {NEEDED}"),
    ({**QUEUEING, "serving__prefill_concurrency": 0}, f"serving.prefill_concurrency {NEEDED}"),
    ({**QUEUEING, "serving__decode_concurrency": 0}, f"serving.decode_concurrency {NEEDED}"),
    ({**QUEUEING, "serving__handoff_timeout_s": 0}, f"{LEASE} (30) {QUEUE_REASON}, not 0"),
    ({**QUEUEING, "serving__handoff_timeout_s": 30}, f"{LEASE} (30) {QUEUE_REASON}, not 30"),
    ({**QUEUEING, "engine__kv_lease_s": 20}, f"{LEASE} (20) {QUEUE_REASON}, not 20"),
    ({"serving__max_attempts": 2}, f"{LEASE} (30) {RETRY_REASON}, not 0"),
    ({**RETRYING, "serving__handoff_timeout_s": 40.5}, f"{LEASE} (30) {RETRY_REASON}, not 40.5"),
    (
        {"serving__retry_base_s": 2},
        "serving.retry_cap_s must be at least serving.retry_base_s (2), not 1",
    ),
    (
        {"serving__metrics_need_key": True},
        "serving.metrics_need_key needs serving.api_key_env or serving.api_keys_file",
    ),
    ({"serving__tls_key_file": "k"}, "serving.tls_key_file needs serving.tls_cert_file"),
    ({"control__tls_key_file": "k"}, "control.tls_key_file needs control.tls_cert_file"),
    (
        {"control__tls_client_ca_file": "k"},
        "control.tls_client_ca_file needs control.tls_cert_file",
    ),
    (
        {"controller__thresholds__shrink": 1},
        "controller.thresholds.shrink must be lower than controller.thresholds.expand (1), not 1",
    ),
    (
        {"controller__min_prefill": 2},
        (
            "controller.min_prefill and controller.min_decode must fit the fleet, which has 2 "
            "engines: 2 and 1 do not"
        ),
    ),
    (
        {"engines": MINIMAL["engines"][:1], "controller__min_decode": 2},
        (
            "controller.min_prefill and controller.min_decode must fit the fleet, which has 1 "
            "engine: 1 and 2 do not"
        ),
    ),
    (
        {"recovery__health__min_samples": 31},
        (
            "recovery.health.min_samples must be at most 30, not 31: recovery.health.window_s (30) "
            "holds that many passes of controller.monitor_interval_s (1)"
        ),
    ),
    (
        {"controller__monitor_interval_s": 10.1},
        (
            "recovery.health.min_samples must be at most 2, not 3: recovery.health.window_s (30) "
            "holds that many passes of controller.monitor_interval_s (10.1)"
        ),
    ),
    (
        {"controller__reactive__evidence_span_s": 120.5},
        (
            "controller.reactive.evidence_span_s must be at most "
            "controller.reactive.evidence_max_span_s (120), not 120.5"
        ),
    ),
    (
        {"controller__reactive__window_s": 100},
        (
            "controller.reactive.evidence_max_span_s must be at most "
            "controller.reactive.window_s (100), not 120"
        ),
    ),
    (
        {"controller__reactive__decode_correction_max": 0.25},
        (
            "controller.reactive.decode_correction_max must be at least "
            "controller.reactive.decode_correction_min (0.5), not 0.25"
        ),
    ),
]

MET: list[dict[str, Any]] = [
    QUEUEING,
    RETRYING,
    {**QUEUEING, **RETRYING},
    {**RETRYING, "serving__handoff_timeout_s": 29.999},
    {**QUEUEING, "serving__queue_timeout_s": 0.001, "serving__handoff_timeout_s": 0.001},
    # Without queue and retries these settle nothing, and are not refused.
    {"serving__handoff_timeout_s": 300},
    {"serving__queue_timeout_s": 5},
    {"serving__prefill_concurrency": 1, "serving__decode_concurrency": 1},
    # The tighter of two limits holds; that is no mistake.
    {"serving__request_timeout_s": 1, "serving__prefill_timeout_s": 100},
    {"serving__retry_base_s": 1},
    {"controller__thresholds__shrink": 0.999},
    {"serving__metrics_need_key": True, "serving__api_keys_file": "keys"},
    {"control__tls_cert_file": "c", "control__tls_client_ca_file": "a"},
    {"engines": MINIMAL["engines"][:1]},
    # Where the fleet starts, or is pinned, is not the loader's business.
    {"engines": [{**each, "role": "decode", "pin": True} for each in MINIMAL["engines"]]},
    {"recovery__health__min_samples": 30},
    {"recovery__health__window_s": 0.3, "controller__monitor_interval_s": 0.1},
    {
        "controller__reactive__evidence_span_s": 7,
        "controller__reactive__evidence_max_span_s": 7,
        "controller__reactive__window_s": 7,
    },
    {
        "controller__reactive__decode_correction_min": 1,
        "controller__reactive__decode_correction_max": 1,
    },
    {"recovery__health__probation_windows": 9, "recovery__health__evict_windows": 1},
]


@pytest.mark.parametrize(("settings", "line"), BROKEN)
def test_broken(settings: dict[str, Any], line: str) -> None:
    assert problems(document(**settings)) == [line]


@pytest.mark.parametrize("settings", MET)
def test_met(settings: dict[str, Any]) -> None:
    assert problems(document(**settings)) == []


def test_every_rule_is_broken_by_some_example() -> None:
    blamed = {line.split(" ")[0] for _, line in BROKEN}
    assert blamed == {rule.field for rule in RULES}


def test_rules_name_fields_that_exist() -> None:
    known = {path for path, _ in walk(FleetConfig)} | {"engines"}
    assert {name for rule in RULES for name in (rule.field, *rule.others)} <= known


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: str(rule.field))
def test_a_rule_declares_all_it_reads(rule: Any) -> None:
    """Values for the declared fields from a broken config alone must break the rule again."""
    (settings,) = [made for made, line in BROKEN if line.startswith(f"{rule.field} ")][:1]
    broken = _parse_unchecked(settings)
    other = parse(document())
    declared = _Mixed(other, {name: get(broken, name) for name in (rule.field, *rule.others)})
    assert rule.broken(declared) == rule.broken(broken) is not None


class _Mixed:
    """A config whose given paths come from elsewhere."""

    def __init__(self, base: object, values: dict[str, object], prefix: str = "") -> None:
        self._base, self._values, self._prefix = base, values, prefix

    def __getattr__(self, name: str) -> Any:
        path = self._prefix + name
        if path in self._values:
            return self._values[path]
        inner = getattr(self._base, name)
        nested = any(known.startswith(f"{path}.") for known in self._values)
        return _Mixed(inner, self._values, f"{path}.") if nested else inner


def _parse_unchecked(settings: dict[str, Any]) -> FleetConfig:
    from narwhal.config.structure import structure_fleet

    return structure_fleet(document(**settings), {})


def test_a_config_made_in_python_can_be_asked() -> None:
    config = _parse_unchecked({"serving__max_attempts": 2})
    (fault,) = broken_rules(config)
    assert fault.path == "serving.handoff_timeout_s"
    assert broken_rules(parse(document())) == []


def test_a_rule_is_left_out_where_a_value_could_not_be_read() -> None:
    lines = problems(document(serving__retry_base_s=2, serving__retry_cap_s="1"))
    assert lines == ['serving.retry_cap_s must be a number, not "1"']
    lines = problems(document(serving=3, engine__kv_lease_s=1))
    assert lines == ["serving must be an object, not 3"]


def test_a_rule_is_judged_beside_other_mistakes() -> None:
    lines = problems(document(serving__retry_base_s=2, serving__max_attempts=9, slo__ttft_s=0))
    assert lines == [
        "slo.ttft_s must be positive, not 0",
        "serving.max_attempts must be between 1 and 3, not 9",
        "serving.retry_cap_s must be at least serving.retry_base_s (2), not 1",
    ]


@pytest.mark.parametrize(
    ("window", "interval", "most"),
    [(30, 1, 30), (0.3, 0.1, 3), (1, 0.1, 10), (0.7, 0.1, 7), (1, 3, 0), (2.9, 1, 2)],
)
def test_passes_are_counted_in_the_numbers_as_written(
    window: float, interval: float, most: int
) -> None:
    assert most_samples(window, interval) == most


@given(st.integers(1, 10**4), st.integers(1, 10**3))
@hypothesis_settings(deadline=None)
def test_passes_in_thousandths(window: int, interval: int) -> None:
    assert most_samples(window / 1000, interval / 1000) == window // interval
