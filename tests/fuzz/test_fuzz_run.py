"""The runner: what it says, what it keeps, and how it exits. The fuzzer itself is played."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from fuzz import run, targets

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

Play = Any


@pytest.fixture
def played(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[list[str]]]:
    """Makes every process end as told; returns what they were started with."""

    def play(output: str, *, code: int = 0, crash: bytes | None = None) -> list[list[str]]:
        started: list[list[str]] = []

        def process(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
            started.append(command)
            said = output
            if crash is not None:
                kept = tmp_path / "crashes" / command[2] / "crash-1"
                kept.write_bytes(crash)
                said += f"\nartifact_prefix='x'; Test unit written to {kept}\nBase64: eA==\n"
            return subprocess.CompletedProcess(command, code, stdout=said)

        monkeypatch.setattr(run, "FOUND", tmp_path / "found")
        monkeypatch.setattr(run, "CRASHES", tmp_path / "crashes")
        monkeypatch.setattr(run, "find_spec", lambda _: True)
        monkeypatch.setattr(subprocess, "run", process)
        return started

    return play


def test_each_target_runs_in_a_process_of_its_own(
    played: Play, capsys: pytest.CaptureFixture[str]
) -> None:
    started = played("Done 4000 runs in 2 second(s)")
    assert run.main(["--executions", "4000", "--seed", "3"]) == 0
    assert [command[2] for command in started] == targets.names()
    for command in started:
        assert {"-runs=4000", "-seed=3"} <= set(command)
        assert str(targets.CORPUS / command[2]) in command
    assert "sse_events: 4000 executions, 2000 a second" in capsys.readouterr().out


def test_a_crash_is_kept_and_its_replay_printed(
    played: Play, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = "=== Uncaught Python exception: ===\nAssertionError: lost"
    played(f"#1 NEW\n{trace}", code=77, crash=b"data: x")
    assert run.main(["sse_events", "handoff"]) == 1
    out = capsys.readouterr().out
    crash = tmp_path / "crashes" / "sse_events" / "crash-1"
    assert f"fuzz/run.py sse_events --replay {crash}" in out
    assert out.startswith(trace)
    assert out.endswith("broken: sse_events, handoff\n")
    assert run.main(["sse_events", "--replay", str(crash)]) == 0


@pytest.mark.parametrize(("output", "code"), [("", 0), ("Done 1 runs in 0 second(s)", 1)])
def test_a_process_that_did_not_finish_is_no_success(played: Play, output: str, code: int) -> None:
    played(output, code=code)
    assert run.main(["handoff"]) == 1


def test_finds_of_earlier_runs_are_used_only_if_asked_for(played: Play, tmp_path: Path) -> None:
    played("Done 1 runs in 0 second(s)")
    find = tmp_path / "found" / "handoff" / "abc"
    find.parent.mkdir(parents=True)
    find.write_bytes(b"{}")
    assert run.main(["handoff", "--resume"]) == 0
    assert find.exists()
    assert run.main(["handoff"]) == 0
    assert not find.exists()


def test_a_replay_raises_what_the_check_raises(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    crash = tmp_path / "crash"
    crash.write_bytes(b"wait(-1)")
    monkeypatch.setattr("narwhal.emulator.fault_text._Unreadable", KeyError)
    with pytest.raises(KeyError):
        run.main(["fault_text", "--replay", str(crash)])


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nonsense"], "no target is called nonsense"),
        (["--replay", "x"], "needs the one target"),
        (["handoff"], "atheris is not installed here"),
    ],
)
def test_what_cannot_be_done_is_explained(
    arguments: list[str],
    says: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(run, "find_spec", lambda _: None)
    assert run.main(arguments) == 2
    assert says in capsys.readouterr().err
