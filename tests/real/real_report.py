"""Writes what the last run with real engines saw into `docs/real-engines.md`.

    python tests/real/real_report.py [--show]

With `--show` it prints that instead. It reads `summary.json` in the folder of the engines.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from real_install import HERE, where

PAGE = HERE.parents[1] / "docs/real-engines.md"
BEGIN = "<!-- Made by `python tests/real/real_report.py`. Do not edit. -->"
END = "<!-- The end of what it made. -->"
AREAS = {
    "test_real_split_answers": "Answers",
    "test_real_split_leaving": "Clients that leave",
    "test_real_both_lease": "Leases",
    "test_real_both_busy": "Engines that are full",
    "test_real_both_killed": "Engines that die",
    "test_real_both_roles": "Roles, drains, readmission",
    "test_real_split_profile": "Profiles",
    "test_real_both_check": "What `narwhal-trio check` says",
    "test_real_both_conformance": "Emulated engines are full like real ones",
    "test_real_conformance": "Emulated engines are like real ones",
}
"""Headings, by module, in the order of the page. Times in it are in seconds."""


def render(summary: Mapping[str, Any]) -> str:
    """The part of the page that a run makes."""
    return "\n".join((BEGIN, "", *_lines(summary), END, ""))


def _lines(summary: Mapping[str, Any]) -> Iterator[str]:
    versions = ", ".join(f"{name} {version}" for name, version in summary["pinned"].items())
    minutes = summary["took_s"] / 60
    yield f"Run on {summary['date']}: narwhal-trio {summary['narwhal']}, {versions};"
    yield f"Python {summary['python']}, Linux {summary['kernel']}, and {summary['processors']}"
    ready = sorted(summary["ready_s"].values())
    yield f"processors that others used as well. It took {minutes:.0f} minutes. Engines were ready"
    yield f"after {ready[0]:.0f} to {ready[-1]:.0f} s. Times in the tables are in seconds."
    for module, heading in AREAS.items():
        tests = {
            name: test for name, test in summary["tests"].items() if name.split(".")[0] == module
        }
        if tests:
            yield from ("", f"### {heading}", "", "| | cases | seen |", "|---|---|---|")
            yield from (_row(test) for test in tests.values())
    yield ""


def _row(test: Mapping[str, Any]) -> str:
    cases = f"{test['passed']}"
    if test["failed"]:
        cases += f", **{test['failed']} failed**"
    seen = "; ".join(f"{_name(name)} {_values(each)}" for name, each in test["figures"].items())
    return f"| {_cell(test['says'])} | {cases} | {_cell(seen)} |"


def _name(name: str) -> str:
    return name.removesuffix("_s").replace("_", " ")


def _values(values: list[Any]) -> str:
    distinct = [value for n, value in enumerate(values) if value not in values[:n]]
    return ", ".join(_value(value) for value in distinct)


def _value(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, list):
        return ", ".join(map(_value, value))
    if isinstance(value, dict):
        return ", ".join(f"{name} {_value(each)}" for name, each in value.items())
    return f"`{value}`" if isinstance(value, str) else str(value)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def main() -> int:
    """Write the page, or show what would be written."""
    at = where().folder / "summary.json"
    try:
        summary = json.loads(at.read_text(encoding="utf-8"))
    except OSError as error:
        print(f"{at}: {error.strerror}: run 'tox -e real' first", file=sys.stderr)
        return 1
    made = render(summary)
    if "--show" in sys.argv:
        print(made)
        return 0
    failed = [name for name, test in summary["tests"].items() if test["failed"]]
    missing = [
        module for module in AREAS if not any(t.startswith(module) for t in summary["tests"])
    ]
    if failed or missing:
        print(f"{at}: not written: failed {failed}, not run {missing}", file=sys.stderr)
        return 1
    page = PAGE.read_text(encoding="utf-8")
    before, _, rest = page.partition(BEGIN)
    _, found, after = rest.partition(END + "\n")
    if not found:
        print(f"{PAGE} has no place for it: {BEGIN} ... {END}", file=sys.stderr)
        return 1
    PAGE.write_text(before + made + after, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
