"""`narwhal-trio check` says of real engines what is so, and finds what is not."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from real_engines import Engines
from real_router import write_fleet_file

from processes import run

pytestmark = [pytest.mark.real, pytest.mark.sockets]

# Two processors for three engines: a handoff takes as long as the others let it.
SLOW = {"first_token_timeout_s": 20.0, "health_timeout_s": 20.0, "tokenize_timeout_s": 20.0}


def check(folder: Path, engines: Engines, *arguments: str, lease_s: float = 6.0) -> dict[str, Any]:
    """Check all engines of a layout; the report, with the exit status in it."""
    folder.mkdir(exist_ok=True)
    roles = {each: "decode" if each.iid == "b2" else "prefill" for each in engines.all}
    settings = {"engine": {"kv_lease_s": lease_s, **SLOW}, "slo": {"ttft_s": 20.0, "tpot_s": 5.0}}
    fleet = write_fleet_file(folder / "fleet.json", roles, settings)
    code, out, err = run("check", "--fleet", str(fleet), "--format", "json", *arguments, cwd=folder)
    assert err == ""
    report: dict[str, Any] = json.loads(out)
    return {**report, "status": code}


def found(report: dict[str, Any], gate: str, result: str) -> list[dict[str, Any]]:
    return [each for each in report["findings"] if (each["gate"], each["result"]) == (gate, result)]


def test_ready(tmp_path: Path, both: Engines, note: Callable[..., None]) -> None:
    """Every gate is passed: each pair hands over, KV moves, leases end when they should."""
    report = check(tmp_path, both, "--lease-wait", "60")
    bad = [each for each in report["findings"] if each["result"] in ("fail", "warn")]
    # Leases of 6 s are shorter than the patience with slow processors, and it says so.
    assert (report["status"], [each["gate"] for each in bad]) == (0, ["config"])
    pairs = found(report, "consume", "pass")
    assert len(pairs) == 6
    assert all(each["figures"]["moved_tokens"] > 256 for each in pairs)
    figures = [each["figures"] for each in found(report, "release", "pass")]
    leases = [each["lease_s"] for each in figures if "lease_s" in each]
    freed = [each["released_s"] for each in figures if "released_s" in each]
    assert len(leases) == len(freed) == 3
    note(**{
        "check, s": report["seconds"],
        "free after a release leg, s, at most": round(max(freed), 3),
        "a lease of 6 s, s": [round(each, 2) for each in leases],
        "first token of a handoff, s, at most": round(
            max(each["figures"]["first_token_s"] for each in pairs), 3
        ),
    })  # fmt: skip
    assert not any(each.pinned or each.busy for each in both.all)


def test_calibrated(tmp_path: Path, both: Engines, note: Callable[..., None]) -> None:
    """Handoffs over the context are measured, and a limit is proposed."""
    report = check(tmp_path, both, "--ring", "--lease-wait", "0", "--calibrate-first-token")
    calibration = report["calibration"]
    assert calibration["troubles"] == []
    assert calibration["p99_s"] < calibration["proposed_first_token_timeout_s"]
    note(**{
        "handoffs timed": calibration["handoffs"],
        "p99, s": round(calibration["p99_s"], 3),
        "proposed first_token_timeout_s": calibration["proposed_first_token_timeout_s"],
    })  # fmt: skip


def test_short_lease(tmp_path: Path, both: Engines, note: Callable[..., None]) -> None:
    """Engines whose lease is shorter than the fleet file says are found out."""
    report = check(tmp_path, both, "--ring", "--lease-wait", "20", lease_s=30.0)
    assert report["status"] == 1
    failed = found(report, "release", "fail")
    assert {each["subject"] for each in failed} == {"b0", "b1", "b2"}
    assert all("kv_lease_duration 30" in each["do"] for each in failed)
    note(seen=failed[0]["seen"])


def test_gone(tmp_path: Path, both: Engines) -> None:
    """An engine that is not there fails at `reach`, and the others are looked at all the same."""
    both["b1"].kill()
    report = check(tmp_path, both, "--ring", "--lease-wait", "0")
    assert report["status"] == 1
    assert [each["subject"] for each in found(report, "reach", "fail")] == ["b1"]
    assert {each["subject"] for each in found(report, "produce", "pass")} == {"b0", "b2"}
