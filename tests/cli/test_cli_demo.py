"""`demo` as a process, asked what the README says to ask it."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from processes import PATIENCE_S, Command, run

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")

pytestmark = pytest.mark.sockets
needs_curl = pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")


def tour() -> list[str]:
    """The lines of the README's tour."""
    _, _, after = README.partition("## A tour in ten lines\n")
    return after.split("```sh\n")[1].split("```")[0].splitlines()


def at(url: str, *lines: str) -> str:
    """As a script for a demo that listens at `url`."""
    return "\n".join(lines).replace("http://127.0.0.1:8000", url)


def bash(script: str) -> subprocess.Popen[str]:
    return subprocess.Popen(  # noqa: S603 - the README's own commands
        ["bash", "-uc", script],  # noqa: S607 - found as a reader's shell finds it
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )


def test_a_load_is_served_and_shown_and_the_end_is_clean() -> None:
    code, out, err = run("demo", "--load", "30", "--seconds", "2", "--port", "0")
    assert (code, err) == (0, "")
    completed = re.search(r"│ completed +│ +(\d+) │", out)
    assert completed is not None
    assert int(completed[1]) > 0
    assert re.search(r"│ failed +│", out)
    assert re.search(r"│ on d1 +│", out)


@needs_curl
@pytest.mark.parametrize("interrupted", [False, True])
def test_the_readme_s_first_question_streams_to_its_end(interrupted: bool) -> None:
    address, question, *_ = tour()
    assert "curl -N $api/v1/chat/completions" in question
    with (
        Command("demo", "--port", "0") as command,
        bash(at(command.url(), address, question)) as curl,
    ):
        assert curl.stdout is not None
        first = curl.stdout.readline()
        if interrupted:
            command.signal(signal.SIGINT)
        rest, _ = curl.communicate(timeout=PATIENCE_S)
        assert curl.returncode == 0
        assert first.startswith("data: {")
        assert rest.endswith("data: [DONE]\n\n")
        if not interrupted:
            command.signal(signal.SIGTERM)
        assert command.end()[0] == 0
