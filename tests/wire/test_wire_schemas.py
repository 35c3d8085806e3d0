"""The schema of a request against the code that reads requests: one takes what the other takes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from narwhal.model import ClientError, Route
from narwhal.wire.openai import parse_request
from narwhal.wire.schemas import request_schema

VALIDATORS = {route: Draft202012Validator(request_schema(route, model="m")) for route in Route}
FIELDS = sorted(
    {name for validator in VALIDATORS.values() for name in validator.schema["properties"]}
    | {"logprobs", "temperature", "extra"}
)
# Of each kind what somebody might send, and what is next to it.
VALUES: list[Any] = [
    *(None, True, False, 0, 1, 2, -1, 10**9, 0.5, "", "m", "x"),
    *([], [0], [1, 2], [-1], [True], ["a"], [""], ["a", "b"], [["a"]], [[1, 2]], [[1], [2]]),
    *([[]], [1, "a"], [None], [{}], [{"role": "user", "content": "x"}], [{"content": None}, {}]),
    *([{"content": [{"type": "text", "text": "x"}]}], [{"tool_calls": 1}], [{}, "x"]),
    *({}, {"a": 1}, {"include_usage": True}, {"include_usage": None}, {"include_usage": 1}),
    *({"kv_transfer_params": None}, {"ec_transfer_params": {}}, {"continuous_usage_stats": True}),
]
GOOD: dict[Route, dict[str, Any]] = {
    Route.COMPLETIONS: {"model": "m", "prompt": "x"},
    Route.CHAT: {"model": "m", "messages": [{"role": "user", "content": "x"}]},
}


def taken(route: Route, body: dict[str, Any]) -> bool:
    try:
        parse_request(route, json.dumps(body).encode(), model="m")
    except ClientError:
        return False
    return True


@pytest.mark.parametrize("route", Route)
def test_they_are_schemas_and_what_is_good_is_good(route: Route) -> None:
    Draft202012Validator.check_schema(VALIDATORS[route].schema)
    assert VALIDATORS[route].is_valid(GOOD[route])
    assert not any(validator.is_valid({}) for validator in VALIDATORS.values())


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("route", Route)
def test_each_value_of_each_field(route: Route, field: str) -> None:
    beside: list[dict[str, Any]] = [
        {},
        {"stream": True},
        {"echo": True},
        {"echo": True, "logprobs": 1},
    ]
    for value in VALUES:
        for more in beside:
            body = GOOD[route] | more | {field: value}
            assert VALIDATORS[route].is_valid(body) is taken(route, body), body


bodies = st.dictionaries(st.sampled_from(FIELDS), st.sampled_from(VALUES), max_size=5)


@settings(max_examples=500)
@given(st.sampled_from(Route), bodies, st.booleans())
def test_any_fields_together(route: Route, body: dict[str, Any], complete: bool) -> None:
    body = (GOOD[route] | body) if complete else body
    assert VALIDATORS[route].is_valid(body) is taken(route, body)


def test_no_other_fields_are_judged() -> None:
    for route, good in GOOD.items():
        body = good | {"temperature": "hot", "vendor": [1]}
        assert VALIDATORS[route].is_valid(body) is taken(route, body) is True
