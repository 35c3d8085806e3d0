from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import click
import pytest
from docs_pages import PAGES, ROOT, code_blocks, narwhal_commands, page_id

import narwhal.cli

if TYPE_CHECKING:
    from pathlib import Path


def ci(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = ["bash", ".ci/run", *arguments]
    return subprocess.run(  # noqa: S603 - the repository's own script
        command, cwd=folder, check=False, capture_output=True, text=True
    )


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A folder with the repository's CI script and nothing else."""
    (tmp_path / ".ci").mkdir()
    (tmp_path / ".ci/run").write_bytes((ROOT / ".ci/run").read_bytes())
    return tmp_path


def readme_with(clone: Path, command: str, *, mark: str = "<!-- the test command -->") -> None:
    text = f"```sh\necho not this\n```\n\n{mark}\n```sh\n{command}\n```\n```sh\nor this\n```\n"
    (clone / "README.md").write_text(text, encoding="utf-8")


def test_ci_runs_the_command_that_the_readme_gives() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (after_mark,) = readme.split("<!-- the test command -->\n")[1:]
    shown = ci(ROOT, "--show")
    assert shown.stdout == code_blocks(after_mark)[0]
    assert "tox" in shown.stdout


def test_ci_passes_when_its_command_does_and_shows_what_it_prints(clone: Path) -> None:
    readme_with(clone, "echo 7 passed && pwd")
    ran = ci(clone)
    assert ran.returncode == 0
    assert ran.stdout.splitlines() == ["7 passed", str(clone)]


@pytest.mark.parametrize("command", ["false && echo 1", "false\necho 1", "false | cat"])
def test_ci_fails_when_any_step_of_its_command_does(clone: Path, command: str) -> None:
    readme_with(clone, command)
    ran = ci(clone)
    assert ran.returncode != 0
    assert ran.stdout == ""


def test_ci_runs_real_engines_too_when_it_is_told_to(
    clone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    readme_with(clone, "echo the tests")
    (clone / ".venv/bin").mkdir(parents=True)
    tox = clone / ".venv/bin/tox"
    tox.write_text('#!/bin/sh\necho "tox $*"\n')
    tox.chmod(0o755)
    assert ci(clone).stdout.splitlines() == ["the tests"]
    monkeypatch.setenv("NARWHAL_REAL", "1")
    assert ci(clone).stdout.splitlines() == ["the tests", "tox -e real"]
    tox.write_text("#!/bin/sh\nexit 3\n")
    assert ci(clone).returncode == 3


def test_ci_gives_its_command_no_input_to_wait_for(clone: Path) -> None:
    readme_with(clone, "cat")
    assert ci(clone).returncode == 0


def test_ci_fails_when_the_readme_marks_no_command(clone: Path) -> None:
    readme_with(clone, "echo 1", mark="Run:")
    ran = ci(clone)
    assert ran.returncode == 1
    assert "the test command" in ran.stderr


def check_command(arguments: list[str]) -> None:
    """Walk click's tree: sub-commands must exist, and options of the command reached too."""
    command: click.Command = narwhal.cli.main
    path = ["narwhal-trio"]
    rest = list(arguments)
    while rest and isinstance(command, click.Group) and not rest[0].startswith("-"):
        name = rest.pop(0)
        assert name in command.commands, f"{' '.join(path)} has no command {name!r}"
        command = command.commands[name]
        path.append(name)
    known = {"--help", "-h"}
    known |= {option for parameter in command.params for option in parameter.opts}
    for word in rest:
        if word.startswith("-"):
            assert word.partition("=")[0] in known, f"{' '.join(path)} has no option {word!r}"


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_commands_on_this_page_exist(page: Path) -> None:
    for arguments in narwhal_commands(page.read_text(encoding="utf-8")):
        check_command(arguments)


def test_the_check_finds_what_is_not_there() -> None:
    with pytest.raises(AssertionError, match="no command 'served'"):
        check_command(["served"])
    with pytest.raises(AssertionError, match="no command 'chek'"):
        check_command(["config", "chek", "fleet.json"])
    with pytest.raises(AssertionError, match="no option '--flet'"):
        check_command(["serve", "--flet", "fleet.json"])


def test_commands_are_found_in_blocks_and_in_sentences() -> None:
    page = (
        "Run `narwhal-trio config check FILE`.\n"
        "```sh\n"
        "x && .venv/bin/narwhal-trio serve --fleet f.json  # now\n"
        "$ narwhal-trio demo > log\n"
        "```\n"
    )
    assert narwhal_commands(page) == [
        ["serve", "--fleet", "f.json"],
        ["demo"],
        ["config", "check", "FILE"],
    ]


def test_the_readme_s_two_commands_need_no_activated_environment() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    setups = [block for block in code_blocks(readme) if "python3 -m venv" in block]
    assert len(setups) == 2
    for block in setups:
        (line,) = block.splitlines()
        first, *others = line.split(" && ")
        assert first == "python3 -m venv .venv"
        assert all(step.startswith(".venv/bin/") for step in others)
