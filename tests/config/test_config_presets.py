"""`controller.preset`: where the defaults of the section come from."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
from config_samples import ENVIRON, document, get, parse, problems
from hypothesis import given, settings
from hypothesis import strategies as st

from narwhal.config import Controller, FleetConfig, parse_fleet, unstructure_fleet
from narwhal.config.control import Preset
from narwhal.config.presets import RESPONSIVE, with_preset
from narwhal.config.settings import walk

PRESET = [
    (f"controller.{section}.{name}", value)
    for section, values in RESPONSIVE.items()
    for name, value in values.items()
]


def responsive(**more: Any) -> dict[str, Any]:
    return document(controller__preset="responsive", **more)


@pytest.mark.parametrize(("path", "value"), PRESET)
def test_responsive_puts_its_values_in_the_place_of_the_defaults(path: str, value: Any) -> None:
    assert get(parse(responsive()), path) == value
    assert get(parse(document()), path) != value


def test_it_changes_nothing_else() -> None:
    paths = [path for path, _ in walk(FleetConfig) if path.startswith("controller.")]
    plain, changed = parse(document()), parse(responsive())
    differ = {path for path in paths if get(plain, path) != get(changed, path)}
    assert differ == {path for path, _ in PRESET} | {"controller.preset"}
    assert attrs.evolve(changed, controller=plain.controller) == plain


def test_reference_is_the_defaults_themselves() -> None:
    assert parse(document(controller__preset="reference")) == parse(document())
    assert parse(document()).controller == Controller()


def test_given_values_win() -> None:
    config = parse(
        responsive(controller__thresholds__dwell_s=1.5, controller__reactive__urgent=False)
    )
    controller = config.controller
    assert (controller.thresholds.dwell_s, controller.reactive.urgent) == (1.5, False)
    # What stands beside them in the same section is the preset's all the same.
    assert controller.thresholds.cooldown_s == RESPONSIVE["thresholds"]["cooldown_s"]
    assert controller.reactive.step_s == RESPONSIVE["reactive"]["step_s"]


@pytest.mark.parametrize("path", [path for path, _ in PRESET])
def test_a_default_that_is_given_wins_too(path: str) -> None:
    """Somebody who writes the default down means it, where the rules between settings allow it."""
    default = get(parse(document()), path)
    made = responsive(
        **{
            "controller__reactive__window_s": 120.0,
            "controller__reactive__evidence_max_span_s": 120.0,
            path.replace(".", "__"): default,
        }
    )
    assert get(parse(made), path) == default


@given(st.sampled_from(Preset), st.sets(st.sampled_from(PRESET)))
@settings(max_examples=25)
def test_what_is_read_can_be_written_and_read_again(
    preset: Preset, given: set[tuple[str, Any]]
) -> None:
    more = {path.replace(".", "__"): value for path, value in given}
    if preset is Preset.REFERENCE:
        more = {
            path: value
            for path, value in more.items()
            if not path.endswith(("window_s", "_span_s"))
        }
    config = parse(document(controller__preset=preset.value, **more))
    again = parse_fleet(unstructure_fleet(config), name="fleet", environ=ENVIRON)
    assert again == config


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        (
            {"controller__preset": "fast"},
            'controller.preset must be one of "reference", "responsive", not "fast"',
        ),
        (
            {
                "controller__preset": "responsive",
                "controller__reactive__source_guard": "none",
            },
            'controller.reactive.source_guard must be one of "absolute", "relative", not "none"',
        ),
        (
            {"controller__preset": "responsive", "controller__reactive": 3},
            "controller.reactive must be an object, not 3",
        ),
        (
            {"controller__preset": "responsive", "controller__thresholds__expand": 0.9},
            "controller.thresholds.shrink must be lower than controller.thresholds.expand",
        ),
    ],
)
def test_what_is_wrong_is_named(changes: dict[str, Any], line: str) -> None:
    (found,) = problems(document(**changes))
    assert found.startswith(line)


@pytest.mark.parametrize("made", [3, None, [], {}, {"controller": None}, {"controller": 3}])
def test_what_is_no_fleet_file_is_left_for_others_to_judge(made: object) -> None:
    assert with_preset(made) is made


def test_the_document_itself_is_not_changed() -> None:
    made = responsive(controller__thresholds={"dwell_s": 1.0})
    before = repr(made)
    with_preset(made)
    assert repr(made) == before
