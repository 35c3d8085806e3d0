"""What is made from the schema: reference page, example file, notes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from config_samples import parse

from narwhal.config import Admission, FleetConfig, Serving, load_fleet
from narwhal.config.example import example_fleet, example_text
from narwhal.config.reference import markdown
from narwhal.config.rules import RULES
from narwhal.config.settings import is_required, setting_of, walk
from narwhal.model import Limit, Role

ROOT = Path(__file__).parents[2]


def test_the_reference_page_on_disk_is_the_one_that_is_made() -> None:
    page = (ROOT / "docs/configuration.md").read_text(encoding="utf-8")
    assert page == markdown(), "python -m narwhal.config.reference > docs/configuration.md"


def test_the_reference_page_has_every_field_rule_and_limit() -> None:
    page = markdown()
    sections = page.split("\n## ")
    for path, field in walk(FleetConfig):
        section, _, name = path.rpartition(".")
        title = f"`{section}`\n" if section else "Top level\n"
        (body,) = [each for each in sections if each.startswith(title)]
        (row,) = [line for line in body.splitlines() if line.startswith(f"| `{name}` |")]
        assert setting_of(field).help in row
        assert row.count(" | ") == 4
    assert all(f"- `{rule.field}`: {rule.says}" in page for rule in RULES)
    assert all(f"| `{limit.value}` |" in page for limit in Limit)


@pytest.mark.parametrize("path", [path for path, _ in walk(FleetConfig)])
def test_every_setting_is_explained_in_one_piece(path: str) -> None:
    setting = setting_of(dict(walk(FleetConfig))[path])
    assert setting.help.endswith(".")
    assert "\n" not in setting.help
    assert "|" not in setting.help


def test_the_example_on_disk_is_the_one_that_is_made() -> None:
    text = (ROOT / "configs/fleet.example.json").read_text(encoding="utf-8")
    assert text == example_text(), "narwhal-trio config example > configs/fleet.example.json"


def test_the_example_is_complete_valid_and_noted() -> None:
    document = json.loads(example_text())
    assert parse(document) == example_fleet()
    for path, field in walk(FleetConfig):
        *steps, name = path.split(".")
        section = document
        for step in steps:
            section = section["engines"][0] if step == "engines[]" else section[step]
        assert name in section
        note = section["_notes"][name]
        assert setting_of(field).help.replace("`", "'") in note
        assert ("Required." in note) == is_required(field)


def test_the_example_has_the_defaults() -> None:
    example = example_fleet()
    plain = FleetConfig(
        model=example.model,
        engines=example.engines,
        slo=example.slo,
        serving=Serving(admission=Admission.OPEN),  # what can be served without profiles
    )
    for name in ("serving", "engine", "controller", "recovery", "profiles", "telemetry"):
        assert getattr(example, name) == getattr(plain, name)


def test_the_demo_fleet() -> None:
    config = load_fleet(ROOT / "configs/demo.json", environ={})
    assert [(engine.host, engine.port) for engine in config.engines] == [
        ("127.0.0.1", port) for port in range(9101, 9105)
    ]
    assert [engine.role for engine in config.engines] == [*[Role.PREFILL] * 2, *[Role.DECODE] * 2]
    assert config.serving.admission is Admission.OPEN
