"""A complete fleet file to start from: every setting, its default, and a note on each."""

from __future__ import annotations

import json

import attrs

from narwhal.config.describe import note
from narwhal.config.fleet import EngineSpec, FleetConfig, Hardware
from narwhal.config.serving import Admission, Serving
from narwhal.config.settings import fields_of, section_of, setting_of
from narwhal.config.structure import unstructure_fleet
from narwhal.model import Role

_HEAD = (
    "Keys that begin with an underscore are notes and mean nothing. Every setting is here with "
    "its default, but for serving.admission, whose default needs measured profiles; leave out "
    "what you do not change. 'narwhal-trio config check FILE' tells what is wrong with a file."
)


def example_fleet() -> FleetConfig:
    """The fleet of the example: two engines for each role, every setting at its default.

    But for admission, which would need profiles of the engines.
    """
    engines = tuple(
        EngineSpec(
            iid=f"{role[0]}{index}", url=f"http://10.0.{network}.{index + 1}:8000", role=role
        )
        for network, role in enumerate((Role.PREFILL, Role.DECODE))
        for index in range(2)
    )
    fields = attrs.fields_dict(FleetConfig)
    hardware = {each.name: setting_of(each).example for each in fields_of(Hardware)}
    return FleetConfig(
        model=setting_of(fields["model"]).example,
        hardware=Hardware(**hardware),
        engines=engines,
        engine_contract=setting_of(fields["engine_contract"]).example,
        slo=setting_of(fields["slo"]).example,
        serving=Serving(admission=Admission.OPEN),
    )


def example_text() -> str:
    """The example file: JSON that `config check` accepts, notes in each section."""
    document = unstructure_fleet(example_fleet())
    noted = {"_about": _HEAD, **_with_notes(document, FleetConfig)}
    return json.dumps(noted, indent=2) + "\n"


def _with_notes(document: dict[str, object], section: type) -> dict[str, object]:
    notes: dict[str, object] = {field.name: note(field) for field in fields_of(section)}
    noted: dict[str, object] = {"_notes": notes}
    for field in fields_of(section):
        value, inner = document[field.name], section_of(field.type)
        if inner and isinstance(value, dict):
            value = _with_notes(value, inner)
        elif inner and isinstance(value, list):
            value = [_with_notes(value[0], inner), *value[1:]]
        noted[field.name] = value
    return noted
