"""`narwhal-trio simulate tune`, as a person would use it."""

from __future__ import annotations

import json
from pathlib import Path

import attrs
import pytest
from replay_files import Files, files_in, run

from narwhal.cli.tune_command import GRID
from narwhal.config import Reactive


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return files_in(tmp_path)


def test_the_best_comes_first(files: Files, tmp_path: Path) -> None:
    trace, out = files.trace("x", 2, prompt=900), tmp_path / "tuned.json"
    done = run(
        *("tune", "--trace", trace, "--fleet", files.fleet, "--preset", "file"),
        *("--grid", "slo.ttft_s=0.5,1", "--grid", "slo.tpot_s=0.05,0.06", "--out", str(out)),
    )
    assert done.exit_code == 0, done.output
    rows = [line.split()[:2] for line in done.output.splitlines()[-4:]]
    assert rows == [
        ["ttft_s=1", "tpot_s=0.05"],
        ["ttft_s=1", "tpot_s=0.06"],
        ["ttft_s=0.5", "tpot_s=0.05"],
        ["ttft_s=0.5", "tpot_s=0.06"],
    ]
    found = json.loads(out.read_text(encoding="utf-8"))["combinations"]
    assert [each["worst_kind"] for each in found] == [1.0, 1.0, 0.0, 0.0]
    assert found[0]["settings"] == {"slo.ttft_s": 1, "slo.tpot_s": 0.05}


def test_what_is_tried_without_a_grid_are_fields_that_there_are() -> None:
    fields = {f"controller.reactive.{name}" for name in attrs.fields_dict(Reactive)}
    assert set(GRID) <= fields


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--grid", "x"), "'--grid': 'x' is no setting with values; give a field"),
        (("--grid", "slo.ttft_s=1,,2"), "'--grid': 'slo.ttft_s=1,,2' is no setting with values"),
        (("--grid", "slo.ttft_s=1", "--grid", "slo.ttft_s=2"), "slo.ttft_s is given twice"),
        (("--grid", "slo.ttft_s=" + ",".join(map(str, range(1, 502)))), "501 combinations are too"),
        (("--grid", "slo.ttft_s=1,-1"), "slo.ttft_s must be"),
    ],
)
def test_what_cannot_be_tried_is_said_at_once(
    files: Files, arguments: tuple[str, ...], complaint: str
) -> None:
    trace = files.trace("x")
    done = run("tune", "--fleet", files.fleet, "--trace", trace, "--preset", "file", *arguments)
    assert done.exit_code in (1, 2)
    assert complaint in " ".join(done.output.split())
