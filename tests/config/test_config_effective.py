"""What follows from the settings: derived sizes, limits as they will hold, the report."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from config_samples import document, fleets, get, parse
from hypothesis import given, settings

from narwhal.config import FleetConfig, effective, read_fleet
from narwhal.config.effective import EffectiveLimit, Source
from narwhal.config.report import as_json, as_text, rows
from narwhal.config.settings import walk
from narwhal.model import Limit

if TYPE_CHECKING:
    from pathlib import Path


def fleet_of(count: int, **settings: Any) -> FleetConfig:
    engines = [{"iid": f"e{index}", "url": f"http://h{index}"} for index in range(count)]
    return parse(document(engines=engines, **settings))


@pytest.mark.parametrize(
    ("engines", "setting", "expected"), [(1, 0, 4), (2, 0, 4), (3, 0, 6), (9, 0, 18), (9, 1, 1)]
)
def test_control_connections(engines: int, setting: int, expected: int) -> None:
    config = fleet_of(engines, engine__control_connections=setting)
    assert effective.control_connections(config) == config.control_connections == expected


def test_retained_limit() -> None:
    config = fleet_of(
        2,
        serving__max_connections=7,
        serving__queue_capacity=5,
        serving__queue_timeout_s=1,
        serving__prefill_concurrency=1,
        serving__decode_concurrency=1,
        serving__handoff_timeout_s=1,
    )
    assert effective.retained_limit(config) == config.retained_limit == 12


def limit_of(which: Limit, **settings: Any) -> EffectiveLimit:
    (found,) = [each for each in effective.limits(fleet_of(2, **settings)) if each.limit is which]
    return found


def test_every_limit_once_and_each_from_a_setting_that_exists() -> None:
    found = effective.limits(fleet_of(2))
    assert sorted(each.limit for each in found) == sorted(Limit)
    assert {each.field for each in found} <= {path for path, _ in walk(FleetConfig)}
    assert len({each.field for each in found}) == len(found)


@pytest.mark.parametrize(
    ("which", "seconds", "bound"),
    [
        (Limit.REQUEST, 600, "600 s"),
        (Limit.QUEUE, None, "not used"),
        (Limit.TOKENIZE, 2, "2 s"),
        (Limit.PREFILL, 120, "120 s"),
        (Limit.HANDOFF, 600, "request deadline (600 s)"),
        (Limit.FIRST_TOKEN, 2.5, "2.5 s"),
        (Limit.READ_GAP, 60, "60 s"),
        (Limit.POOL, 5, "5 s"),
        (Limit.CONNECT, 10, "10 s"),
        (Limit.HEALTH, 5, "5 s"),
        (Limit.GRACE, 30, "30 s"),
    ],
)
def test_limits_of_the_defaults(which: Limit, seconds: float | None, bound: str) -> None:
    found = limit_of(which)
    assert (found.seconds, found.bound) == (seconds, bound)


def test_a_limit_inside_a_request_is_no_longer_than_the_request() -> None:
    for which in (Limit.PREFILL, Limit.READ_GAP, Limit.POOL, Limit.FIRST_TOKEN, Limit.CONNECT):
        found = limit_of(which, serving__request_timeout_s=1.5)
        assert (found.seconds, found.source) == (1.5, Source.REQUEST)
    for which in (Limit.HEALTH, Limit.GRACE):
        assert limit_of(which, serving__request_timeout_s=1.5).source is Source.OWN


def test_limits_that_zero_hands_over_to_the_request() -> None:
    gap = limit_of(Limit.READ_GAP, engine__decode_read_timeout_s=0)
    assert (gap.seconds, gap.source) == (600, Source.REQUEST)
    grace = limit_of(Limit.GRACE, serving__graceful_timeout_s=0)
    assert (grace.seconds, grace.source, grace.bound) == (0, Source.OWN, "0 s")


def test_limits_that_are_off_or_on() -> None:
    assert limit_of(Limit.TOKENIZE, engine__tokenize=False).source is Source.OFF
    queue = limit_of(
        Limit.QUEUE,
        serving__queue_capacity=1,
        serving__queue_timeout_s=4,
        serving__prefill_concurrency=1,
        serving__decode_concurrency=1,
        serving__handoff_timeout_s=9,
    )
    assert (queue.seconds, queue.source) == (4, Source.OWN)


def test_the_handoff_row_tells_of_the_lease() -> None:
    found = limit_of(Limit.HANDOFF, serving__handoff_timeout_s=9, engine__kv_lease_s=12.5)
    assert found.seconds == 9
    assert "engine.kv_lease_s (12.5 s)" in found.fires


@given(fleets())
@settings(deadline=None, max_examples=30)
def test_limits_of_any_fleet(config: FleetConfig) -> None:
    for each in effective.limits(config):
        own = get(config, each.field)
        assert isinstance(own, float)
        if each.seconds is None:
            assert each.limit in {Limit.QUEUE, Limit.TOKENIZE}
        elif each.source is Source.OWN:
            assert each.seconds == own
        else:
            assert each.seconds == config.serving.request_timeout_s
            assert own == 0 or own > each.seconds


# The report


def loaded(tmp_path: Path, **settings: Any) -> Any:
    path = tmp_path / "fleet.json"
    path.write_text(json.dumps(document(**settings)))
    return read_fleet(path, environ={"KEY": "hush"})


def test_the_report_has_every_setting_and_its_origin(tmp_path: Path) -> None:
    found = loaded(tmp_path, serving__max_connections=512, engine__engine_api_key_env="KEY")
    by_path = {row.path: row for row in rows(found)}
    names = {path for path, _ in walk(FleetConfig)}
    engines = {f"engines[{index}]." for index in range(2)}
    expected = {path for path in names if not path.startswith(("engines", "hardware."))}
    expected |= {
        path.replace("engines[].", engine)
        for engine in engines
        for path in names
        if path.startswith("engines")
    }
    assert set(by_path) == expected | {"hardware"}
    assert by_path["serving.max_connections"].given
    assert not by_path["serving.max_attempts"].given
    assert by_path["engines[0].role"].value == "prefill"
    assert not by_path["engines[1].role"].given
    assert by_path["slo.ttft_s"].unit == "s"


def test_the_report_for_programs(tmp_path: Path) -> None:
    made = loaded(tmp_path, serving__max_connections=3, engine__engine_api_key_env="KEY")
    report: Any = json.loads(json.dumps(as_json(made), allow_nan=False))
    assert report["settings"]["serving.max_connections"] == {
        "value": 3,
        "origin": "file",
        "unit": "requests",
    }
    assert report["settings"]["serving.admission"]["origin"] == "default"
    assert report["derived"] == {"control_connections": 4, "retained_limit": 3}
    assert len(report["limits"]) == len(Limit)
    assert "hush" not in json.dumps(report)


def test_the_report_for_people(tmp_path: Path) -> None:
    found = as_text(
        loaded(
            tmp_path,
            serving__max_connections=3,
            engine__engine_api_key_env="KEY",
            engine_contract={"esc": "\x1b[31m\x9b\ud800"},
        )
    )
    lines = [" ".join(line.split()) for line in found.splitlines()]
    assert "serving.max_connections 3 requests file" in lines
    assert "serving.max_attempts 1 attempts default" in lines
    assert 'engine.engine_api_key_env "KEY" file' in lines
    assert 'engine_contract {"esc": "\\u001b[31m\\u009b\\ud800"} file' in lines
    assert "retained_limit 3" in lines
    assert any(line.startswith("queue not used serving.queue_timeout_s") for line in lines)
    assert "hush" not in found
    assert all(line.isprintable() for line in found.splitlines())
