"""Schemas of `/narwhal/state`, made from the types that the document is made of."""

from __future__ import annotations

from typing import Any

import msgspec

from narwhal.telemetry.state_types import State


def state_schemas() -> dict[str, Any]:
    """The schema `State` and those of its parts, by name."""
    _, found = msgspec.json.schema_components([State], ref_template="#/components/schemas/{name}")
    for schema in found.values():
        del schema["title"]  # the same as its name
        if "enum" in schema:
            schema["type"] = "string"  # which generators ask for
    return found
