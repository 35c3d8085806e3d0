"""`narwhal-trio profile` as a process, against emulated engines on real sockets."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from processes import Command, run, write_fleet

pytestmark = pytest.mark.sockets

SWEEP = (
    *("--prefill-lens", "128,512,1024,2048", "--prefill-repeats", "3"),
    *("--decode-input-lens", "64,512", "--decode-concurrency", "1,3", "--decode-tokens", "16"),
)


@pytest.fixture(scope="module")
def engines() -> Iterator[list[str]]:
    with Command("emulate", "--engines", "2", "--base-port", "0", "--speed", "2") as own:
        yield [own.url(), own.url()]


def idle(urls: list[str]) -> bool:
    """Whether no engine has anything left to do or to keep."""
    stats = [httpx.get(f"{url}/emulator/stats").json() for url in urls]
    return not any(each["running"] or each["waiting"] or each["staged"] for each in stats)


def test_a_store_that_the_router_takes(engines: list[str], tmp_path: Path) -> None:
    fleet = write_fleet(tmp_path / "fleet.json", engines, admission="predictive")
    argument = ("--fleet", str(fleet), "--format", "json", *SWEEP)
    code, out, err = run("profile", *argument, "--out", "runs/profiles.json", cwd=tmp_path)
    assert code == 0, err
    assert [each["iid"] for each in json.loads(out)["engines"]] == ["e0", "e1"]
    assert "measuring e1, 2 of 2" in err
    assert idle(engines)
    with Command("serve", "--fleet", str(fleet), "--port", "0", cwd=tmp_path) as router:
        url = router.url()
        answer = httpx.post(
            f"{url}/v1/completions", json={"model": "emulated", "prompt": "hi", "max_tokens": 2}
        )
        assert answer.status_code == 200


def test_ctrl_c_leaves_the_engines_idle_and_says_what_is_saved(
    engines: list[str], tmp_path: Path
) -> None:
    fleet = write_fleet(tmp_path / "fleet.json", engines)
    argument = ("--fleet", str(fleet), "--only", "e1", "--out", str(tmp_path / "store.json"))
    with Command("profile", *argument) as command:
        assert command.process.stderr is not None
        assert "measuring 1 engine: " in command.process.stderr.readline()
        assert "measuring e1, 1 of 1" in command.process.stderr.readline()
        command.signal(signal.SIGINT)
        code, out, err = command.end()
    assert code == 130
    assert out == "nothing was measured\n"
    assert err.splitlines() == [
        "narwhal-trio: interrupted",
        "narwhal-trio: measured and saved: none; the same command goes on with the others",
    ]
    assert idle(engines)
    assert not (tmp_path / "store.json").exists()


def test_engines_that_are_not_there_are_a_line_each(tmp_path: Path) -> None:
    fleet = write_fleet(tmp_path / "fleet.json", ["http://127.0.0.1:1", "http://127.0.0.1:2"])
    code, _, err = run("profile", "--fleet", str(fleet), cwd=tmp_path)
    assert code == 1
    first, second = err.splitlines()
    assert first.startswith("narwhal-trio: e0: does not say its version: ")
    assert second.startswith("narwhal-trio: e1: does not say its version: ")
    assert not list(tmp_path.glob("**/*profiles.json"))


def test_of_two_at_once_one_notices_the_other(engines: list[str], tmp_path: Path) -> None:
    """Which of the two is a matter of timing; the other may then go on alone."""
    fleet = write_fleet(tmp_path / "fleet.json", engines)
    with Command("profile", "--fleet", str(fleet), "--out", str(tmp_path / "a.json")) as first:
        assert first.process.stderr is not None
        first.process.stderr.readline()
        store = str(tmp_path / "b.json")
        code, _, err = run("profile", "--fleet", str(fleet), "--out", store, *SWEEP)
        if code == 0:
            code, _, err = first.end()
    assert code == 1
    assert "it is busy: " in err
    assert "drain it" in err
