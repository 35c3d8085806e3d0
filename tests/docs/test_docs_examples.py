"""The example, and the commands of the pages, run as a reader would run them."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from docs_pages import DOCS, ROOT, code_blocks, section

from narwhal.simulate import INVARIANTS

from processes import PATIENCE_S, Command

pytestmark = pytest.mark.sockets
needs_curl = pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")


@pytest.fixture(scope="module")
def demo() -> Iterator[str]:
    with Command("demo", "--port", "0") as command:
        yield command.url()
        command.signal(signal.SIGINT)
        assert command.end()[0] == 0


def run_script(lines: list[str], url: str, cwd: Path) -> list[str]:
    """Run each line in one shell; what each printed, in order."""
    mark = "-- end of line --"
    script = "\n".join(f"{line}\necho '{mark}'" for line in lines)
    script = script.replace("http://127.0.0.1:8000", url)
    script = script.replace(".venv/bin/narwhal-trio", f"{sys.executable} -m narwhal")
    ran = subprocess.run(  # noqa: S603 - the pages' own commands
        ["bash", "-u", "-c", script],  # noqa: S607 - found as a reader's shell finds it
        check=False,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        cwd=cwd,
    )
    printed = ran.stdout.split(f"{mark}\n")
    assert len(printed) == len(lines) + 1, ran.stderr
    return printed[:-1]


def test_the_tests_that_the_testing_page_shows_pass(tmp_path: Path) -> None:
    example = DOCS / "examples/test_time.py"
    command = [sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider"]
    ran = subprocess.run(  # noqa: S603 - the repository's own program
        [*command, str(example)],
        check=False,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        cwd=tmp_path,
    )
    assert ran.returncode == 0, ran.stdout
    assert "4 passed" in ran.stdout


def test_the_example_runs_and_says_what_it_shows() -> None:
    ran = subprocess.run(  # noqa: S603 - the repository's own program
        [sys.executable, "-W", "error", DOCS / "examples/embed.py"],
        check=False,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    streamed, whole, left, failed, served, drained = ran.stdout.splitlines()
    assert len(streamed.split()) > 10
    assert "'completion_tokens': 6" in whole
    assert left == "out of time: True, seats taken: 0"
    assert failed.startswith("failed: engine_closed, failed: The engine closed the connection")
    assert served.startswith("over HTTP: 200, {'prompt_tokens': ")
    assert drained == "all served: True"


@needs_curl
def test_the_tour_works_line_by_line(demo: str, tmp_path: Path) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    lines = code_blocks(section(readme, "## A tour in ten lines"))[0].splitlines()
    assert len(lines) == 10
    # The last shows a live table until it is interrupted: tests/cli has that.
    assert lines.pop().startswith(".venv/bin/narwhal-trio demo --port 8001 --load 10")
    _, chat, broken, state, metrics, ready, example, check, show = run_script(lines, demo, tmp_path)
    assert chat.endswith("data: [DONE]\n\n")
    assert '"code":"engine_closed"' in broken
    assert "[DONE]" not in broken
    assert all(f'"{part}"' in state for part in ("role", "seats", "pools", "recent"))
    assert 'narwhal_requests_total{route="chat",terminal="completed"} 1.0' in metrics
    assert 'narwhal_requests_total{route="completions",terminal="failed"} 1.0' in metrics
    assert ready.startswith("HTTP/1.1 200 OK")
    assert (example, check) == (
        "",
        "fleet.json: ok, 4 engines (2 prefill, 2 decode), model my-model\n",
    )
    assert "serving.request_timeout_s" in show


def test_the_example_of_the_clients_page_runs(demo: str) -> None:
    (program,) = (
        block for block in code_blocks((DOCS / "clients.md").read_text()) if "openai" in block
    )
    ran = subprocess.run(  # noqa: S603 - the page's own program
        [sys.executable, "-c", program.replace("http://127.0.0.1:8000", demo)],
        check=False,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    text, error = ran.stdout.splitlines()
    assert len(text) > 20
    assert error == "400 invalid_request n"


def test_worlds_are_simulated_as_the_pages_say(tmp_path: Path) -> None:
    readme = code_blocks((ROOT / "README.md").read_text(encoding="utf-8"))
    (short,) = (block for block in readme if "simulate chaos" in block)
    page = code_blocks((DOCS / "simulation.md").read_text(encoding="utf-8"))
    lines = [short.strip(), *page[0].splitlines(), *page[1].splitlines()]
    fewer = [re.sub(r"--runs \d+", "--runs 2 --requests 20", line) for line in lines]
    few, jobs, traced, invariants, fast = run_script(fewer, "", tmp_path)
    for printed in (few, jobs, fast):
        assert "worlds     2, 0 failed" in printed
    assert "worlds     1, 0 failed" in traced
    assert (tmp_path / "world.jsonl").stat().st_size > 10_000
    assert "one terminal" in invariants


def test_the_page_has_every_invariant() -> None:
    page = (DOCS / "simulation.md").read_text(encoding="utf-8")
    for each in INVARIANTS:
        assert f"| {each.name} | {each.says} |" in page


@needs_curl
def test_the_examples_of_the_http_api(demo: str, tmp_path: Path) -> None:
    page = (DOCS / "http-api.md").read_text(encoding="utf-8")
    lines = code_blocks(page)[0].splitlines()
    _, whole, stream, bad, models, model = run_script(lines, demo, tmp_path)
    assert '"object":"chat.completion"' in whole
    assert stream.count("data: ") > 5
    assert stream.endswith("data: [DONE]\n\n")
    assert bad.startswith("HTTP/1.1 400")
    assert '"param":"prompt"' in bad
    assert model in models
    assert '"id":"demo"' in model


def test_the_two_commands_of_the_engines_page(tmp_path: Path) -> None:
    page = (DOCS / "engines.md").read_text(encoding="utf-8")
    emulate, serve = code_blocks(section(page, "## Emulated engines"))[0].splitlines()
    fleet = (ROOT / "configs/demo.json").read_text(encoding="utf-8")
    ports = [int(port) for port in _ports(fleet)]
    assert f"--engines {len(ports)} --base-port {ports[0]} --model demo" in emulate
    assert ports == list(range(ports[0], ports[0] + len(ports)))
    assert serve == "narwhal-trio serve --fleet configs/demo.json"
    argument = ("--fleet", str(ROOT / "configs/demo.json"), "--port", "0")
    with Command("serve", *argument, cwd=tmp_path) as command:
        command.line(r"serving demo on http://127\.0\.0\.1:\d+ with 4 engines")
        command.signal(signal.SIGTERM)
        assert command.end()[0] == 0


def _ports(fleet: str) -> list[str]:
    return [part.split('"')[0] for part in fleet.split("http://127.0.0.1:")[1:]]
