"""States of routers against the schema that `/openapi.json` has of them."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from jsonschema import Draft202012Validator

from narwhal import Router
from narwhal.app.openapi import openapi_document


@cache
def _validator() -> Any:
    document = json.loads(openapi_document({}, model="m", engines=["p0"]))
    # A reference into the document stays one, as it is asked with the document around it.
    whole = {"$ref": "#/components/schemas/State", "components": document["components"]}
    return Draft202012Validator(whole)


def check_state(state: bytes) -> Any:
    """What `state` says; an `AssertionError` if it is not as it is described."""
    found = json.loads(state)
    wrong = [f"{error.json_path}: {error.message}" for error in _validator().iter_errors(found)]
    if wrong:
        raise AssertionError("; ".join(wrong))
    return found


def check_state_of(router: Router, now: float) -> Any:
    """The same of a router, at a time of its own clock."""
    return check_state(router.telemetry.state(now))
