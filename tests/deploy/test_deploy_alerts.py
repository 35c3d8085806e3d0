"""Alert and recording rules: they name what there is, fire when they should, and say what to do."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
from monitoring_files import (
    ALERTS,
    PROMETHEUS,
    PROMTOOL,
    RECORDINGS,
    ROOT,
    known,
    promtool,
    recorded,
)
from promql import complaints, exposed, names

if TYPE_CHECKING:
    from pathlib import Path

PAGE = (ROOT / "docs/alerts.md").read_text(encoding="utf-8")
needs_promtool = pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed")


def alert_id(alert: dict[str, Any]) -> str:
    return str(alert["alert"])


@pytest.mark.parametrize("alert", ALERTS, ids=alert_id)
def test_an_alert_names_only_what_there_is(alert: dict[str, Any]) -> None:
    assert complaints(alert["expr"], known()) == []
    told = " ".join(alert["annotations"].values())
    grouped = names(alert["expr"]).grouped
    labels = {label for s in names(alert["expr"]).selectors for label in known()[s.metric]}
    shown = set(re.findall(r"\$labels\.(\w+)", told))
    assert shown <= (grouped or labels), "a label that the alert does not have would read empty"


@pytest.mark.parametrize("rule", RECORDINGS, ids=lambda rule: str(rule["record"]))
def test_a_recording_rule_names_only_what_there_is(rule: dict[str, Any]) -> None:
    assert complaints(rule["expr"], known()) == []
    assert {"job", "instance"} <= names(rule["expr"]).grouped or " / " in rule["expr"]


@pytest.mark.parametrize("alert", ALERTS, ids=alert_id)
def test_an_alert_says_how_bad_it_is_and_where_to_read_on(alert: dict[str, Any]) -> None:
    assert alert["labels"]["severity"] in ("critical", "warning", "info")
    assert {"summary", "description", "runbook"} == set(alert["annotations"])
    page, _, anchor = alert["annotations"]["runbook"].partition("#")
    assert (page, anchor) == ("docs/alerts.md", alert["alert"].lower())
    assert f"\n### {alert['alert']}\n" in PAGE


def test_the_page_has_the_alerts_that_there_are_in_their_order() -> None:
    assert re.findall(r"^### (\w+)$", PAGE, re.MULTILINE) == [alert_id(alert) for alert in ALERTS]


def test_names_of_alerts_and_rules_are_unique_and_every_rule_is_used() -> None:
    made = [alert_id(alert) for alert in ALERTS]
    assert len(set(made)) == len(made)
    used = {s.metric for rule in [*ALERTS, *RECORDINGS] for s in names(rule["expr"]).selectors}
    # The two quantiles are for people who ask by hand.
    assert set(recorded()) - used == {
        "narwhal:ttft_seconds:p95_rate5m",
        "narwhal:tpot_seconds:p95_rate5m",
    }


def test_settings_that_the_page_names_are_settings() -> None:
    settings = (ROOT / "docs/configuration.md").read_text(encoding="utf-8")
    for section, field in re.findall(r"`(serving|controller|engine|recovery)\.([\w.]+)`", PAGE):
        assert f"`{field.rpartition('.')[2]}`" in settings, f"{section}.{field}"


@needs_promtool
def test_promtool_takes_the_rules_and_the_configuration() -> None:
    checked = promtool("check", "config", "prometheus.yml", cwd=PROMETHEUS)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_every_alert_is_seen_to_fire() -> None:
    tests = (PROMETHEUS / "tests.yml").read_text(encoding="utf-8")
    assert [alert_id(alert) for alert in ALERTS if alert["alert"] not in tests] == []


@needs_promtool
def test_alerts_fire_when_they_should_and_not_otherwise() -> None:
    checked = promtool("test", "rules", "tests.yml", cwd=PROMETHEUS)
    assert checked.returncode == 0, checked.stdout + checked.stderr


@needs_promtool
@pytest.mark.parametrize(
    ("name", "right", "wrong"),
    [
        ("alerts.yml", "narwhal_draining == 0", "narwhal_draining <= 1"),
        ("alerts.yml", "> 0.05 and narwhal:answerable:rate5m > 0.1", "> 0.05"),
        ("recording.yml", 'result="missed"', 'result="met"'),
    ],
)
def test_rules_that_are_wrong_are_found(tmp_path: Path, name: str, right: str, wrong: str) -> None:
    for file in PROMETHEUS.glob("*.yml"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    text = (tmp_path / name).read_text(encoding="utf-8")
    assert right in text
    (tmp_path / name).write_text(text.replace(right, wrong), encoding="utf-8")
    assert promtool("test", "rules", "tests.yml", cwd=tmp_path).returncode == 1


@pytest.mark.parametrize(
    ("expression", "said"),
    [
        ("narwhal_nothing > 0", ["there is no metric narwhal_nothing"]),
        ("narwhal_ttft_seconds > 0", ["there is no metric narwhal_ttft_seconds"]),
        ('narwhal_seats{fase="decode"}', ["narwhal_seats has no label fase"]),
        ('narwhal_seats{phase="decoding"}', ["narwhal_seats never has phase=decoding"]),
        (
            'narwhal_engine_state{state=~"serving|served"}',
            ["narwhal_engine_state never has state=served"],
        ),
        ("sum by (engine) (narwhal_ready)", ["no metric in it has a label engine"]),
        ('narwhal_requests_ended_total{code="no_such"}', ["narwhal_requests_ended_total never"]),
        ("1 + 1", ["it selects nothing"]),
    ],
)
def test_the_check_finds_what_is_not_there(expression: str, said: list[str]) -> None:
    found = complaints(expression, exposed())
    assert len(found) == len(said)
    assert all(one.startswith(start) for one, start in zip(found, said, strict=True))


@pytest.mark.parametrize("expression", ["rate[5m]", "narwhal_ready ~ 1", "smooth(narwhal_ready)"])
def test_what_is_no_promql_is_found(expression: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        complaints(expression, exposed())
