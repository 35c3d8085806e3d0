"""Sets of defaults for the section `controller`, by what demand is like.

`reference` is the defaults themselves. `responsive` is for demand whose mix of prompt-heavy and
answer-heavy requests shifts within minutes: it damps by margin and window instead of by delay.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from narwhal.config.control import Preset, Reactive, Thresholds

if TYPE_CHECKING:
    from collections.abc import Collection

    from narwhal.config.fleet import FleetConfig

RESPONSIVE: Mapping[str, Any] = {
    "thresholds": {"shrink": 0.9, "cooldown_s": 5.0, "dwell_s": 8.0},
    "reactive": {
        "window_s": 20.0,
        "utilization": 0.9,
        "movement_margin": 0.12,
        "noise_margin": 1.2,
        "step_s": 2.0,
        "source_guard": "relative",
        "resident_signal": "larger",
        "content_below": 0.8,
        "urgent": True,
        "evidence_span_s": 10.0,
        "evidence_max_span_s": 15.0,
        "demand_rise_tolerance": 0.5,
    },
}
"""What `controller.preset` `responsive` puts in the place of the defaults."""

_PLAIN: Mapping[str, Thresholds | Reactive] = {
    "thresholds": Thresholds(),
    "reactive": Reactive(),
}
"""The defaults of those sections."""


def with_preset(document: object) -> object:
    """The document of a fleet file with what its preset adds to its section `controller`.

    What the file gives itself stays, right or wrong: this judges nothing.
    """
    if not isinstance(document, Mapping):
        return document
    controller = document.get("controller")
    if not isinstance(controller, Mapping) or controller.get("preset") != Preset.RESPONSIVE:
        return document
    merged: dict[Any, Any] = {**document, "controller": {**controller}}
    for section, values in RESPONSIVE.items():
        given = controller.get(section, {})
        if isinstance(given, Mapping):
            merged["controller"][section] = {**values, **given}
    return merged


def overruled(config: FleetConfig, given: Collection[str]) -> tuple[str, ...]:
    """Settings of the preset that a file overrules with what they are without it.

    `given` are the paths that the file gave. A file that was begun as a copy of the example gives
    all of them; the preset then does nothing.
    """
    if config.controller.preset is not Preset.RESPONSIVE:
        return ()
    return tuple(
        path
        for section, values in RESPONSIVE.items()
        for name in values
        if (path := f"controller.{section}.{name}") in given
        and getattr(getattr(config.controller, section), name) == getattr(_PLAIN[section], name)
    )


def without_copied_defaults(document: Mapping[str, Any]) -> dict[str, Any]:
    """The document without settings of the preset that are as they are without it.

    So that another preset makes a difference to a file that has every setting in it.
    """
    controller = document.get("controller")
    if not isinstance(controller, Mapping):
        return dict(document)
    kept = dict(controller)
    for section, values in RESPONSIVE.items():
        given = controller.get(section)
        if isinstance(given, Mapping):
            kept[section] = {
                name: value
                for name, value in given.items()
                if name not in values or value != getattr(_PLAIN[section], name)
            }
    return {**document, "controller": kept}


def table() -> str:
    """Both presets, as a table in Markdown: what is not in it is the same in both."""
    lines = ["| Setting | `reference` | `responsive` |", "|---|---|---|"]
    for section, values in RESPONSIVE.items():
        for name, value in values.items():
            default = json.dumps(getattr(_PLAIN[section], name))
            lines.append(f"| `controller.{section}.{name}` | `{default}` | `{json.dumps(value)}` |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(table())  # noqa: T201 - it is what this is for
