"""The commands `config check`, `config show` and `config example`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner
from config_samples import MINIMAL, document

from narwhal.cli.config_commands import config_group
from narwhal.config.example import example_text

if TYPE_CHECKING:
    from pathlib import Path

    from click.testing import Result


def run(*arguments: str, **environ: str) -> Result:
    return CliRunner().invoke(config_group, list(arguments), env=environ)


@pytest.fixture
def fleet(tmp_path: Path) -> Path:
    path = tmp_path / "fleet.json"
    path.write_text(json.dumps(MINIMAL))
    return path


def test_check_says_ok(fleet: Path) -> None:
    result = run("check", str(fleet))
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == "fleet.json: ok, 2 engines (1 prefill, 1 decode), model m\n"


def test_a_preset_that_the_file_overrules_with_copied_defaults_is_remarked(fleet: Path) -> None:
    copied = json.loads(example_text())
    copied["controller"]["preset"] = "responsive"
    fleet.write_text(json.dumps(copied))
    result = run("check", str(fleet))
    assert (result.exit_code, result.stdout[:14]) == (0, "fleet.json: ok")
    assert result.stderr == (
        'fleet.json: controller.preset "responsive" has no say in what the file gives itself, with '
        'the values of "reference": controller.thresholds.shrink and 14 more; leave them out\n'
    )
    # What was changed on purpose, or is not given, is nothing to remark.
    for reactive in ({"window_s": 30.0}, {}):
        fleet.write_text(
            json.dumps(document(controller={"preset": "responsive", "reactive": reactive}))
        )
        assert run("check", str(fleet)).stderr == ""
    fleet.write_text(example_text())
    assert run("check", str(fleet)).stderr == ""


def test_check_of_a_single_engine(fleet: Path) -> None:
    fleet.write_text(json.dumps(document(engines=MINIMAL["engines"][1:])))
    result = run("check", str(fleet))
    assert result.stdout == "fleet.json: ok, 1 engine (0 prefill, 1 decode), model m\n"


@pytest.mark.parametrize("command", ["check", "show"])
def test_mistakes_go_to_standard_error_a_line_each(command: str, fleet: Path) -> None:
    fleet.write_text(json.dumps(document(serving__max_attempts=7, slo__ttft_s=0)))
    result = run(command, str(fleet))
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.splitlines() == [
        "fleet.json: slo.ttft_s must be positive, not 0",
        "fleet.json: serving.max_attempts must be between 1 and 3, not 7",
    ]


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    result = run("check", str(tmp_path / "no.json"))
    assert result.exit_code == 1
    assert result.stderr == "no.json: cannot be read: No such file or directory\n"


@pytest.mark.parametrize(
    "arguments", [("check",), ("check", "a", "b"), ("show", "--format", "xml", "a"), ("nothing",)]
)
def test_wrong_usage(arguments: tuple[str, ...]) -> None:
    assert run(*arguments).exit_code == 2


def test_the_environment_is_the_process_environment(fleet: Path) -> None:
    fleet.write_text(json.dumps(document(engine__engine_api_key_env="NARWHAL_TEST_KEY")))
    assert run("check", str(fleet)).exit_code == 1
    assert run("check", str(fleet), NARWHAL_TEST_KEY="hush").exit_code == 0


@pytest.mark.parametrize("form", ["text", "json"])
def test_show_never_shows_a_key(form: str, fleet: Path) -> None:
    fleet.write_text(json.dumps(document(engine__engine_api_key_env="NARWHAL_TEST_KEY")))
    result = run("show", str(fleet), "--format", form, NARWHAL_TEST_KEY="hush")
    assert result.exit_code == 0
    assert "NARWHAL_TEST_KEY" in result.stdout
    assert "hush" not in result.output


def test_show(fleet: Path) -> None:
    text = run("show", str(fleet))
    assert text.exit_code == 0
    assert text.stdout.endswith("last running request done\n")
    assert any(
        line.split() == ["serving.max_connections", "512", "requests", "default"]
        for line in text.stdout.splitlines()
    )
    report = json.loads(run("show", str(fleet), "--format", "json").stdout)
    assert report["settings"]["model"] == {"value": "m", "origin": "file", "unit": None}
    assert report["derived"]["retained_limit"] == 512


def test_example_is_accepted_by_check(tmp_path: Path) -> None:
    result = run("example")
    assert (result.exit_code, result.stdout) == (0, example_text())
    path = tmp_path / "fleet.json"
    path.write_text(result.stdout)
    assert run("check", str(path)).exit_code == 0
