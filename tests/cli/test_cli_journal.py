"""The journal of `serve` as a process: rotated by a signal, and on a disk that takes nothing."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from processes import PATIENCE_S, Command, write_fleet

pytestmark = pytest.mark.sockets

F_SETPIPE_SZ = 1031
ASK = {"model": "emulated", "prompt": "x", "max_tokens": 1}


@pytest.fixture(scope="module")
def engines() -> Iterator[list[str]]:
    argument = ("--base-port", "0", "--decode", "0,0,0", "--prefill", "0,0,0")
    with Command("emulate", "--engines", "2", *argument) as command:
        yield [command.url(), command.url()]
        command.signal(signal.SIGTERM)
        command.end()


def serve(tmp_path: Path, engines: list[str], journal: Path) -> Command:
    fleet = write_fleet(tmp_path / "fleet.json", engines)
    return Command("serve", "--fleet", str(fleet), "--port", "0", "--journal", str(journal))


def until(true: Callable[[], object]) -> None:
    """Poll, with no more patience than there is with any command."""
    end = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_the_journal_is_rotated_by_mv_and_sighup(engines: list[str], tmp_path: Path) -> None:
    path, old = tmp_path / "journal.jsonl", tmp_path / "journal.1"
    with serve(tmp_path, engines, path) as command:
        url = command.url()
        assert httpx.post(f"{url}/v1/completions", json=ASK).status_code == 200
        until(lambda: b'"request"' in path.read_bytes())
        path.rename(old)
        assert httpx.post(f"{url}/v1/completions", json=ASK).status_code == 200
        command.signal(signal.SIGHUP)
        until(path.exists)
        assert httpx.post(f"{url}/v1/completions", json=ASK).status_code == 200
        command.signal(signal.SIGTERM)
        code, _, err = command.end()
    assert (code, err.count("Traceback")) == (0, 0)
    before = [json.loads(line)["event"] for line in old.read_text().splitlines()]
    after = [json.loads(line)["event"] for line in path.read_text().splitlines()]
    assert (before[0], after[0], after[-1]) == ("start", "rotated", "stop")
    assert sorted((before + after)[1:-1]) == ["request"] * 3 + ["rotated", "router"]


def test_a_disk_that_takes_nothing_holds_nobody_up(engines: list[str], tmp_path: Path) -> None:
    """A pipe that nobody reads: the first page fills it, and every later write hangs."""
    path = tmp_path / "journal"
    os.mkfifo(path)
    pipe = os.open(path, os.O_RDWR | os.O_NONBLOCK)
    try:
        fcntl.fcntl(pipe, F_SETPIPE_SZ, 4096)
        os.write(pipe, b"." * 4096)
        with serve(tmp_path, engines, path) as command:
            url = command.url()
            with httpx.Client() as client:
                for _ in range(50):
                    assert client.post(f"{url}/v1/completions", json=ASK).status_code == 200
            command.signal(signal.SIGTERM)
            code, _, err = command.end()
        assert (code, err.count("Traceback")) == (0, 0)
    finally:
        os.close(pipe)
