"""`serve --resume`: what is refused before anything is served, and once as a process."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import httpx
import pytest
import trio
from click.testing import CliRunner, Result

from narwhal.cli import main, serve_command
from narwhal.config import load_fleet
from narwhal.fleet import EngineState
from narwhal.model import Role
from narwhal.monitor import EngineRecord, SavedState, StateFile, load_state, state_bytes

from processes import Command, write_fleet

URLS = ["http://127.0.0.1:1", "http://127.0.0.1:2"]


def state(urls: list[str] | None = None, **changes: Any) -> SavedState:
    roles = (Role.PREFILL, Role.DECODE)
    engines = [
        EngineRecord(iid=f"e{n}", url=url, role=role, state=EngineState.SERVING)
        for n, (url, role) in enumerate(zip(urls or URLS, roles, strict=True))
    ]
    whole = SavedState(written_at=1_700_000_000.0, model="emulated", engines=engines)
    return attrs.evolve(whole, **changes)


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """What would have been served."""
    calls: list[tuple[Any, ...]] = []

    async def serve(*args: Any, **_: Any) -> None:
        await trio.lowlevel.checkpoint()
        calls.append(args)

    monkeypatch.setattr(serve_command, "_serve", serve)
    # Of a process of its own; this one has other tests to run.
    monkeypatch.setattr(serve_command, "calm_the_collector", lambda: None)
    return calls


def serve(tmp_path: Path, *options: str) -> Result:
    fleet = write_fleet(tmp_path / "fleet.json", URLS)
    return CliRunner().invoke(main, ["serve", "--fleet", str(fleet), "--port", "0", *options])


def changed(**changes: Any) -> bytes:
    return json.dumps(json.loads(state_bytes(state())) | changes).encode()


ALIEN: dict[str, tuple[Callable[[], bytes], str]] = {
    "model": (lambda: changed(model="x"), 'model is "x", and the fleet\'s is "emulated"'),
    "schema": (lambda: changed(schema="narwhal.fleet"), "schema must be"),
    "version": (lambda: changed(schema_version=2), "schema_version must be 1, not 2"),
    "fewer": (
        lambda: state_bytes(state(engines=state().engines[:1])),
        "engines lacks e1 of the fleet",
    ),
    "url": (
        lambda: state_bytes(state(["http://127.0.0.1:9", URLS[1]])),
        "engines has e0 at http://127.0.0.1:9, and in the fleet file it is at http://127.0.0.1:1",
    ),
    "cut short": (lambda: state_bytes(state())[:90], "is not valid JSON"),
    "a field": (lambda: changed(written_at="now"), "written_at must be a number"),
}


@pytest.mark.parametrize("kind", ALIEN)
def test_an_alien_file_is_refused_whole(
    kind: str, tmp_path: Path, served: list[tuple[Any, ...]]
) -> None:
    content, line = ALIEN[kind]
    path = tmp_path / "state.json"
    path.write_bytes(content())
    result = serve(tmp_path, "--resume")
    assert (result.exit_code, result.stdout, served) == (1, "", [])
    lines = result.stderr.splitlines()
    assert lines[0].startswith(f"narwhal-trio: state.json: {line}"), lines
    assert "start without --resume" in lines[-1]
    assert path.read_bytes() == content(), "it is as it was"


def test_without_resume_a_state_is_not_read_but_another_file_is_not_replaced(
    tmp_path: Path, served: list[tuple[Any, ...]]
) -> None:
    path = tmp_path / "state.json"
    path.write_bytes(changed(model="x"))
    assert serve(tmp_path).exit_code == 0
    assert served.pop()[-1] is None
    path.write_text("my notes")
    result = serve(tmp_path)
    assert (result.exit_code, served) == (1, [])
    assert "recovery.state_path" in result.stderr
    assert "name another file, or delete it" in result.stderr
    assert path.read_text() == "my notes"


def test_what_is_resumed_is_said(tmp_path: Path, served: list[tuple[Any, ...]]) -> None:
    assert serve(tmp_path, "--resume").exit_code == 0
    config, *_, saved = served.pop()
    path = str(tmp_path / "state.json")
    assert serve_command.resumed_lines(config, saved) == [
        f"there is no {path} to resume; beginning with what the fleet file says"
    ]
    first, second = state().engines
    engines = (
        attrs.evolve(first, role=Role.DECODE),
        attrs.evolve(second, state=EngineState.DRAINED, reason="nothing runs on it any more"),
    )
    StateFile(path).write_last(state_bytes(state(engines=engines)))
    assert serve(tmp_path, "--resume").exit_code == 0
    config, *_, saved = served.pop()
    pinned = tuple(attrs.evolve(spec, pin=True) for spec in config.engines)
    assert serve_command.resumed_lines(attrs.evolve(config, engines=pinned), saved) == [
        f"resumed {path}, written 2023-11-14T22:13:20+00:00",
        "e0 is pinned to prefill in the fleet file; it was decode",
        "e1 is drained: nothing runs on it any more",
    ]


# As a process


@pytest.fixture(scope="module")
def engines() -> Iterator[list[str]]:
    with Command("emulate", "--engines", "2", "--base-port", "0") as command:
        yield [command.url(), command.url()]


@pytest.mark.sockets
def test_killed_and_resumed_as_a_process(engines: list[str], tmp_path: Path) -> None:
    fleet = write_fleet(tmp_path / "fleet.json", engines)
    document = json.loads(fleet.read_text())
    fleet.write_text(json.dumps(document | {"controller": {"monitor_interval_s": 0.05}}))
    path = Path(load_fleet(fleet, environ={}).recovery.state_path)
    argument = ("serve", "--fleet", str(fleet), "--port", "0", "--resume")
    ask = {"model": "emulated", "prompt": "hi", "max_tokens": 2}
    with Command(*argument) as command:
        url = command.url()
        command.line("there is no .*state.json to resume")
        assert httpx.post(f"{url}/v1/completions", json=ask).status_code == 200
        while not ((found := load_state(path)) and found.counters.total("requests_total")):
            httpx.get(f"{url}/ready")
        command.signal(signal.SIGKILL)
        assert command.end()[0] == -signal.SIGKILL
    first, second = found.engines
    drained = attrs.evolve(second, state=EngineState.DRAINED, reason="it is being mended")
    StateFile(path).write_last(state_bytes(attrs.evolve(found, engines=[first, drained])))
    with Command(*argument) as command:
        url = command.url()
        command.line(f"resumed {re.escape(str(path))}, written ")
        command.line("e1 is drained: it is being mended")
        assert httpx.post(f"{url}/v1/completions", json=ask).status_code == 200
        shown = httpx.get(f"{url}/narwhal/state").json()
        assert shown["requests"]["received"] == 2
        assert [engine["state"] for engine in shown["engines"]] == ["serving", "drained"]
        command.signal(signal.SIGTERM)
        code, _, err = command.end()
    assert (code, "Traceback" in err) == (0, False)
    last = load_state(path)
    assert last is not None
    assert last.counters.total("requests_total", "completions", "completed") == 2
    assert [engine.state for engine in last.engines] == ["serving", "drained"]
