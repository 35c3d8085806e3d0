"""The pages that lead somebody by the hand: what they say to type works, what they name exists."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from docs_pages import DOCS, code_blocks, section, table
from test_docs_examples import needs_curl

from narwhal.config import FleetConfig
from narwhal.config.settings import walk
from narwhal.model import Limit
from narwhal.telemetry import ERROR_CODES

from processes import PATIENCE_S, Command, run, write_fleet

PAGES = ("tutorial", "debugging", "tuning", "troubleshooting", "comparison", "preflight")
SETTINGS = {path.replace("[]", "") for path, _ in walk(FleetConfig)}
SECTIONS = "|".join(sorted({path.partition(".")[0] for path in SETTINGS if "." in path}))


def page(name: str) -> str:
    return (DOCS / f"{name}.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", PAGES)
def test_every_setting_that_is_named_exists(name: str) -> None:
    named = set(re.findall(rf"`((?:{SECTIONS})\.[a-z_.]+)`", page(name)))
    assert named <= SETTINGS | {"controller.preset"}


def test_every_code_in_the_table_of_symptoms_exists() -> None:
    rows = table(page("troubleshooting"), "## Clients see errors")
    named = {code for row in rows for code in re.findall(r"`([a-z_]+)`", row[0])}
    assert named
    assert named <= set(ERROR_CODES)


def test_the_limits_of_the_debugging_page_are_limits() -> None:
    rows = table(page("debugging"), "## 1. Which limit?")
    assert {row[0].strip("`") for row in rows} <= {limit.value for limit in Limit}


def free_ports(count: int) -> int:
    """The first of so many ports in a row that are free now."""
    for first in range(21000, 60000, 50):
        try:
            for port in range(first, first + count):
                with socket.socket() as each:
                    each.bind(("127.0.0.1", port))
        except OSError:
            continue
        return first
    raise AssertionError("no ports in a row are free")


@needs_curl
@pytest.mark.sockets
def test_the_tutorial_works_block_by_block(tmp_path: Path) -> None:
    install, *blocks = [
        block for block in code_blocks(page("tutorial")) if not block.startswith("{")
    ]
    assert install == "python3 -m venv .venv && .venv/bin/pip install -e .\n"
    first = free_ports(5)
    # Numbers of jobs are an interactive shell's: `set -m` gives a script its own.
    script = "set -m\n" + "".join(f"{block}echo '-- end of block --'\n" for block in blocks)
    for number in range(4):
        script = script.replace(f"910{number + 1}", str(first + number))
    script = script.replace("127.0.0.1:8000", f"127.0.0.1:{first + 4}")
    script = script.replace("serve --fleet", f"serve --port {first + 4} --fleet")
    script = re.sub(
        r"(engines (?:drain|list|readmit)|trio top)",
        rf"\1 --url http://127.0.0.1:{first + 4}",
        script,
    )
    # A machine with other work bends what is measured, and a reader would measure again.
    (measured,) = (block for block in blocks if "narwhal-trio profile" in block)
    profiling, checking = measured.splitlines()
    again = profiling.replace("--fleet fleet.json", "--overwrite --fleet fleet.json")
    tries = f"for _ in 1 2 3 4 5; do {again}; {checking} && break; done\n"
    assert measured in script
    script = script.replace(measured, tries)
    script = script.replace(".venv/bin/narwhal-trio", f"{sys.executable} -m narwhal")
    ran = subprocess.run(  # noqa: S603 - the page's own commands
        ["bash", "-c", script],  # noqa: S607 - found as a reader's shell finds it
        check=False,
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE_S,
        cwd=tmp_path,
    )
    told = ran.stdout.split("-- end of block --\n")
    assert len(told) == len(blocks) + 1, ran.stderr
    _, checked, early, ready, served, broken, drained, rows, _ended, _ = told
    assert "fleet.json: ok, 4 engines (2 prefill, 2 decode), model tutorial" in checked
    assert "FAIL profile: fleet" in early
    assert early.rstrip().endswith("not yet")
    assert re.search(r"^ready for traffic", ready, re.MULTILINE), ready
    assert served.endswith("data: [DONE]\n\n")
    assert '"code":"first_token"' in broken
    assert re.search(r"^d1 +decode +drained", drained, re.MULTILINE)
    checks = "health, model, identity, contract, generation, transfer, health"
    assert f"d1 serves again; passed: {checks}" in drained, ran.stderr
    assert "2 received, 1 completed, 1 failed" in rows
    assert rows.count('"event":"request"') == 2
    assert "Traceback" not in ran.stderr


@pytest.mark.sockets
def test_the_commands_of_the_tuning_page_run(tmp_path: Path) -> None:
    blocks = code_blocks(page("tuning"))
    replay = blocks[-1].splitlines()
    assert replay[0] == "narwhal-trio simulate replay --trace requests.jsonl --fleet fleet.json"
    assert "--grid controller.reactive.window_s=20,60,120" in replay[1]
    assert section(page("tuning"), "## 4. Limits").count("narwhal-trio") == 2
    with Command("emulate", "--engines", "2", "--base-port", "0", "--max-model-len", "1024") as own:
        urls = [own.url(), own.url()]
        fleet = write_fleet(tmp_path / "fleet.json", urls)
        argument = ("--calibrate-first-token", "--ring", "--lease-wait", "0")
        code, out, _ = run("check", "--fleet", str(fleet), *argument, cwd=tmp_path)
        assert code == 0
        assert "proposed" in out
