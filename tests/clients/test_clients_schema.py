"""Schemathesis reads `/openapi.json` and tries whatever it can think of on a running router."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from client_stage import FAST, Stage, open_stage

from processes import PATIENCE_S

SCHEMATHESIS = Path(sys.executable).with_name("st")

pytestmark = [
    pytest.mark.clients,
    pytest.mark.sockets,
    pytest.mark.skipif(
        not SCHEMATHESIS.exists(),
        reason="schemathesis is not installed (pip install -e '.[clients]')",
    ),
]


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    short = ("--max-model-len", "200")
    # What a decode engine refuses cuts a stream that has its status already, and the tool takes
    # that for a broken server: so streams wait for their first token.
    folder = tmp_path_factory.mktemp("fleet")
    with open_stage(folder, *FAST, *short, stream_commit="first_token") as stage:
        yield stage


def explore(stage: Stage, folder: Path, *chosen: str) -> None:
    """Try the chosen operations; every answer has to be one that the document lists."""
    command = [str(SCHEMATHESIS), "run", f"{stage.url}/openapi.json", *chosen]
    # What an engine refuses is not for the router's document to say. That the router takes what
    # its schemas allow is tested with the schemas.
    command += ["--exclude-checks", "positive_data_acceptance", "--no-color"]
    command += ["--seed", "1", "--max-examples", "60"]
    ran = subprocess.run(  # noqa: S603 - the tool of this test
        command, check=False, capture_output=True, text=True, timeout=3 * PATIENCE_S, cwd=folder
    )
    assert ran.returncode == 0, ran.stdout
    count = re.search(r"(\d+) generated, \1 passed", ran.stdout)
    assert count, ran.stdout
    assert int(count[1]) > 60
    assert stage.running() == 0
    assert not stage.ended("internal")


def test_routes_for_clients_and_pages(stage: Stage, tmp_path: Path) -> None:
    explore(stage, tmp_path, "--exclude-path-regex", "/narwhal/lifecycle/")
    assert stage.state()["requests"]["received"] > 60


def test_orders(stage: Stage, tmp_path: Path) -> None:
    explore(stage, tmp_path, "--include-path-regex", "/narwhal/lifecycle/")
