"""Any text is a fault for an emulated engine or a `ValueError` that says what is wrong with it."""

from __future__ import annotations

from typing import Any

import attrs

from narwhal.emulator import Fault, parse_fault

_NUMBERS = ("seconds", "status", "retry_after", "count", "size", "bytes_per_second", "gap", "at")


def check(data: bytes) -> None:
    text = data.decode("utf-8", "surrogateescape")
    try:
        fault = parse_fault(text)
    except ValueError as error:
        said = str(error)
    else:
        _check_fault(fault)
        return
    assert repr(text) in said, "the text that is wrong is not named"


def _check_fault(fault: Fault) -> None:
    assert fault.actions
    assert fault.count is None or fault.count > 0
    for action in fault.actions:
        _check_numbers(action)


def _check_numbers(action: Any) -> None:
    for field in attrs.fields(type(action)):
        value = getattr(action, field.name)
        if field.name in _NUMBERS and value is not None:
            assert type(value) in {int, float}, f"{field.name} is no number"
            assert 0 <= value < float("inf"), f"{field.name} is no amount of anything"
