"""The commands of the page on replays, run on small files of the names that they have there."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import attrs
import pytest
from click.testing import CliRunner
from docs_pages import DOCS, ROOT, narwhal_commands, table

from narwhal.cli import main
from narwhal.config import Controller

PAGE = (DOCS / "replay.md").read_text(encoding="utf-8")
COMMANDS = [command for command in narwhal_commands(PAGE) if "--trace" in command]
# What the page says with rates for all of a trace; here there are a few requests.
SHORT = ("--phase-s", "0.05")


@pytest.fixture
def _files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(ROOT / "configs", tmp_path / "configs")
    for name in ("fleet.json", "other.json"):
        shutil.copy(ROOT / "configs/replay-8b.json", tmp_path / name)
    for name in ("code.csv", "conv.csv"):
        with (tmp_path / name).open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["TIMESTAMP", "ContextTokens", "GeneratedTokens"])
            writer.writerows(
                [f"2023-11-16 18:15:{second:02}.0000000", 500, 4] for second in range(5)
            )
    rows = [{"timestamp": 1000 * n, "input_length": 500, "output_length": 4} for n in range(5)]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (tmp_path / "requests.jsonl").write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("_files")
@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[-1])
def test_commands_of_the_page_do_what_it_says(command: list[str]) -> None:
    if "tune" in command and "preset" not in attrs.fields_dict(Controller):
        pytest.skip("presets come with role control")
    more = SHORT if "--phases" in command else ()
    done = CliRunner().invoke(main, [*command, *more])
    assert done.exit_code == 0, done.output
    if "--html" in command:
        assert Path(command[command.index("--html") + 1]).exists()


def test_the_page_has_every_option() -> None:
    simulate = main.commands["simulate"]
    for name in ("replay", "tune"):
        command = simulate.commands[name]  # type: ignore[attr-defined]  # it is a group
        options = {option for each in command.params for option in each.opts}
        missing = {option for option in options if f"`{option}" not in PAGE}
        assert missing <= {"--fleet", "--format", "--help"}, name


def test_the_columns_are_explained() -> None:
    explained = " ".join(row[0] for row in table(PAGE, "## Reading the results"))
    for name in ("offered", "attained", "seeds", "TTFT", "TPOT", "moves", "refused", "failed"):
        assert f"`{name}`" in explained
