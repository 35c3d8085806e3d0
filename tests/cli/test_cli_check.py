"""`narwhal-trio check` as a process, against emulated engines on real sockets."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner

from narwhal.cli import main

from processes import Command, run, write_fleet

pytestmark = pytest.mark.sockets

LEASE_S = 3.0


@pytest.fixture(scope="module")
def engines() -> Iterator[list[str]]:
    with Command("emulate", "--engines", "4", "--base-port", "0", "--lease", str(LEASE_S)) as own:
        yield [own.url() for _ in range(4)]


def fleet_file(path: Path, urls: list[str], **engine: Any) -> Path:
    write_fleet(path, urls)
    document = json.loads(path.read_text())
    document["engine"] = {"kv_lease_s": LEASE_S, **engine}
    path.write_text(json.dumps(document))
    return path


def idle(urls: list[str]) -> bool:
    stats = [httpx.get(f"{url}/emulator/stats").json() for url in urls]
    return not any(each["running"] or each["waiting"] or each["staged"] for each in stats)


def asked(url: str) -> int:
    """How often the engine was asked whether it is well."""
    count: int = httpx.get(f"{url}/emulator/stats").json()["routes"].get("/health", 0)
    return count


def test_a_healthy_fleet_is_ready(engines: list[str], tmp_path: Path) -> None:
    fleet = fleet_file(tmp_path / "fleet.json", engines)
    code, out, err = run("check", "--fleet", str(fleet), "--format", "json", cwd=tmp_path)
    report = json.loads(out)
    assert (code, err) == (0, ""), report
    assert report["ok"]
    assert not [each for each in report["findings"] if each["result"] in ("fail", "warn")]
    assert report["gates"]["consume"] == report["gates"]["release"] == "pass"
    assert len([each for each in report["findings"] if each["gate"] == "consume"]) == 12
    assert {each["limit"] for each in report["limits"]} >= {"request", "first_token", "handoff"}
    assert idle(engines)


def test_text_has_the_gates_the_limits_and_the_verdict(engines: list[str], tmp_path: Path) -> None:
    fleet = fleet_file(tmp_path / "fleet.json", engines)
    argument = ("--fleet", str(fleet), "--ring", "--lease-wait", "0", "--repeats", "2")
    code, out, _ = run("check", *argument, cwd=tmp_path)
    assert code == 0
    lines = out.splitlines()
    assert lines[0].split() == ["gate", "result", "findings"]
    assert lines[1].split()[:2] == ["config", "pass"]
    # What is the same of several engines is said once.
    (skipped,) = [line for line in lines if line.startswith("SKIPPED release: ")]
    assert sorted(skipped.removeprefix("SKIPPED release: ").split(", ")) == ["e0", "e1", "e2", "e3"]
    assert any(line.split()[:3] == ["first_token", "2.5", "s"] for line in lines)
    assert lines[-1].startswith("ready for traffic (")
    assert "PASS reach" not in out
    code, out, _ = run("check", *argument, "--verbose", "--no-kv", cwd=tmp_path)
    assert code == 0
    assert "PASS reach: " in out


def test_a_broken_fleet_says_what_to_do_and_exits_with_1(
    engines: list[str], tmp_path: Path
) -> None:
    fleet = fleet_file(tmp_path / "fleet.json", [*engines[:3], "http://127.0.0.1:9"])
    code, out, _ = run("check", "--fleet", str(fleet), "--lease-wait", "0", cwd=tmp_path)
    assert code == 1
    assert "FAIL reach: e3" in out
    assert "  do        start it, or mend its url; while it boots, --wait SECONDS waits" in out
    assert out.splitlines()[-1].startswith("not ready for traffic: 1 failed (")
    assert idle(engines)


def test_a_lease_that_is_shorter_than_the_file_says_fails(
    engines: list[str], tmp_path: Path
) -> None:
    fleet = fleet_file(tmp_path / "fleet.json", engines, kv_lease_s=30)
    code, out, _ = run("check", "--fleet", str(fleet), "--ring", cwd=tmp_path)
    assert code == 1
    assert "a forgotten handoff was free after 3" in out
    assert "kv_lease_duration 30" in out


def test_ctrl_c_tells_what_was_seen_and_leaves_the_engines_idle(
    engines: list[str], tmp_path: Path
) -> None:
    fleet = fleet_file(tmp_path / "fleet.json", [*engines[:3], "http://127.0.0.1:9"])
    before = asked(engines[0])
    with Command("check", "--fleet", str(fleet), "--wait", "600", cwd=tmp_path) as command:
        # It is at its first gate as soon as it has asked an engine anything.
        while asked(engines[0]) == before:
            assert command.process.poll() is None
        command.signal(signal.SIGINT)
        code, out, err = command.end()
    assert (code, err) == (130, "")
    assert out.splitlines()[-1].startswith("interrupted after ")
    assert idle(engines)


def test_a_calibration_is_printed(engines: list[str], tmp_path: Path) -> None:
    fleet = fleet_file(tmp_path / "fleet.json", engines[:2])
    argument = ("--fleet", str(fleet), "--ring", "--lease-wait", "0", "--calibrate-first-token")
    code, out, _ = run("check", *argument, cwd=tmp_path)
    assert code == 0
    assert "engine.first_token_timeout_s: " in out
    assert "2.5 s in the fleet file" in out


def test_a_faulty_fleet_file_fails_at_the_first_gate(tmp_path: Path) -> None:
    fleet = tmp_path / "fleet.json"
    fleet.write_text('{"schema": "narwhal.fleet", "schema_version": 1, "modle": "m"}')
    told = CliRunner().invoke(main, ["check", "--fleet", str(fleet), "--format", "json"])
    report = json.loads(told.stdout)
    assert told.exit_code == 1
    assert report["gates"] == {"config": "fail"}
    assert any("modle" in each["seen"] for each in report["findings"])
    assert all(each["do"] for each in report["findings"])


@pytest.mark.parametrize(
    "argument",
    [(), ("--fleet", "f.json", "--wait", "-1"), ("--fleet", "f.json", "--repeats", "0"), ("x",)],
)
def test_a_command_that_is_used_wrongly_exits_with_2(argument: tuple[str, ...]) -> None:
    assert CliRunner().invoke(main, ["check", *argument]).exit_code == 2
