"""`narwhal-trio engines`: against a router that is made up, and once against a real one."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import httpx
import pytest
from click.testing import CliRunner, Result

from narwhal.cli import engines_call
from narwhal.cli.main import main

from processes import Command, run, write_fleet

ALL_CHECKS = ["health", "model", "identity", "contract", "generation", "transfer", "health"]


def state(iid: str, **changes: Any) -> dict[str, Any]:
    plain = {
        "iid": iid,
        "role": "decode",
        "state": "serving",
        "reason": "",
        "residents": 0,
        "ready_to_stop": False,
        "checking": None,
        "process_start_s": None,
        "drain": None,
    }
    return plain | changes


def drained(iid: str, residents: int = 0, **drain: Any) -> dict[str, Any]:
    return state(
        iid,
        state="draining" if residents else "drained",
        residents=residents,
        ready_to_stop=not residents,
        drain={"since_s": 1.0, "deadline_s": None, "overdue": False, "process_start_s": 5.0}
        | drain,
    )


@attrs.define
class MadeUp:
    """A router's answers, one after the other; the last one stays."""

    answers: list[tuple[int, dict[str, Any]]]
    calls: list[tuple[str, dict[str, object] | None]] = attrs.field(factory=list)
    naps: list[float] = attrs.field(factory=list)

    def call(self, path: str, order: dict[str, object] | None) -> tuple[int, dict[str, Any]]:
        self.calls.append((path.removeprefix(engines_call.PATH), order))
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]

    @property
    def orders(self) -> list[tuple[str, dict[str, object] | None]]:
        return [each for each in self.calls if each[1] is not None]


def play(
    monkeypatch: pytest.MonkeyPatch, *arguments: str, answers: list[tuple[int, dict[str, Any]]]
) -> tuple[Result, MadeUp]:
    made = MadeUp(answers)
    monkeypatch.setattr(
        engines_call.Caller, "_call", lambda _self, path, order=None: made.call(path, order)
    )
    monkeypatch.setattr(time, "sleep", made.naps.append)
    return CliRunner().invoke(main, ["engines", *arguments]), made


def listed(*states: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    return 200, {"engines": list(states)}


def test_a_table_for_people(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = listed(
        state("p0", role="prefill"),
        drained("d0", 3, deadline_s=12.4),
        drained("d1", 1, deadline_s=-2.0, overdue=True),
        drained("d2", deadline_s=30.0),
    )
    result, _ = play(monkeypatch, "list", answers=[answer])
    assert result.exit_code == 0
    assert [line.split() for line in result.stdout.splitlines()] == [
        ["ENGINE", "ROLE", "STATE", "RESIDENTS", "DEADLINE", "STOP?", "REASON"],
        ["p0", "prefill", "serving", "0", "-", "no", "-"],
        ["d0", "decode", "draining", "3", "12", "s", "no", "-"],
        ["d1", "decode", "draining", "1", "overdue", "no", "-"],
        ["d2", "decode", "drained", "0", "-", "yes", "-"],
    ]
    result, _ = play(monkeypatch, "list", "d2", "--format", "json", answers=[answer])
    assert json.loads(result.stdout) == [drained("d2", deadline_s=30.0)]


def test_drain_waits_until_all_may_be_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    before = listed(state("d0"), state("d1"))
    answers = [
        before,
        listed(drained("d0", 2)),
        listed(drained("d1", 2)),
        listed(drained("d0", 2), drained("d1", 1)),
        listed(drained("d0"), drained("d1", 1)),
        listed(drained("d0"), drained("d1")),
    ]
    arguments = ("drain", "d0", "d1", "--wait", "--deadline", "9")
    result, made = play(monkeypatch, *arguments, answers=answers)
    assert result.exit_code == 0
    assert made.orders == [
        ("/drain", {"engine": "d0", "deadline_s": 9.0}),
        ("/drain", {"engine": "d1", "deadline_s": 9.0}),
    ]
    assert len(made.naps) == 2
    assert result.stdout.count("yes") == 2


def test_the_fleet_is_one_order(monkeypatch: pytest.MonkeyPatch) -> None:
    result, made = play(monkeypatch, "drain", "--all", answers=[listed(drained("d0"))])
    assert result.exit_code == 0
    assert made.orders == [("/drain", {})]


@pytest.mark.parametrize("arguments", [(), ("d0", "--all")])
def test_a_fleet_is_not_drained_by_mistake(
    arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    result, made = play(monkeypatch, "drain", *arguments, answers=[listed(state("d0"))])
    assert result.exit_code == 1
    assert "name the engines to drain, or drain all of them with --all" in result.stderr
    assert not made.calls


def test_waiting_ends_with_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [
        listed(state("d0")),
        listed(drained("d0", 1)),
        listed(drained("d0", 1)),
        listed(drained("d0", 1, deadline_s=-0.1, overdue=True)),
    ]
    result, made = play(monkeypatch, "drain", "d0", "--wait", "--deadline", "1", answers=answers)
    assert (result.exit_code, len(made.naps)) == (1, 1)
    assert "not empty by the deadline: d0" in result.stderr


def test_waiting_ends_if_somebody_readmits_it(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [listed(state("d0")), listed(drained("d0", 1)), listed(state("d0"))]
    result, _ = play(monkeypatch, "drain", "d0", "--wait", answers=answers)
    assert result.exit_code == 1
    assert "d0 was readmitted meanwhile" in result.stderr


def test_a_refused_readmission_names_check_and_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = {
        "error": {"message": "no", "code": "check_failed"},
        "engine": drained("d0"),
        "failed": {"check": "contract", "reason": "version is wrong"},
        "passed": ["health", "model", "identity"],
    }
    answers = [listed(drained("d0"), drained("d1")), (409, refused)]
    result, made = play(monkeypatch, "readmit", "d0", "d1", answers=answers)
    assert result.exit_code == 1
    assert result.stderr.splitlines() == [
        "narwhal-trio: d0 stays out of service: its check contract failed: version is wrong",
        "narwhal-trio: passed before that: health, model, identity",
    ]
    assert made.orders == [("/readmit", {"engine": "d0", "same_process": False})]


def test_a_readmission_that_cannot_be(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = (409, {"error": {"message": "d0 is serving: drain it first."}})
    result, _ = play(monkeypatch, "readmit", "d0", answers=[listed(state("d0")), refused])
    assert (result.exit_code, result.stderr) == (
        1,
        "narwhal-trio: d0 is serving: drain it first.\n",
    )
    result, made = play(monkeypatch, "readmit", answers=[refused])
    assert (result.exit_code, made.calls) == (1, [])


@pytest.mark.parametrize("command", ["list", "drain", "readmit"])
def test_an_unknown_engine(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    result, made = play(monkeypatch, command, "x9", answers=[listed(state("p0"), state("d0"))])
    assert result.exit_code == 1
    assert result.stderr == "narwhal-trio: no engine x9: the fleet has p0, d0\n"
    assert not made.orders


def test_something_else_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    result, _ = play(monkeypatch, "list", answers=[(404, {"detail": "Not Found"})])
    assert result.exit_code == 1
    assert "is no router of this kind (/narwhal/lifecycle: 404)" in result.stderr


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "file:///etc/passwd", "http://"])
def test_an_address_that_is_none(url: str) -> None:
    result = CliRunner().invoke(main, ["engines", "list", "--url", url])
    assert result.exit_code == 1
    assert f"--url {url}: give the router's address" in result.stderr


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[str, list[str]]]:
    with Command("emulate", "--engines", "4", "--base-port", "0", "--speed", "5") as own:
        urls = [own.url() for _ in range(4)]
        fleet = write_fleet(tmp_path / "fleet.json", urls)
        with Command("serve", "--fleet", str(fleet), "--port", "0", cwd=tmp_path) as router:
            yield router.url(), urls


@pytest.mark.sockets
def test_drain_restart_and_readmit_for_real(served: tuple[str, list[str]]) -> None:
    url, engines = served
    code, out, err = run("engines", "drain", "e3", "--wait", "--url", url)
    assert (code, err) == (0, "")
    assert out.splitlines()[1].split()[:6] == ["e3", "decode", "drained", "0", "-", "yes"]
    code, _, err = run("engines", "readmit", "e3", "--url", url)
    assert code == 1
    assert "its check identity failed: it is still the process that was drained" in err
    down = {"engine": "e3", "seconds": 0.2, "restart": True}
    assert httpx.post(f"{engines[0]}/emulator/down", json=down).status_code == 200
    while not _restarted(engines[3]):
        pass
    code, out, err = run("engines", "readmit", "e3", "--url", url, "--format", "json")
    assert (code, err) == (0, "")
    told = json.loads(out)
    assert (told["passed"], told["engine"]["state"]) == (ALL_CHECKS, "serving")
    code, out, _ = run("engines", "list", "--url", f"{url}/", "--format", "json")
    assert [each["state"] for each in json.loads(out)] == ["serving"] * 4
    code, _, err = run("engines", "readmit", "e3", "--url", url)
    assert (code, err.count("\n")) == (1, 1)
    assert "e3 is serving" in err


def _restarted(url: str) -> bool:
    try:
        stats = httpx.get(f"{url}/emulator/stats").json()
    except httpx.TransportError:
        return False
    return bool(stats["restarts"])


@pytest.mark.sockets
def test_no_router_is_one_line() -> None:
    code, out, err = run("engines", "list", "--url", "http://127.0.0.1:1")
    assert (code, out) == (1, "")
    assert err == (
        "narwhal-trio: no router at http://127.0.0.1:1: Connection refused; say where it is with "
        "--url, or start it with `narwhal-trio serve`\n"
    )
