"""A profile store that is not sound: `serve` says so, and does not start."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from narwhal.cli import main, serve_command

from processes import run, write_fleet

ROW: dict[str, Any] = {
    "ttft_a": 0.0,
    "ttft_b": 1e-5,
    "ttft_c": 0.001,
    "tpot_intercept": 0.001,
    "tpot_slope": 1e-9,
    "decode_fit_mape": 0.01,
    "decode_cv_mape": 0.01,
}


def store(*rows: dict[str, Any], **top: Any) -> dict[str, Any]:
    rows = rows or (row("e0"), row("e1"))
    return {"schema": "narwhal.profiles", "schema_version": 1, "profiles": list(rows)} | top


def row(iid: str, **changes: Any) -> dict[str, Any]:
    return {"iid": iid} | ROW | changes


def with_field(field: str, value: Any) -> Callable[[], str]:
    return lambda: json.dumps(store(row("e0"), row("e1", **{field: value})))


def text(document: Callable[[], dict[str, Any]]) -> Callable[[], str]:
    return lambda: json.dumps(document())


# What is in the file, and what the message has besides its name: engine and field, or place.
BAD: dict[str, tuple[Callable[[], str], tuple[str, ...]]] = {
    "truncated": (lambda: json.dumps(store())[:-40], ("line 1", "JSON")),
    "empty": (lambda: "", ("JSON",)),
    "NaN": (with_field("ttft_b", float("nan")), ("e1", "ttft_b", "NaN")),
    "infinity": (with_field("tpot_slope", float("inf")), ("e1", "tpot_slope", "Infinity")),
    "huge": (lambda: json.dumps(store()).replace("1e-05", "1e999", 1), ("e0", "ttft_b")),
    "negative": (with_field("ttft_a", -1e-9), ("e1", "ttft_a", "-1e-09")),
    "zero": (with_field("tpot_slope", 0.0), ("e1", "tpot_slope", "positive")),
    "boolean": (with_field("ttft_c", True), ("e1", "ttft_c", "true")),
    "boolean integer": (with_field("kv_capacity_tokens", True), ("e1", "kv_capacity_tokens")),
    "text": (with_field("ttft_c", "0.1"), ("e1", "ttft_c", '"0.1"')),
    "null": (with_field("ttft_c", None), ("e1", "ttft_c")),
    "unknown field": (with_field("tttft_c", 0.1), ("e1", "tttft_c")),
    "half a range": (with_field("decode_min_requests", 1), ("e1", "decode_min_requests")),
    "missing engine": (text(lambda: store(row("e0"))), ("profiles", '"e1"')),
    "another engine": (
        text(lambda: store(row("e0"), row("e1"), row("e2"))),
        ("profiles[2]", "e2"),
    ),
    "duplicate engine": (text(lambda: store(row("e0"), row("e1"), row("e1"))), ("iid", "e1")),
    "duplicate key": (
        lambda: json.dumps(store()).replace('"ttft_c"', '"ttft_b": 1.0, "ttft_c"', 1),
        ("e0", "ttft_b"),
    ),
    "another schema": (text(lambda: store(schema="narwhal.fleet")), ("schema", "narwhal.fleet")),
    "another version": (text(lambda: store(schema_version=2)), ("schema_version", "2")),
    "no rows": (text(lambda: {"schema": "narwhal.profiles", "schema_version": 1}), ("profiles",)),
    "a list": (lambda: "[]", ("must be an object",)),
    "a fit that is too bad": (with_field("decode_fit_mape", 9.9), ("e1", "decode_fit_mape")),
}


def fleet_with(tmp_path: Path, content: str | bytes | None, *, admission: str) -> Path:
    path = tmp_path / "profiles.json"
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    fleet = write_fleet(
        tmp_path / "fleet.json",
        ["http://127.0.0.1:1", "http://127.0.0.1:2"],
        admission=admission,
    )
    document = json.loads(fleet.read_text())
    fleet.write_text(json.dumps(document | {"profiles": {"path": str(path)}}))
    return fleet


@pytest.fixture(autouse=True)
def _nothing_is_served(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that takes a bad store fails its test, rather than serve for ever."""

    async def served(*_: object) -> None:
        raise AssertionError("it began to serve")

    monkeypatch.setattr(serve_command, "_serve", served)


def serve(fleet: Path) -> Result:
    return CliRunner().invoke(main, ["serve", "--fleet", str(fleet), "--port", "0"])


@pytest.mark.parametrize("admission", ["predictive", "open"])
@pytest.mark.parametrize("kind", BAD)
def test_a_bad_store_is_an_error_that_names_it(kind: str, admission: str, tmp_path: Path) -> None:
    if admission == "open" and kind == "a fit that is too bad":
        pytest.skip("nothing is refused by it, and it may do for placement")
    content, named = BAD[kind]
    result = serve(fleet_with(tmp_path, content(), admission=admission))
    assert (result.exit_code, result.stdout) == (1, "")
    lines = result.stderr.splitlines()
    assert all(line.startswith("narwhal-trio: ") for line in lines)
    (line, *_) = [line for line in lines if all(word in line for word in named)] or [""]
    assert re.search(r"profiles\.json\b", line), result.stderr


def test_all_mistakes_are_told_at_once(tmp_path: Path) -> None:
    bad = store(row("e0", ttft_a=-1), row("e2", ttft_b=True), schema_version=7)
    result = serve(fleet_with(tmp_path, json.dumps(bad), admission="predictive"))
    assert result.exit_code == 1
    assert len(result.stderr.splitlines()) == 5


def test_a_store_that_is_no_text(tmp_path: Path) -> None:
    result = serve(fleet_with(tmp_path, b"\xff\xfe{}", admission="predictive"))
    assert (result.exit_code, "profiles.json" in result.stderr) == (1, True)


def test_a_store_that_is_not_there_is_named_with_where_it_was_looked_for_and_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    fleet = write_fleet(tmp_path / "fleet.json", ["http://127.0.0.1:1"], admission="predictive")
    result = serve(fleet)
    assert result.exit_code == 1
    assert result.stderr == (
        f"narwhal-trio: profiles.path: there is no runs/profiles.json in {tmp_path}, and "
        'serving.admission "predictive" needs it: narwhal-trio profile --fleet FILE measures the '
        'engines, and "open" does without\n'
    )


@pytest.mark.sockets
def test_the_process_ends_with_it(tmp_path: Path) -> None:
    fleet = fleet_with(tmp_path, BAD["NaN"][0](), admission="predictive")
    code, out, err = run("serve", "--fleet", str(fleet), "--port", "0")
    assert (code, out) == (1, "")
    assert err.count("\n") == 1
    assert "Traceback" not in err
    assert all(word in err for word in ("profiles.json", "e1", "ttft_b"))
