from __future__ import annotations

import ast
import re
import runpy
from pathlib import Path
from typing import TYPE_CHECKING

from docs_pages import DOCS, ROOT, table

import narwhal
from narwhal.app import lifecycle
from narwhal.config import presets
from narwhal.config.effective import limits
from narwhal.config.example import example_fleet
from narwhal.fleet import TRANSITIONS, Event, contract
from narwhal.fleet.diagram import transitions_markdown
from narwhal.model import Limit, Phase, Terminal
from narwhal.monitor import Check
from narwhal.roles import Gate, Rule
from narwhal.roles.tables import table as rules_table
from narwhal.telemetry.codes import ERROR_CODES
from narwhal.telemetry.reference import catalogue_markdown

if TYPE_CHECKING:
    from collections.abc import Iterator

SOURCES = Path(narwhal.__file__).parent
NOT_COMPLETIONS = {
    *("not_found", "method_not_allowed"),
    *("engine_not_found", "check_failed", "not_now"),
    *("invalid_api_key", "invalid_token", "control_denied"),
}
"""Codes of answers that are no request's terminal."""


def read(page: str) -> str:
    return (DOCS / page).read_text(encoding="utf-8")


def first_column(text: str) -> set[str]:
    return set(re.findall(r"^\| `([a-z_0-9]+)` \|", text, re.MULTILINE))


def test_the_metrics_page_is_the_catalogue_s() -> None:
    assert read("metrics.md") == catalogue_markdown(), (
        "make it again: python -m narwhal.telemetry.reference > docs/metrics.md"
    )


def test_the_tables_of_role_control_are_those_of_the_code() -> None:
    page = read("roles.md")
    assert rules_table(Rule) in page, "python -m narwhal.roles.tables rules"
    assert rules_table(Gate) in page, "python -m narwhal.roles.tables gates"
    assert presets.table() in page, "python -m narwhal.config.presets"


def test_every_rule_and_gate_says_what_it_is() -> None:
    for kind in (Rule, Gate):
        assert rules_table(kind).count("\n") == len(kind) + 2


def test_the_tables_of_engine_states_are_those_of_the_code() -> None:
    assert transitions_markdown() in read("engines.md"), "python -m narwhal.fleet.diagram"
    for state, events in TRANSITIONS.items():
        (row,) = (line for line in transitions_markdown().splitlines() if f"| `{state}` |" in line)
        assert all(f"`{event}`" in row and f"→ `{events[event]}`" in row for event in events)
    meanings = first_column(transitions_markdown()) - {*TRANSITIONS}
    assert meanings == {*Event}


def test_the_checks_and_bounds_of_the_lifecycle_are_on_the_pages() -> None:
    checks = [row[0].strip("`") for row in table(read("engines.md"), "## Draining and readmitting")]
    assert checks[:-1] == [*Check]
    assert checks[-1] == Check.HEALTH
    assert f"at most {lifecycle.MOST_BYTES // 1024} KiB" in " ".join(read("http-api.md").split())
    keys = [row[0] for row in table(read("engines.md"), "## The engine contract")]
    assert set(re.findall(r"`(\w+)`", " ".join(keys))) == contract.CHECKED


def test_every_code_has_its_line_and_no_line_is_without_a_code() -> None:
    assert first_column(read("errors.md")) == set(ERROR_CODES) | NOT_COMPLETIONS


def codes_in(source: Path) -> Iterator[str]:
    """Every literal that the source gives the name `code`."""
    for node in ast.walk(ast.parse(source.read_text(encoding="utf-8"))):
        if isinstance(node, ast.keyword) and node.arg == "code":
            yield from _strings(node.value)
        elif isinstance(node, ast.Assign):
            yield from _assigned(node)
        elif isinstance(node, ast.AnnAssign) and _name(node.target) == "code" and node.value:
            yield from _strings(node.value)


def _assigned(node: ast.Assign) -> Iterator[str]:
    for target in node.targets:
        if _name(target) == "code":
            yield from _strings(node.value)
        elif isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
            for name, value in zip(target.elts, node.value.elts, strict=True):
                if _name(name) == "code":
                    yield from _strings(value)


def _name(node: ast.expr) -> str | None:
    if isinstance(node, ast.Name):
        return node.id
    return node.attr if isinstance(node, ast.Attribute) else None


def _strings(node: ast.expr) -> Iterator[str]:
    """The literal, or those of a conditional expression; nothing of what is computed."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.IfExp):
        yield from _strings(node.body)
        yield from _strings(node.orelse)


def test_every_code_that_a_client_can_be_told_is_known_to_metrics_and_reference() -> None:
    packages = ("model", "wire", "router", "app", "monitor", "engine", "net", "retry")
    files = [file for package in packages for file in (SOURCES / package).rglob("*.py")]
    found = {code for file in files for code in codes_in(file)}
    assert {"queue_full", "engine_busy", "engine_unreachable", "handoff_expired"} <= found
    assert found - set(ERROR_CODES) == NOT_COMPLETIONS


def test_every_limit_is_in_the_table_with_its_setting() -> None:
    page = read("architecture.md")
    settings = {row.limit: row.field for row in limits(example_fleet())}
    assert settings.keys() == set(Limit)
    for limit, field in settings.items():
        assert f"| `{limit}` | `{field}` |" in page


def test_every_terminal_and_phase_is_explained() -> None:
    architecture, journal = read("architecture.md"), read("journal.md")
    assert all(f"`{terminal}`" in architecture for terminal in Terminal)
    assert all(f"`{phase}`" in journal for phase in Phase)


def test_every_package_is_in_the_table_of_layers() -> None:
    page = read("architecture.md")
    packages = {path.parent.name for path in SOURCES.glob("*/__init__.py")}
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row.split("|")[1])}
    assert packages <= named


def test_the_example_imports_what_exists() -> None:
    example = runpy.run_path(str(DOCS / "examples/embed.py"), run_name="example")
    assert callable(example["main"])
    assert "examples/embed.py" in read("embedding.md")


def test_the_changelog_speaks_of_this_version() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert f"## {narwhal.__version__}" in text
