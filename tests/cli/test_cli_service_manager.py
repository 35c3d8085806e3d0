"""What systemd hears of a router, and what the environment and the shell may say to the command."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import click
import pytest
import trio
from click.testing import CliRunner
from trio.testing import MockClock

from narwhal.cli import main
from narwhal.cli.service_manager import ServiceManager

from processes import PATIENCE_S, Command, write_fleet


class Listening:
    """The socket of a service manager."""

    def __init__(self, address: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(address.replace("@", "\0"))
        self._socket.settimeout(PATIENCE_S)

    def hears(self) -> str:
        return self._socket.recv(4096).decode()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._socket.close()


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, Listening]]:
    path = str(tmp_path / "notify")
    address = path if request.param == "path" else f"@narwhal-test-{os.getpid()}"
    with Listening(address) as listening:
        yield address, listening


def test_it_is_told_what_happens(manager: tuple[str, Listening]) -> None:
    address, listening = manager
    told = ServiceManager({"NOTIFY_SOCKET": address})
    told.ready("serving m")
    assert listening.hears() == "READY=1\nSTATUS=serving m"
    told.stopping("draining")
    assert listening.hears() == "STOPPING=1\nSTATUS=draining"
    assert told.watchdog_s == 0


def test_the_watchdog_hears_of_the_loop_twice_in_its_time(manager: tuple[str, Listening]) -> None:
    address, listening = manager
    told = ServiceManager(
        {"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "30000000", "WATCHDOG_PID": str(os.getpid())}
    )
    assert told.watchdog_s == 30

    async def script() -> None:
        with trio.move_on_after(50):
            await told.keep_alive()

    trio.run(script, clock=MockClock(autojump_threshold=0))
    told.stopping("that is all")
    heard = list(iter(listening.hears, "STOPPING=1\nSTATUS=that is all"))
    assert heard == ["WATCHDOG=1"] * 4


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"WATCHDOG_USEC": "1000000"},
        {"NOTIFY_SOCKET": "/nowhere", "WATCHDOG_USEC": "soon"},
        {"NOTIFY_SOCKET": "/nowhere", "WATCHDOG_USEC": "1000000", "WATCHDOG_PID": "1"},
    ],
)
def test_a_watchdog_that_is_not_for_this_process_is_told_nothing(environ: dict[str, str]) -> None:
    told = ServiceManager(environ)
    assert told.watchdog_s == 0
    trio.run(told.keep_alive)


def test_one_that_does_not_listen_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    told = ServiceManager({"NOTIFY_SOCKET": str(tmp_path / "absent")})
    told.ready("serving m")
    told.stopping("draining")
    (record,) = caplog.records
    assert record.getMessage().startswith(f"NOTIFY_SOCKET is {tmp_path / 'absent'}: No such file")


@pytest.mark.sockets
def test_a_router_says_when_it_serves_lives_and_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet = write_fleet(tmp_path / "fleet.json", ["http://127.0.0.1:9", "http://127.0.0.1:10"])
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
    monkeypatch.setenv("WATCHDOG_USEC", "100000")
    monkeypatch.setenv("NARWHAL_TRIO_SERVE_FLEET", str(fleet))
    monkeypatch.setenv("NARWHAL_TRIO_SERVE_PORT", "0")
    with Listening(str(tmp_path / "notify")) as listening, Command("serve") as router:
        assert listening.hears() == "READY=1\nSTATUS=serving emulated"
        assert listening.hears() == "WATCHDOG=1"
        router.signal(signal.SIGTERM)
        while (heard := listening.hears()) == "WATCHDOG=1":
            pass
        assert heard == "STOPPING=1\nSTATUS=draining"
        assert router.end()[0] == 0


# The command line


def test_options_come_from_the_environment_and_the_command_line_comes_first() -> None:
    environ = {"NARWHAL_TRIO_DEMO_PORT": "99999", "NARWHAL_TRIO_DEMO_PREFILL": "2"}
    said = CliRunner().invoke(main, ["demo"], env=environ)
    assert said.exit_code == 2
    assert "99999" in said.output
    said = CliRunner().invoke(main, ["demo", "--port", "88888"], env=environ)
    assert "88888" in said.output


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_for_a_shell_is_made_of_this_command(shell: str) -> None:
    said = CliRunner().invoke(main, ["completion", shell])
    assert said.exit_code == 0
    assert "_NARWHAL_TRIO_COMPLETE" in said.output
    assert "narwhal-trio" in said.output


def test_another_shell_is_refused_with_those_there_are() -> None:
    said = CliRunner().invoke(main, ["completion", "tcsh"])
    assert said.exit_code == 2
    assert "bash" in said.output


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_bash_completes_commands_and_options(tmp_path: Path) -> None:
    script = CliRunner().invoke(main, ["completion", "bash"]).output
    program = tmp_path / "narwhal-trio"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m narwhal "$@"\n')
    program.chmod(0o755)
    asked = f"""{script}
COMP_WORDS=(narwhal-trio "$1"); COMP_CWORD=1
_narwhal_trio_completion narwhal-trio "$1" narwhal-trio
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
    answered = subprocess.run(  # noqa: S603 - a shell, with our own script
        [str(shutil.which("bash")), "-c", asked, "bash", "s"],
        check=False, capture_output=True, text=True,
        env=os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"},
    )  # fmt: skip
    assert answered.stdout.split() == ["serve", "simulate"], answered.stderr


def test_every_command_says_what_it_is_for() -> None:
    for name, command in main.commands.items():
        assert command.get_short_help_str(200), name
        assert isinstance(command, click.Command)
