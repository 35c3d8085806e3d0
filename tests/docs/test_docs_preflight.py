"""The preflight page: its gates, its options, and its numbers."""

from __future__ import annotations

import re

from docs_pages import DOCS, table

from narwhal.cli.check_command import check
from narwhal.preflight import LEASE_WAIT_S, Gate, Grade
from narwhal.preflight.calibrating import HEADROOM, LEAST_S

PAGE = (DOCS / "preflight.md").read_text(encoding="utf-8")


def test_the_gates_are_those_of_the_code_in_their_order() -> None:
    assert [row[0].strip("`") for row in table(PAGE, "## The gates")] == [
        each.value for each in Gate
    ]


def test_the_options_are_those_of_the_command() -> None:
    named = set(
        re.findall(
            r"--[a-z-]+", "".join(row[0] for row in table(PAGE, "## Options and exit status"))
        )
    )
    assert named == {option for parameter in check.params for option in parameter.opts
                     if option.startswith("--")}  # fmt: skip


def test_the_results_are_those_of_the_code() -> None:
    results = ", ".join(f"`{grade.value}`" for grade in Grade)
    assert results in " ".join(PAGE.split())


def test_the_numbers() -> None:
    assert LEASE_WAIT_S == 6
    assert "6 unless given" in PAGE
    assert (HEADROOM, LEAST_S) == (1.5, 0.5)
