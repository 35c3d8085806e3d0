"""Whatever the document: a config or a list of mistakes, never anything else."""

from __future__ import annotations

import copy
import json
from typing import Any

from config_samples import ENVIRON, MINIMAL, fleets, json_values
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from narwhal.config import FleetConfig, broken_rules, parse_fleet, unstructure_fleet
from narwhal.config.document import JsonObject, parse_json
from narwhal.config.example import example_fleet
from narwhal.config.faults import Faults
from narwhal.model import ConfigError

FULL = unstructure_fleet(example_fleet())


def judged(document: object) -> FleetConfig | None:
    """A valid config or `None`; any exception but `ConfigError` passes through."""
    try:
        config = parse_fleet(document, name="f.json", environ=ENVIRON)
    except ConfigError as error:
        lines = error.problems
    else:
        assert broken_rules(config) == []
        return config
    assert lines
    assert all(line.startswith("f.json: ") and line.isprintable() for line in lines)
    return None


@given(json_values)
@settings(deadline=None)
def test_any_document(document: object) -> None:
    judged(document)


@st.composite
def damaged(draw: st.DrawFn) -> object:
    """A complete document in which a few places hold something else."""
    document: Any = copy.deepcopy(draw(st.sampled_from([FULL, MINIMAL])))
    for _ in range(draw(st.integers(1, 4))):
        place = document
        while True:
            keys = list(place) if isinstance(place, dict) else list(range(len(place)))
            if not keys:
                break
            key = draw(st.sampled_from(keys))
            if isinstance(place[key], dict | list) and draw(st.booleans()):
                place = place[key]
                continue
            if draw(st.booleans()):
                place[key] = draw(json_values)
            elif isinstance(place, dict):
                value = place.pop(key)
                place[draw(st.text(max_size=8))] = value
            break
    return document


@given(damaged())
@settings(deadline=None, max_examples=200)
def test_a_damaged_document(document: object) -> None:
    judged(document)


@given(damaged())
@settings(deadline=None)
def test_reading_it_from_text_makes_no_difference(document: object) -> None:
    text = json.dumps(document)
    assert judged(parse_json(text.encode())) == judged(document)


@given(st.binary() | st.text().map(str.encode))
@settings(deadline=None)
def test_any_bytes(content: bytes) -> None:
    lines: tuple[str, ...] = ("one",)
    try:
        parse_json(content)
    except Faults as faults:
        lines = faults.problems
    assert len(lines) == 1


@given(fleets())
@settings(deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow])
def test_a_valid_config_survives_being_written_and_read(config: FleetConfig) -> None:
    document = unstructure_fleet(config)
    assert judged(document) == config
    assert judged(parse_json(json.dumps(document).encode())) == config


@given(st.lists(st.tuples(st.text(max_size=2), st.integers()), max_size=6))
@settings(deadline=None)
def test_repeated_keys_are_all_found(pairs: list[tuple[str, object]]) -> None:
    keys = [key for key, _ in pairs]
    assert set(JsonObject(pairs).repeated) == {key for key in keys if keys.count(key) > 1}
