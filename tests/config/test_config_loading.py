"""From a file to a config: JSON, notes, unknown keys, engines, the environment."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import pytest
from config_samples import ENVIRON, KEY_VARIABLE, MINIMAL, document, parse, problems, put

from narwhal.config import engine_api_key, load_fleet, read_fleet
from narwhal.config.document import MAX_DEPTH, MAX_FILE_BYTES
from narwhal.model import ConfigError, Role

if TYPE_CHECKING:
    from pathlib import Path

TEXT = json.dumps(MINIMAL)


def refused(path: Path | str, content: bytes | None = None) -> str:
    """The one line that a file is refused with."""
    if content is not None:
        from pathlib import Path as RealPath

        RealPath(path).write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        load_fleet(path, environ={})
    (line,) = caught.value.problems
    return line


# Files


def test_a_file_is_loaded(tmp_path: Path) -> None:
    path = tmp_path / "fleet.json"
    path.write_text(TEXT)
    assert load_fleet(path, environ={}) == load_fleet(str(path), environ={}) == parse(MINIMAL)


def test_a_byte_order_mark_does_no_harm(tmp_path: Path) -> None:
    path = tmp_path / "fleet.json"
    path.write_bytes(b"\xef\xbb\xbf" + TEXT.encode())
    assert load_fleet(path, environ={}) == parse(MINIMAL)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    assert refused(tmp_path / "no.json") == "no.json: cannot be read: No such file or directory"
    assert refused(tmp_path) == f"{tmp_path.name}: cannot be read: Is a directory"
    assert refused("a\0b") == "'a\\x00b': cannot be read: embedded null byte"
    assert refused("") == ".: cannot be read: Is a directory"


def test_a_file_without_end_is_not_read_to_its_end() -> None:
    assert (
        refused("/dev/zero")
        == f"zero: is larger than {MAX_FILE_BYTES} bytes, which no fleet file is"
    )


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (b"", "is not valid JSON: line 1, column 1: Expecting value"),
        (b'{"a": 1,\n "b" 2}', "is not valid JSON: line 2, column 6: Expecting ':' delimiter"),
        (b"{} x", "is not valid JSON: line 1, column 4: Extra data"),
        (b'{"model":\n"\xff"}', "is not UTF-8 text: byte 0xff in line 2"),
        (b"\xff\xfe{\x00}\x00", "is not UTF-8 text: byte 0xff in line 1"),
        (b"[" * 100_000, f"is nested more than {MAX_DEPTH} levels deep"),
        (b'{"a":' * 70 + b"1" + b"}" * 70, f"is nested more than {MAX_DEPTH} levels deep"),
        (b"[]", "must be an object, not a list"),
        (b"null", "must be an object, not null"),
        (b"7", "must be an object, not 7"),
    ],
)
def test_files_that_hold_no_document(tmp_path: Path, content: bytes, line: str) -> None:
    assert refused(tmp_path / "fleet.json", content) == f"fleet.json: {line}"


@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a":', "}")])
def test_how_deep_a_document_may_be(tmp_path: Path, opening: str, closing: str) -> None:
    path = tmp_path / "fleet.json"
    for levels, accepted in ((MAX_DEPTH - 1, True), (MAX_DEPTH, False)):
        deep = opening * levels + "1" + closing * levels
        path.write_text(TEXT.replace("{", f'{{"_": {deep}, ', 1))
        if accepted:
            assert load_fleet(path, environ={}) == parse(MINIMAL)
        else:
            assert refused(path).endswith("is nested more than 64 levels deep")


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ('"model"', '"model": "a", "model"', "model is given more than once in the same object"),
        ('"iid": "d0"', '"iid": "x", "iid": "d0"', "engines[1] (d0).iid is given more than once"),
        ("2.0", "NaN", "slo.ttft_s must be a finite number, not NaN"),
        ("2.0", "1e999", "slo.ttft_s must be a finite number, not Infinity"),
        ("2.0", "9" * 5000, "slo.ttft_s must be a finite number, not Infinity"),
        ("2.0", "-" + "9" * 5000, "slo.ttft_s must be a finite number, not -Infinity"),
        ("{", '{"_note": [NaN], ', "_note[0] must be a finite number, not NaN"),
        ("{", '{"engine_contract": {"a": [-Infinity]}, ', "engine_contract.a[0] must be a finite"),
        ('"m"', '"\\ud800"', 'model must not hold control characters: "\\ud800"'),
    ],
)
def test_json_that_means_something_else_to_each_reader(
    tmp_path: Path, old: str, new: str, line: str
) -> None:
    found = refused(tmp_path / "fleet.json", TEXT.replace(old, new, 1).encode())
    assert found.startswith(f"fleet.json: {line}")


def test_all_of_them_are_found(tmp_path: Path) -> None:
    path = tmp_path / "fleet.json"
    path.write_text('{"_": NaN, "model": 1, "model": 2, "slo": {"ttft_s": NaN, "ttft_s": NaN}}')
    with pytest.raises(ConfigError) as caught:
        load_fleet(path, environ={})
    assert [line.split(" ")[1] for line in caught.value.problems] == [
        *("_", "slo.ttft_s", "slo.ttft_s", "model"),
        *("schema", "schema_version", "engines", "slo.tpot_s"),
    ]


def test_a_number_of_hundreds_of_digits_is_a_number(tmp_path: Path) -> None:
    path = tmp_path / "fleet.json"
    path.write_text(TEXT.replace("2.0", "1" + "0" * 300, 1))
    assert load_fleet(path, environ={}).slo.ttft_s == 1e300


def test_the_name_of_a_file_cannot_forge_lines(tmp_path: Path) -> None:
    line = refused(tmp_path / "a\nb.json", b"[]")
    assert line == "'a\\nb.json': must be an object, not a list"


def test_what_a_file_gave_is_known(tmp_path: Path) -> None:
    path = tmp_path / "fleet.json"
    made = document(_note={"x": 1}, serving__max_connections=512, engine_contract={"a": {"b": 1}})
    made["hardware"] = {"_": "", "accelerator": "H100"}
    path.write_text(json.dumps(made))
    given = read_fleet(path, environ={}).given
    assert given == {
        *("schema", "schema_version", "model", "slo.ttft_s", "slo.tpot_s", "engine_contract"),
        *("serving.max_connections", "hardware.accelerator"),
        *(f"engines[0].{name}" for name in ("iid", "url", "role")),
        *(f"engines[1].{name}" for name in ("iid", "url")),
    }


# Notes and unknown keys


def test_notes_stand_anywhere_and_mean_nothing() -> None:
    made = document(_about="x", serving___notes={"max_connections": 7}, _=[{"deep": [None]}])
    made["engines"][0]["_rack"] = 4
    made["slo"]["_"] = None
    made["engine_contract"] = {"_why": 1, "dtype": "bf16", "list": [{"_": 0, "a": 1}]}
    config = parse(made)
    assert config.engine_contract == {"dtype": "bf16", "list": [{"a": 1}]}
    del made["engine_contract"]
    assert parse(made) == parse(MINIMAL)


def test_notes_may_repeat(tmp_path: Path) -> None:
    path = tmp_path / "fleet.json"
    path.write_text(TEXT.replace("{", '{"_": 1, "_": 2, ', 1))
    assert load_fleet(path, environ={}) == parse(MINIMAL)


@pytest.mark.parametrize(
    ("path", "suggestion"),
    [
        ("serving.queue_capcity", "did you mean queue_capacity?"),
        ("SLO", "did you mean slo?"),
        ("thresholds", "did you mean controller.thresholds?"),
        ("serving.tokenize", "did you mean engine.tokenize?"),
        ("controller.expand", "did you mean controller.thresholds.expand?"),
        ("controller.reactive.step", "did you mean step_s?"),
        ("hardware.gpu", "the nearest known key is tensor_parallel"),
        ("profiles.qqq", "the nearest known key is path"),
    ],
)
def test_an_unknown_key_names_the_nearest(path: str, suggestion: str) -> None:
    made = document()
    put(made, path, 1)
    assert problems(made) == [f"{path} is not a known key; {suggestion}"]


@pytest.mark.parametrize(
    ("key", "written"), [("", '""'), ("a\nb", '"a\\nb"'), ("x" * 70, '"' + "x" * 57 + '..."')]
)
def test_an_unknown_key_stays_on_its_line(key: str, written: str) -> None:
    made = document()
    made["slo"][key] = 1
    (line,) = problems(made)
    assert line.startswith(f"slo.{written} is not a known key; the nearest known key is ")


def test_keys_from_python_that_are_no_text() -> None:
    made: dict[Any, Any] = document()
    made[3] = 1
    assert problems(made) == ["3 must have a text for a key"]


# Engines


def with_engines(*changes: dict[str, Any] | Any) -> dict[str, Any]:
    made = document()
    made["engines"] = [
        {"iid": f"e{index}", "url": f"http://h{index}:80", **change}
        if isinstance(change, dict)
        else change
        for index, change in enumerate(changes)
    ]
    return made


def test_engines_are_read() -> None:
    made = with_engines(
        {"role": "prefill", "pin": True, "attestation_url": "https://id:9/Proc/"},
        {"url": "HTTPS://Node-7.Example"},
        {"url": "http://[::1]:8000/"},
    )
    first, second, third = parse(made).engines
    assert (first.iid, first.role, first.pin) == ("e0", Role.PREFILL, True)
    assert first.attestation_url == "https://id:9/Proc"
    assert (second.role, second.pin, second.attestation_url) == (Role.DECODE, False, None)
    assert second.url == "https://node-7.example"
    assert (second.scheme, second.host, second.port) == ("https", "node-7.example", 443)
    assert (third.scheme, third.host, third.port) == ("http", "::1", 8000)
    assert third.url == "http://[::1]:8000"


URL = "must be http:// or https:// with a host and, if need be, a port, not"
IID = (
    "must be 1 to 64 letters, digits, '.', '_', ':' or '-', a letter or digit first (it becomes "
    "a metric label), not"
)
SAME = "must be unique: engines"


@pytest.mark.parametrize(
    ("changes", "lines"),
    [
        ([], ["engines must hold at least one engine"]),
        ([{}, 3], ["engines[1] must be an object, not 3"]),
        ([{}, {"url": "x"}], [f'engines[1] (e1).url {URL} "x"']),
        ([{}, {"role": 1}], ['engines[1] (e1).role must be one of "prefill", "decode", not 1']),
        (
            [{"attestation_url": "http://h/x?y"}],
            ["engines[0] (e0).attestation_url must not have a query or a fragment"],
        ),
        ([{}, {"pin": 1}], ["engines[1] (e1).pin must be true or false, not 1"]),
        ([{}, {"rol": 1}], ["engines[1] (e1).rol is not a known key; did you mean role?"]),
        ([{}, {"iid": "e0"}], [f"engines[1] (e0).iid {SAME}[0] has the same"]),
        ([{}, {"url": "http://H0/"}], [f"engines[1] (e1).url {SAME}[0] has the same"]),
        (
            [{}, {}, {"iid": "e1"}, {"iid": "e1"}],
            [f"engines[{index}] (e1).iid {SAME}[1] has the same" for index in (2, 3)],
        ),
        # What could not be read is equal to nothing.
        (
            [{"iid": "p 0"}, {"iid": "p 0"}],
            [f'engines[{index}].iid {IID} "p 0"' for index in (0, 1)],
        ),
        (
            [{"iid": "p0"}, {"iid": ""}, 1, None, {}],
            [
                f'engines[1].iid {IID} ""',
                "engines[2] must be an object, not 1",
                "engines[3] must be an object, not null",
            ],
        ),
    ],
)
def test_engines_that_are_refused(changes: list[Any], lines: list[str]) -> None:
    assert problems(with_engines(*changes)) == lines


def test_engines_lack_name_or_address() -> None:
    made = document(engines=[{"url": "http://h:1"}, {"iid": "e"}])
    assert problems(made) == ["engines[0].iid is required", "engines[1] (e).url is required"]
    assert problems(document(engines={})) == ["engines must be a list, not an object"]


@pytest.mark.parametrize("iid", ["a", "0", "a" * 64, "node-1.rack_2:8000"])
def test_names_of_engines(iid: str) -> None:
    assert parse(with_engines({"iid": iid})).engines[0].iid == iid


@pytest.mark.parametrize("iid", ["", "-a", ".a", "a" * 65, "a b", "a\n", "ä", "a/b", 'a"', None, 3])
def test_names_that_no_engine_has(iid: object) -> None:
    (line,) = problems(with_engines({"iid": iid}))
    assert line.startswith("engines[0].iid must be ")


# The environment


def test_an_address_from_the_environment() -> None:
    made = with_engines({"url": "${E0}", "attestation_url": "${ID}"}, {})
    config = parse(made, E0="http://Node:1/", ID="http://id:2/x")
    assert config.engines[0].url == "http://node:1"
    assert config.engines[0].attestation_url == "http://id:2/x"


@pytest.mark.parametrize(
    ("url", "environ", "line"),
    [
        ("${E0}", {}, "is ${E0}, and the environment variable E0 is not set"),
        ("${E0}", {"E0": ""}, "is ${E0}, and the environment variable E0 is empty"),
        ("${E0}", {"E0": "${E1}"}, "is ${E0}, and what the environment variable E0 holds must be"),
        ("${E0}", {"E0": "secret"}, "is ${E0}, and what the environment variable E0 holds must be"),
        ("http://${E0}:1", {"E0": "h"}, "must be one whole ${NAME}, or hold no ${ at all"),
        ("${E0} ", {"E0": "http://h"}, "must be one whole ${NAME}, or hold no ${ at all"),
        ("${}", {}, "must be one whole ${NAME}, or hold no ${ at all"),
        ("$E0", {"E0": "http://h"}, f'{URL} "$E0"'),
    ],
)
def test_addresses_that_the_environment_does_not_give(
    url: str, environ: dict[str, str], line: str
) -> None:
    (found,) = problems(with_engines({"url": url}), **environ)
    assert found.startswith(f"engines[0] (e0).url {line}")
    assert "secret" not in found


def test_only_addresses_come_from_the_environment() -> None:
    assert parse(document(model="${M}"), M="x").model == "${M}"


def test_a_key_in_the_environment() -> None:
    config = parse(document(engine__engine_api_key_env=KEY_VARIABLE), **ENVIRON)
    assert config.engine.engine_api_key_env == KEY_VARIABLE
    assert engine_api_key(config, ENVIRON) == "sk-1234"
    assert "sk-1234" not in repr(config)
    with pytest.raises(ConfigError, match="ENGINE_KEY, which is not set"):
        engine_api_key(config, {})
    assert engine_api_key(parse(document()), ENVIRON) is None


@pytest.mark.parametrize(
    ("environ", "line"),
    [
        ({}, "names the environment variable ENGINE_KEY, which is not set"),
        ({KEY_VARIABLE: ""}, "names the environment variable ENGINE_KEY, which is empty"),
        ({KEY_VARIABLE: "hush\n"}, "names the environment variable ENGINE_KEY, which holds blanks"),
        ({KEY_VARIABLE: "hüsh"}, "names the environment variable ENGINE_KEY, which holds blanks"),
    ],
)
def test_keys_that_cannot_be_used(environ: dict[str, str], line: str) -> None:
    (found,) = problems(document(engine__engine_api_key_env=KEY_VARIABLE), **environ)
    assert found.startswith(f"engine.engine_api_key_env {line}")
    assert "sh" not in found.replace("which", "")


def test_secrets_in_the_wrong_place_are_not_repeated() -> None:
    lines = problems(
        {
            **with_engines(
                {"url": "http://user:hush@h:1"},
                {"url": "http://h:1/x?u=@hush"},
                {"url": "http://h?k=hush"},
            ),
            "engine": {"engine_api_key_env": "sk-hush"},
        }
    )
    assert [line.split(" must")[0] for line in lines] == [
        "engines[0] (e0).url",
        "engines[1] (e1).url",
        "engines[2] (e2).url",
        "engine.engine_api_key_env",
    ]
    assert "hush" not in str(lines)


def test_the_real_environment_will_do(tmp_path: Path) -> None:
    path = tmp_path / "fleet.json"
    path.write_text(TEXT)
    assert load_fleet(path, environ=os.environ).model == "m"
