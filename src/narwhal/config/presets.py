"""Sets of defaults for the section `controller`, by what demand is like.

`reference` is the defaults themselves. `responsive` is for demand whose mix of prompt-heavy and
answer-heavy requests shifts within minutes: it damps by margin and window instead of by delay.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from narwhal.config.control import Preset

RESPONSIVE: Mapping[str, Any] = {
    "thresholds": {"shrink": 0.9, "cooldown_s": 5.0, "dwell_s": 8.0},
    "reactive": {
        "window_s": 20.0,
        "utilization": 0.9,
        "movement_margin": 0.12,
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
