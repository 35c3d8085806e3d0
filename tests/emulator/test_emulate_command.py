"""`narwhal-trio emulate` as a process, on real sockets."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import urllib.request
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from narwhal.cli.emulate_command import emulate

if TYPE_CHECKING:
    from collections.abc import Iterator

RUN = "from narwhal.cli.emulate_command import emulate; emulate()"


@pytest.fixture
def ports() -> Iterator[int]:
    """The first of two ports in a row that are free."""
    for base in range(21_000, 22_000, 2):
        with socket.socket() as one, socket.socket() as two:
            try:
                one.bind(("127.0.0.1", base))
                two.bind(("127.0.0.1", base + 1))
            except OSError:
                continue
        yield base
        return
    raise AssertionError("no two free ports")


@contextmanager
def killed_at_last(process: subprocess.Popen[str]) -> Iterator[None]:
    try:
        yield
    finally:
        process.kill()


@pytest.mark.sockets
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_serves_until_it_is_told_to_end(ports: int, number: signal.Signals) -> None:
    command = [sys.executable, "-c", RUN, "--base-port", str(ports), "--model", "tiny"]
    process = subprocess.Popen(  # noqa: S603 - this interpreter, this package
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    with process, killed_at_last(process):
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(2)]
        assert lines == [
            f"e0 http://127.0.0.1:{ports} model tiny\n",
            f"e1 http://127.0.0.1:{ports + 1} model tiny\n",
        ]
        with urllib.request.urlopen(f"http://127.0.0.1:{ports + 1}/health") as answer:
            assert answer.status == 200
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
        assert (process.returncode, out, err) == (0, "", "")


@pytest.mark.sockets
def test_a_port_in_use_is_one_clear_line(ports: int) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", ports + 1))
        taken.listen()
        result = CliRunner().invoke(emulate, ["--base-port", str(ports)])
    assert result.exit_code == 1
    (line,) = result.stderr.splitlines()
    assert f"127.0.0.1:{ports + 1}" in line
    assert "--base-port" in line


@pytest.mark.parametrize(
    ("arguments", "code", "complaint"),
    [
        (["--base-port", "65535"], 1, "past port 65535"),
        (["--base-port", "9000", "--kv-capacity", "100"], 1, "--max-model-len 32768"),
        (["--base-port", "9000", "--prefill", "1,2"], 2, "3 numbers"),
        (["--base-port", "9000", "--decode", "1,2,-3"], 2, "3 numbers"),
        (["--base-port", "9000", "--handoff", "1"], 2, "2 numbers"),
        (["--base-port", "9000", "--noise", "0.5"], 2, "--noise"),
        (["--base-port", "9000", "--fault", "explode"], 2, "no action is called"),
        (["--base-port", "9000", "--speed", "0"], 2, "--speed"),
        ([], 2, "--base-port"),
    ],
)
def test_arguments_that_make_no_fleet(arguments: list[str], code: int, complaint: str) -> None:
    result = CliRunner().invoke(emulate, arguments)
    assert result.exit_code == code
    assert complaint in result.stderr
