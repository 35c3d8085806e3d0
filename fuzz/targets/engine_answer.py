"""Any answer of an engine to a count, or with an error, is read or is an `EngineProtocolError`.

Whatever an error body is, what the client is told of it is one event of valid JSON.
"""

from __future__ import annotations

import contextlib
from typing import Any

from fuzz import other
from fuzz.mutate import change_json
from narwhal.model import EngineProtocolError, Outcome, Terminal
from narwhal.wire.errors import error_body, error_event, parse_engine_error
from narwhal.wire.sse import EventSplitter, event_data
from narwhal.wire.vllm import parse_tokenize

_STATUSES = (200, 400, 503)
_FIRST_ERROR, _LAST_ERROR = 400, 599

change = change_json


def check(data: bytes) -> None:
    with contextlib.suppress(EngineProtocolError):
        assert parse_tokenize(data) >= 0
    for status in _STATUSES:
        said = parse_engine_error(status, data)
        assert _FIRST_ERROR <= said.status <= _LAST_ERROR
        assert status < _FIRST_ERROR or said.status == status
        assert isinstance(said.message, str)
        assert isinstance(said.type, str | None)
        assert isinstance(said.param, str | None)
        assert type(said.code) in {str, int, type(None)}
        _check_told(status, data)


def _check_told(status: int, data: bytes) -> None:
    outcome = Outcome(
        terminal=Terminal.FAILED, status=status, code="engine_failed", message="m", passthrough=data
    )
    told: dict[str, Any] = {"request_id": "r", "attempts": 1, "spent": {}}
    body = error_body(outcome, **told)
    if not other.is_deep(data):
        error = other.read(body)["error"]
        assert isinstance(error["message"], str)
        assert error["narwhal"]["request_id"] == "r", "the engine's words replace the router's"
    event = error_event(outcome, **told)
    assert EventSplitter().feed(event) == [event], "the error is not one event"
    assert event_data(event) == body
