"""Rules between fields: what no single field can tell.

Each refuses only what cannot work. Where a combination is merely pointless (a prefill deadline
beyond the request's, say) the tighter limit holds and nothing is refused.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import TYPE_CHECKING

import attrs

from narwhal.config.bounds import number
from narwhal.config.faults import Fault

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from narwhal.config.fleet import FleetConfig


@attrs.frozen(kw_only=True)
class Rule:
    """One rule between fields."""

    field: str
    """The field that a message blames."""
    others: tuple[str, ...]
    """The other fields it looks at. It is left out when one of them could not be read."""
    says: str
    """The rule in a sentence, for the reference."""
    broken: Callable[[FleetConfig], str | None]
    """What is wrong, to be read after the field's name; `None` if the rule holds."""


def _needed_for_queueing(name: str) -> Rule:
    def broken(config: FleetConfig) -> str | None:
        serving = config.serving
        if serving.queue_capacity == 0 or getattr(serving, name) > 0:
            return None
        return "must be positive when serving.queue_capacity is positive"

    return Rule(
        field=f"serving.{name}",
        others=("serving.queue_capacity",),
        says="positive when `serving.queue_capacity` is positive.",
        broken=broken,
    )


def _handoff(config: FleetConfig) -> str | None:
    serving = config.serving
    if serving.queue_capacity > 0:
        reason = "serving.queue_capacity is positive"
    elif serving.max_attempts > 1:
        reason = "serving.max_attempts is above 1"
    else:
        return None
    if 0 < serving.handoff_timeout_s < config.engine.kv_lease_s:
        return None
    return (
        f"must be positive and below engine.kv_lease_s ({number(config.engine.kv_lease_s)}) "
        f"when {reason}, not {number(serving.handoff_timeout_s)}"
    )


def _retry_cap(config: FleetConfig) -> str | None:
    base, cap = config.serving.retry_base_s, config.serving.retry_cap_s
    return None if cap >= base else _at_least("serving.retry_base_s", base, cap)


def _shrink(config: FleetConfig) -> str | None:
    thresholds = config.controller.thresholds
    if thresholds.shrink < thresholds.expand:
        return None
    return (
        f"must be lower than controller.thresholds.expand ({number(thresholds.expand)}), "
        f"not {number(thresholds.shrink)}"
    )


def _floors(config: FleetConfig) -> str | None:
    controller, engines = config.controller, len(config.engines)
    floors = controller.min_prefill + controller.min_decode
    alone = engines == 1 and controller.min_prefill == controller.min_decode == 1
    if floors <= engines or alone:
        return None
    has = "1 engine" if engines == 1 else f"{engines} engines"
    return (
        f"and controller.min_decode must fit the fleet, which has {has}: "
        f"{controller.min_prefill} and {controller.min_decode} do not"
    )


def most_samples(window_s: float, interval_s: float) -> int:
    """Monitor passes in a window: `floor(window_s / interval_s)`, of the numbers as written.

    In binary, 0.3 / 0.1 is a little less than 3; whoever wrote these meant 3.
    """
    return math.floor(Fraction(repr(float(window_s))) / Fraction(repr(float(interval_s))))


def _samples(config: FleetConfig) -> str | None:
    health, interval = config.recovery.health, config.controller.monitor_interval_s
    most = most_samples(health.window_s, interval)
    if health.min_samples <= most:
        return None
    return (
        f"must be at most {most}, not {health.min_samples}: recovery.health.window_s "
        f"({number(health.window_s)}) holds that many passes of controller.monitor_interval_s "
        f"({number(interval)})"
    )


def _evidence_span(config: FleetConfig) -> str | None:
    span = config.controller.reactive.evidence_span_s
    most = config.controller.reactive.evidence_max_span_s
    if span <= most:
        return None
    return _at_most("controller.reactive.evidence_max_span_s", most, span)


def _evidence_max_span(config: FleetConfig) -> str | None:
    span = config.controller.reactive.evidence_max_span_s
    window = config.controller.reactive.window_s
    return None if span <= window else _at_most("controller.reactive.window_s", window, span)


def _correction(config: FleetConfig) -> str | None:
    low = config.controller.reactive.decode_correction_min
    high = config.controller.reactive.decode_correction_max
    if high >= low:
        return None
    return _at_least("controller.reactive.decode_correction_min", low, high)


def _goes_with(field: str, *others: str) -> Rule:
    """`field` means nothing without one of `others`; its own section has them all."""

    def broken(config: FleetConfig) -> str | None:
        section = getattr(config, field.partition(".")[0])
        values = [getattr(section, name.partition(".")[2]) for name in (field, *others)]
        if not values[0] or any(values[1:]):
            return None
        return f"needs {' or '.join(others)}"

    names = " or ".join(f"`{other}`" for other in others)
    return Rule(field=field, others=others, says=f"only with {names}.", broken=broken)


def _at_least(other: str, bound: float, value: float) -> str:
    return f"must be at least {other} ({number(bound)}), not {number(value)}"


def _at_most(other: str, bound: float, value: float) -> str:
    return f"must be at most {other} ({number(bound)}), not {number(value)}"


RULES: tuple[Rule, ...] = (
    _needed_for_queueing("queue_timeout_s"),
    _needed_for_queueing("prefill_concurrency"),
    _needed_for_queueing("decode_concurrency"),
    Rule(
        field="serving.handoff_timeout_s",
        others=("serving.queue_capacity", "serving.max_attempts", "engine.kv_lease_s"),
        says=(
            "positive and below `engine.kv_lease_s` when requests may wait "
            "(`serving.queue_capacity` positive) or be tried again (`serving.max_attempts` above "
            "1). Otherwise any value will do: a handoff older than the lease is never sent."
        ),
        broken=_handoff,
    ),
    Rule(
        field="serving.retry_cap_s",
        others=("serving.retry_base_s",),
        says="at least `serving.retry_base_s`, whether or not retries are on.",
        broken=_retry_cap,
    ),
    _goes_with("serving.metrics_need_key", "serving.api_key_env", "serving.api_keys_file"),
    _goes_with("serving.tls_key_file", "serving.tls_cert_file"),
    _goes_with("control.tls_key_file", "control.tls_cert_file"),
    _goes_with("control.tls_client_ca_file", "control.tls_cert_file"),
    Rule(
        field="controller.thresholds.shrink",
        others=("controller.thresholds.expand",),
        says="lower than `controller.thresholds.expand`.",
        broken=_shrink,
    ),
    Rule(
        field="controller.min_prefill",
        others=("controller.min_decode", "engines"),
        says=(
            "together with `controller.min_decode` at most the number of engines. A single "
            "engine with both at 1 is accepted: it runs both legs. Roles and pins are not "
            "looked at: a fleet that starts below a floor is brought up to it, or reported."
        ),
        broken=_floors,
    ),
    Rule(
        field="recovery.health.min_samples",
        others=("recovery.health.window_s", "controller.monitor_interval_s"),
        says=(
            "at most `recovery.health.window_s` divided by `controller.monitor_interval_s`, "
            "rounded down, reckoned with the decimal numbers as written."
        ),
        broken=_samples,
    ),
    Rule(
        field="controller.reactive.evidence_span_s",
        others=("controller.reactive.evidence_max_span_s",),
        says="at most `controller.reactive.evidence_max_span_s`.",
        broken=_evidence_span,
    ),
    Rule(
        field="controller.reactive.evidence_max_span_s",
        others=("controller.reactive.window_s",),
        says="at most `controller.reactive.window_s`.",
        broken=_evidence_max_span,
    ),
    Rule(
        field="controller.reactive.decode_correction_max",
        others=("controller.reactive.decode_correction_min",),
        says="at least `controller.reactive.decode_correction_min`.",
        broken=_correction,
    ),
)


def broken_rules(config: FleetConfig, *, unread: Collection[str] = ()) -> list[Fault]:
    """The rules that `config` breaks, as faults of the fields to blame.

    `unread` are the paths at which `config` holds placeholders: what rests on one of them (or on
    a part of a section that is missing altogether) is not judged.
    """
    faults = []
    for rule in RULES:
        if any(_covers(path, field) for path in unread for field in (rule.field, *rule.others)):
            continue
        if text := rule.broken(config):
            faults.append(Fault(rule.field, text))
    return faults


def _covers(path: str, field: str) -> bool:
    return field == path or field.startswith(f"{path}.")
