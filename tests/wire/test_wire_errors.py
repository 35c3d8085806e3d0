"""Error bodies: the router's own, and an engine's handed on."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from narwhal.model import Limit, Outcome, Phase, Terminal
from narwhal.wire.errors import error_body, error_event, parse_engine_error

EXPIRED = Outcome(
    terminal=Terminal.EXPIRED,
    status=504,
    code="first_token",
    message="No first token within 2.5 s (engine.first_token_timeout_s).",
    error_type="timeout",
    limit=Limit.FIRST_TOKEN,
)
SPENT = {Phase.PREFILL: 1.23456, Phase.DECODE: 5.0}


def body(outcome: Outcome) -> dict[str, Any]:
    document = json.loads(error_body(outcome, request_id="r1", attempts=2, spent=SPENT))
    assert list(document) == ["error"]
    error = document["error"]
    assert isinstance(error, dict)
    return error


def test_an_error_says_what_a_person_needs() -> None:
    assert body(EXPIRED) == {
        "message": "No first token within 2.5 s (engine.first_token_timeout_s).",
        "type": "timeout",
        "param": None,
        "code": "first_token",
        "narwhal": {
            "limit": "first_token",
            "request_id": "r1",
            "attempts": 2,
            "spent_s": {"prefill": 1.235, "decode": 5.0},
        },
    }


def test_the_event_is_the_body_on_one_line() -> None:
    event = error_event(EXPIRED, request_id="r1", attempts=2, spent=SPENT)
    plain = error_body(EXPIRED, request_id="r1", attempts=2, spent=SPENT)
    assert event == b"data: " + plain + b"\n\n"
    assert event.count(b"\n") == 2


@pytest.mark.parametrize(
    ("terminal", "limit", "expected"),
    [
        (Terminal.INVALID, None, "invalid_request_error"),
        (Terminal.REFUSED, None, "rate_limit_error"),
        (Terminal.REJECTED, None, "overloaded_error"),
        (Terminal.EXPIRED, Limit.REQUEST, "timeout"),
        (Terminal.FAILED, Limit.PREFILL, "timeout"),
        (Terminal.FAILED, Limit.POOL, "server_error"),
        (Terminal.FAILED, None, "server_error"),
    ],
)
def test_a_type_is_found_where_none_was_set(
    terminal: Terminal, limit: Limit | None, expected: str
) -> None:
    assert body(Outcome(terminal=terminal, status=500, limit=limit))["type"] == expected


def passed_on(engine: bytes, **fields: Any) -> dict[str, Any]:
    outcome = Outcome(
        terminal=Terminal.INVALID,
        status=400,
        code="engine_status",
        message="The engine refused the request.",
        passthrough=engine,
        **fields,
    )
    error = body(outcome)
    assert error.pop("narwhal")["request_id"] == "r1"
    return error


def test_an_engines_own_error_is_kept_whole() -> None:
    own = {
        "message": "This model's maximum context length is 2048 tokens.",
        "type": "BadRequestError",
        "param": "input_tokens",
        "code": 400,
        "hint": {"more": [1]},
    }
    pretty = json.dumps({"error": own}, indent=2).encode()
    assert passed_on(pretty) == own


def test_a_line_break_in_an_engines_error_does_not_break_the_event() -> None:
    engine = b'{"error": {\n"message": "1 validation error:\\n  {}",\r\n"code": 400}\n}'
    outcome = Outcome(terminal=Terminal.INVALID, status=400, passthrough=engine)
    event = error_event(outcome, request_id="r", attempts=1, spent={})
    assert event.count(b"\n") == 2
    assert b"\r" not in event


def test_a_detail_is_given_the_usual_shape() -> None:
    assert passed_on(b'{"detail":"Not Found"}') == {
        "message": "Not Found",
        "type": "invalid_request_error",
        "param": None,
        "code": "engine_status",
    }


@pytest.mark.parametrize(
    "engine", [b"", b"<html>", b"[]", b'{"error":null}', b'{"error":{}}', b"\xff", b"[" * 9999]
)
def test_what_an_engine_said_in_no_known_shape_is_not_passed_on(engine: bytes) -> None:
    assert passed_on(engine)["message"] == "The engine refused the request."


def test_reading_an_engines_error() -> None:
    read = parse_engine_error(
        404, b'{"error":{"message":"gone","type":"NotFoundError","param":"model","code":404}}'
    )
    assert (read.status, read.message, read.type) == (404, "gone", "NotFoundError")
    assert (read.param, read.code) == ("model", 404)


@pytest.mark.parametrize(
    ("engine", "message"),
    [
        (b'{"detail":"Method Not Allowed"}', "Method Not Allowed"),
        (b'{"detail":[{"loc":["body"],"msg":"a"},{"msg":"b"},{"msg":3},4]}', "a; b"),
        (b'{"detail":7}', ""),
        (b'{"error":"busy"}', "busy"),
        (b'{"object":"error","message":"old","code":400}', "old"),
        (b'{"message":"not an error"}', ""),
        (b'{"error":{"message":5,"code":true,"type":[],"param":{}}}', ""),
    ],
)
def test_other_shapes(engine: bytes, message: str) -> None:
    read = parse_engine_error(405, engine)
    assert read.message == message
    assert read.status == 405


@pytest.mark.parametrize(
    ("code", "status"), [("400", 400), ("503", 503), ("200", 500), ('"x"', 500), ("null", 500)]
)
def test_an_error_inside_a_stream_has_the_status_it_names(code: str, status: int) -> None:
    engine = b'{"error":{"message":"m","code":%b}}' % code.encode()
    assert parse_engine_error(200, engine).status == status


@settings(deadline=None)
@given(st.binary(max_size=40) | st.text(max_size=40).map(str.encode))
def test_any_bytes_are_read_as_an_error(engine: bytes) -> None:
    assert parse_engine_error(500, engine).status == 500
    assert passed_on(engine)["message"]
