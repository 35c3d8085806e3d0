"""`narwhal-trio simulate`, as a person would use it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from narwhal.cli import main
from narwhal.router.core import Core
from narwhal.simulate import INVARIANTS


def run(*arguments: str) -> Any:
    return CliRunner().invoke(main, ["simulate", *arguments])


SMALL = ("--requests", "15", "--engines", "2")


def test_worlds_are_summed_up() -> None:
    done = run("chaos", "--seed", "40", "--runs", "2", *SMALL)
    assert done.exit_code == 0, done.output
    assert "worlds     2, 0 failed" in done.output
    assert "left over  0" in done.output


def test_the_same_as_json() -> None:
    done = run("chaos", "--seed", "40", "--runs", "2", *SMALL, "--format", "json")
    found = json.loads(done.stdout)
    assert found["worlds"] == 2
    assert found["requests"] == sum(found["terminals"].values())
    assert [world["seed"] for world in found["by_world"]] == [40, 41]
    assert run("chaos", "--seed", "40", "--runs", "2", *SMALL, "--format", "json").stdout == (
        done.stdout
    )


def test_a_world_that_fails_says_how_to_see_it_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Core, "forget", lambda self: None)
    done = run("chaos", "--seed", "40", "--runs", "2", *SMALL)
    assert done.exit_code == 1
    assert "everything is given back" in done.output
    lines = done.output.splitlines()
    (again, *_) = [line for line in lines if "again:" in line]
    command = again.partition("again: narwhal-trio simulate ")[2].split()
    assert command[-4:] == list(SMALL)
    one = run(*command)
    assert one.exit_code == 1
    assert "worlds     1, 1 failed" in one.output


def test_a_fleet_file_and_a_trace(tmp_path: Path) -> None:
    fleet, trace = tmp_path / "fleet.json", tmp_path / "trace.jsonl"
    engines = [{"iid": iid, "url": f"http://{iid}.example", "role": iid} for iid in ROLES]
    document = {
        "schema": "narwhal.fleet",
        "schema_version": 1,
        "model": "big",
        "engines": engines,
        "slo": {"ttft_s": 1.0, "tpot_s": 0.1},
        "serving": {"admission": "open", "request_timeout_s": 9.0},
        "engine_contract": {"version": "9.9"},
    }
    fleet.write_text(json.dumps(document))
    done = run(
        "chaos", "--seed", "3", "--requests", "15", "--fleet", str(fleet), "--trace", str(trace)
    )
    assert done.exit_code == 0, done.output
    events = [json.loads(line) for line in trace.read_bytes().splitlines()]
    assert "no_engine" not in {e.get("code") for e in events}
    used = {name for e in events if e["event"] == "ended" for a in e["attempts"] for name in a[:2]}
    assert used - {None} <= set(ROLES)


ROLES = ("prefill", "decode")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--runs", "2", "--trace", "x"), "--trace writes down one world"),
        (("--requests", "2", "--trace", "/nowhere/x"), "cannot be written"),
        (("--fleet", "/nowhere/x"), "x: cannot be read"),
    ],
)
def test_what_cannot_be_done_is_said(arguments: tuple[str, ...], complaint: str) -> None:
    done = run("chaos", *arguments)
    assert done.exit_code == 1
    assert complaint in done.output


def test_what_is_checked_can_be_read() -> None:
    done = run("invariants")
    assert all(each.name in done.output and each.says in done.output for each in INVARIANTS)
