"""Every check can fail: some input of the corpus finds a parser that was broken on purpose."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from fuzz import targets
from narwhal.telemetry.report import Times

# Where to break what each target checks, and what to put there; several ways, each on its own.
BROKEN: dict[str, list[tuple[str, Any]]] = {
    "assembly": [
        ("narwhal.wire.assembly.merge", lambda _old, new, _key: new),
        ("narwhal.wire.assembly.Assembler._check_size", lambda *_: None),
        ("narwhal.wire.assembly.malformed", ValueError),
    ],
    "certificate": [
        ("narwhal.net.certificates._VERSION", 0xA1),
        ("narwhal.net.certificates._PIVOT_YEAR", 100),
        ("narwhal.net.certificates._UTC_TIME", 0x18),
        ("narwhal.net.certificates._LONG_LENGTH", 0x100),
        ("narwhal.net.certificates.b64decode", lambda text: bytes(text[:0]) or None),
    ],
    "decode_stream": [
        ("narwhal.wire.decode.DecodeStream._is_plain", lambda *_: True),
        ("narwhal.wire.decode.DecodeStream._check_size", lambda *_: None),
        ("narwhal.wire.decode.is_usage_only", lambda _: False),
        ("narwhal.wire.decode.DecodeStream._fail", lambda *_: None),
    ],
    "engine_answer": [
        ("narwhal.wire.errors._decode", json.loads),
        ("narwhal.wire.errors._text", lambda value: value),
        ("narwhal.wire.vllm._count", json),
    ],
    "fault_text": [
        ("narwhal.emulator.fault_text._check", lambda *_: None),
        ("narwhal.emulator.fault_text._Unreadable", KeyError),
    ],
    "fleet_file": [
        ("narwhal.config.document._integer", int),
        ("narwhal.config.load.broken_rules", lambda *_, **__: []),
        ("narwhal.config.document.shown", str),
    ],
    "handoff": [
        ("narwhal.wire.handoff._find_problem", lambda *_: None),
        ("narwhal.wire.vllm._defaults", dict),
    ],
    "http_response": [
        ("narwhal.net.response.ResponseReader.on_message_begin", lambda _: None),
        ("narwhal.net.response.ResponseReader._framed", lambda _: True),
        ("narwhal.net.response.ResponseReader.take", lambda reader: b"".join(reader.body)),
    ],
    "journal": [
        ("narwhal.telemetry.report.reading.printable", str),
        ("narwhal.telemetry.report.reading.Reading.spoilt", lambda *_, **__: None),
        ("narwhal.cli.page.xml_text", str),
        ("narwhal.telemetry.report.lines._check_unknown", lambda *_: None),
        ("narwhal.telemetry.report.sums.times_of", lambda column: Times(count=len(column))),
    ],
    "profile_store": [
        ("narwhal.config.document._integer", int),
        ("narwhal.profiles.reading.document_faults", lambda _: []),
        ("narwhal.profiles.reading.bounds_complaint", lambda *_: None),
        ("narwhal.profiles.store.engine_faults", lambda *_: []),
        ("narwhal.profiles.reading.key_name", str),
        ("narwhal.profiles.rows._ends", lambda _: (None, None)),
        ("narwhal.profiles.profile._mean", sum),
    ],
    "request_body": [
        ("narwhal.wire.vllm._NOT_FOR_PREFILL", frozenset()),
        ("narwhal.wire.vllm._is_zero", lambda _: False),
        ("narwhal.wire.fields._is_all_of", lambda *_: True),
        ("narwhal.wire.openai.shorten", str),
    ],
    "request_head": [
        ("narwhal.net.server.heads.REQUEST_LINE_EXTRA", 0),
        ("narwhal.net.server.plain._ODD", frozenset()),
        ("narwhal.net.server.protocol.Http1._explain", None),
    ],
    "sse_events": [
        ("narwhal.wire.sse._BLANK_LINE", re.compile(rb"\r\n\r\n|\n\n|\r\r")),
        ("narwhal.wire.sse._BLANK_LINE", re.compile(rb"\r\n(?:\r\n|\n|\r)|\n[\r\n]|\r\r")),
        ("narwhal.wire.sse._LINE_END", re.compile(rb"\n")),
    ],
}


def complaints(name: str) -> list[Exception]:
    check = targets.load(name).check
    found = []
    for path in targets.corpus(name):
        try:
            check(path.read_bytes())
        except Exception as error:  # noqa: BLE001 - whatever a broken parser raises
            found.append(error)
    return found


def test_each_target_has_one() -> None:
    assert sorted(BROKEN) == targets.names()


@pytest.mark.parametrize(
    ("name", "place", "broken"),
    [
        pytest.param(name, place, broken, id=f"{name}-{number}")
        for name, ways in BROKEN.items()
        for number, (place, broken) in enumerate(ways)
    ],
)
def test_a_check_fails_with_a_broken_parser(
    name: str, place: str, broken: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    targets.load(name)  # with the parser as it should be
    monkeypatch.setattr(place, broken)
    assert complaints(name)
