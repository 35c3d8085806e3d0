"""What the commands have in common: a line that is printed is one, and tells a terminal nothing."""

from __future__ import annotations

import io
import json
import logging
import resource
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from rich.console import Console
from rich.live import Live

from narwhal.cli import main
from narwhal.cli.check_live import Progress
from narwhal.cli.check_report import as_text
from narwhal.cli.engines_call import Caller
from narwhal.cli.running import fail, set_up_logging
from narwhal.cli.serve_command import allow_files
from narwhal.preflight import Finding, Gate, Grade, Report
from narwhal.testing import fleet_config

from processes import buffering

EVIL = "x\x1b[2J\x9b31m\x07\u202e\nnarwhal-trio: forged"


def is_harmless(text: str) -> bool:
    return all(line.isprintable() for line in text.split("\n")) and "\nnarwhal-trio: f" not in text


def run(*arguments: str) -> str:
    """What is printed, as a terminal gets it."""
    done = CliRunner().invoke(main, arguments, color=True)
    return done.output


def test_a_line_of_the_log_is_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    monkeypatch.setattr(logging.getLogger(), "level", logging.INFO)
    set_up_logging("info")
    logger = logging.getLogger("narwhal.test")
    logger.warning("engine d0: %s", EVIL)
    try:
        int("why")
    except ValueError:
        logger.exception("failed: %s", EVIL)
    first, second, *traceback = capsys.readouterr().err.splitlines()
    assert "WARNING narwhal.test: engine d0: x [2J 31m   narwhal-trio: forged" in first
    assert "ERROR narwhal.test: failed: x" in second
    assert is_harmless(first + second)
    assert traceback[0].startswith("Traceback")
    assert traceback[-1].startswith("ValueError: ")


def test_reasons_to_fail() -> None:
    @click.command()
    def command() -> None:
        raise fail(f"/narwhal/lifecycle says {EVIL}")

    done = CliRunner().invoke(command, color=True)
    assert done.exit_code == 1
    assert is_harmless(done.output)
    assert done.output.startswith("narwhal-trio: /narwhal/lifecycle says x [2J")


def test_what_an_engine_says_in_a_preflight() -> None:
    finding = Finding(
        gate=Gate.IDENTITY, grade=Grade.FAIL, subject="d0", seen=EVIL, expected=EVIL, advice=EVIL
    )
    console = Console(file=io.StringIO(), force_terminal=True, color_system=None, width=100)
    live = Live(console=console, auto_refresh=False)
    Progress(live).finding(finding)
    console.print(live.renderable)
    assert is_harmless(console.file.getvalue())  # type: ignore[attr-defined]  # a StringIO
    text = as_text(
        Report(findings=(finding,), limits=(), calibration=None, seconds=1.0),
        interrupted=False,
        verbose=True,
    )
    assert is_harmless(text)
    assert "  seen      x [2J 31m" in text


def test_what_a_router_says_of_its_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    fields = {"role": "decode", "state": "held", "residents": 0, "ready_to_stop": True}
    state = {"iid": "d0", **fields, "drain": None, "reason": EVIL}
    answers = {"GET": (200, {"engines": [state]}), "POST": (200, {"engine": {}, "passed": [EVIL]})}
    monkeypatch.setattr(
        Caller, "_call", lambda _self, _path, order=None: answers["POST" if order else "GET"]
    )
    for words in (["list"], ["readmit", "d0"]):
        assert is_harmless(run("engines", *words))
    assert json.loads(run("engines", "list", "--format", "json")) == [state]


def test_the_name_of_a_journal(tmp_path: Path) -> None:
    journal = tmp_path / EVIL.replace("/", "")
    journal.write_bytes(b"")
    for form in ("table", "json"):
        assert is_harmless(run("report", str(journal), "--format", form))
    assert is_harmless(run("report", str(tmp_path / f"{EVIL}, missing")))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no device that is always full")
@pytest.mark.parametrize("words", [["config", "example"], ["report", "-"]])
def test_output_that_finds_no_room_is_one_line(words: list[str]) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(  # noqa: S603 - our own command
            [sys.executable, "-m", "narwhal", *words],
            stdin=subprocess.DEVNULL,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            env=buffering(),
        )
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        "narwhal-trio: the output cannot be written: No space left on device; make room for it"
    ]


@pytest.mark.parametrize(
    ("limits", "raised", "warned"),
    [
        ((1024, 1_048_576), [(1_048_576, 1_048_576)], False),
        ((65_536, 65_536), [], False),
        ((1024, 4096), [(4096, 4096)], True),
        ((1024, resource.RLIM_INFINITY), [(resource.RLIM_INFINITY, resource.RLIM_INFINITY)], False),
    ],
)
def test_a_router_may_open_as_many_files_as_it_is_let(
    limits: tuple[int, int],
    raised: list[tuple[int, int]],
    warned: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    done: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _which: limits)
    monkeypatch.setattr(resource, "setrlimit", lambda _which, new: done.append(new))
    allow_files(fleet_config())
    assert done == raised
    assert ("may open 4096 files" in caplog.text) is warned
    assert ("serving.max_client_connections" in caplog.text) is warned
