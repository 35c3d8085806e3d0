"""Any file is a config that survives being written and read again, or a `ConfigError` by lines.

Each line of the error begins with the file's name and a place in it, and can be printed.
"""

from __future__ import annotations

import json

import attrs

from fuzz.mutate import change_json
from narwhal.config import (
    FleetConfig,
    Loaded,
    broken_rules,
    parse_fleet,
    unstructure_fleet,
)
from narwhal.config.document import key_name, parse_json
from narwhal.config.effective import limits
from narwhal.config.report import as_json, as_text
from narwhal.model import ConfigError

_NAME = "fleet.json"
_ENVIRON = {"ENGINE_KEY": "sk-1234", "ENGINE_URL": "http://10.0.0.9:8000", "EMPTY": "", "BAD": "\n"}
_SECTIONS = frozenset(field.name for field in attrs.fields(FleetConfig))
_ABOUT_THE_WHOLE = ("must ", "is nested ")

change = change_json


def check(data: bytes) -> None:
    document: object = None
    try:
        document = parse_json(data)
        config = parse_fleet(document, name=_NAME, environ=_ENVIRON)
    except ConfigError as error:
        _check_problems(error, document)
        return
    assert broken_rules(config) == []
    written = json.dumps(unstructure_fleet(config)).encode()
    assert parse_fleet(parse_json(written), name=_NAME, environ=_ENVIRON) == config
    _check_report(config)


def _check_problems(error: ConfigError, document: object) -> None:
    assert error.problems, "it is refused for no reason"
    # What is long is cut short, and may look like its neighbour.
    whole = [line for line in error.problems if "..." not in line]
    assert len(set(whole)) == len(whole), "a mistake is told twice"
    for line in error.problems:
        assert line.isprintable(), f"not one line of plain text: {line!r}"
        _, _, text = line.partition(": ")
        assert text, f"nothing is said: {line!r}"
        if isinstance(document, dict) and not text.startswith(_ABOUT_THE_WHOLE):
            places = _SECTIONS | {key_name(key) for key in document}
            assert text.startswith(tuple(places)), f"no place of the file is named: {line!r}"


def _check_report(config: FleetConfig) -> None:
    loaded = Loaded(_NAME, config, frozenset())
    as_text(loaded).encode()
    json.dumps(as_json(loaded), allow_nan=False)
    assert limits(config)
