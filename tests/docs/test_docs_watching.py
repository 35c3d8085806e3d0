"""What the pages say of `report`, `top` and the status page is what these do."""

from __future__ import annotations

import json
import re
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from docs_pages import DOCS, code_blocks, narwhal_commands, section, table

import narwhal
from narwhal.app.ui_pages import UI_PAGES
from narwhal.cli import main, top_rates, top_view
from narwhal.router import journal
from narwhal.telemetry import facade
from narwhal.telemetry.report import sums

from journal_lines import START, line, request

JOURNAL = (DOCS / "journal.md").read_text(encoding="utf-8")
WATCHING = (DOCS / "watching.md").read_text(encoding="utf-8")
UI = Path(narwhal.__file__).parent / "app/ui"
SCRIPT = "".join(file.read_text(encoding="utf-8") for file in UI.glob("*.js"))


def options(command: str) -> set[str]:
    found = main.commands[command].params
    return {name for each in found if isinstance(each, click.Option) for name in each.opts}


def rows(page: str, heading: str, number: int) -> set[str]:
    """The options in the first column of a table."""
    cells = [row[0] for row in table(page, heading, number)]
    return {option for cell in cells for option in re.findall(r"`(--[\w-]+)`", cell)}


def test_every_option_is_on_its_page() -> None:
    assert rows(WATCHING, "## In a terminal", 1) == options("top")
    named = rows(JOURNAL, "## The report", 1)
    named |= set(re.findall(r"`(--tt[\w-]+|--tpot)`", section(JOURNAL, "## The report")))
    assert named == options("report")


def test_the_report_s_commands_do_what_the_page_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("requests.jsonl", "requests.jsonl.1", "requests.jsonl.2.gz"):
        Path(name).write_bytes(line(START) + line(request()))
    commands = narwhal_commands(
        "```\n" + code_blocks(section(JOURNAL, "## The report"))[0] + "```\n"
    )
    assert len(commands) == 3
    done = [CliRunner().invoke(main, command) for command in commands]
    assert [each.exit_code for each in done] == [0, 0, 0], [each.output for each in done]
    assert "How requests ended" in done[0].stdout
    assert "<svg" in Path("report.html").read_text(encoding="utf-8")
    assert json.loads(done[2].stdout)["left_out"] == 1


def test_the_numbers_of_the_journal_and_its_report() -> None:
    text = " ".join(JOURNAL.split())
    assert (journal._LAST_WRITE_S, "at most two seconds for a disk" in text) == (1.0, True)
    assert journal._INTERVAL_S < 1
    assert "which is there within a second" in text
    assert f"at most {sums._MOST_DRAWN} |" in text


def test_the_numbers_of_both_views() -> None:
    text = " ".join(WATCHING.split())
    constants = {name: int(value) for name, value in re.findall(r"const (\w+) = (\d+);", SCRIPT)}
    assert (constants["EVERY_MS"], "every two seconds" in text) == (2000, True)
    assert constants["HISTORY"] * constants["EVERY_MS"] == 5 * 60_000
    assert "in the last five minutes" in text
    assert (constants["RATE_S"], top_rates._WINDOW_S, "the last ten seconds" in text) == (
        *(10, 10.0, True),
    )
    assert f"the last {facade.RECENT_OUTCOMES} requests" in text
    page = (UI / "ui.html").read_text(encoding="utf-8")
    assert f"At most {facade.RECENT_OUTCOMES}, the newest first" in page
    size = sum(len(page.body) for page in UI_PAGES.values())
    assert (len(UI_PAGES), "six files of the router's own, 30 kB" in text) == (6, True)
    assert 25_000 < size < 35_000
    assert top_view._NARROW < 80, "an ordinary terminal is not narrow"


def test_the_sample_is_a_frame() -> None:
    (sample,) = (block for block in code_blocks(WATCHING) if "ENGINE" in block)
    first = [text.partition(" ")[0] for text in sample.splitlines() if text[:1].strip()]
    for word in ("requests", "per", "last", "limits", "retries", "ENGINE", "roles", "moves"):
        assert word in first
