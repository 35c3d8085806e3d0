"""A table of gates on stderr that fills while `narwhal-trio check` runs."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import attrs
from rich.console import Console
from rich.live import Live
from rich.table import Table

from narwhal.cli.check_report import counted, worst_of
from narwhal.model.text import visible
from narwhal.preflight import Gate, Grade

if TYPE_CHECKING:
    from collections.abc import Iterator

    from narwhal.preflight import Finding

_COLOURS = {
    Grade.PASS: "green",
    Grade.WARN: "yellow",
    Grade.FAIL: "bold red",
    Grade.SKIPPED: "dim",
}


@attrs.define
class Progress:
    """What was found so far; its methods are what a `Preflight` tells."""

    _live: Live | None = None
    _found: dict[Gate, list[Finding]] = attrs.field(factory=dict)
    _at: Gate | None = None

    def gate(self, gate: Gate) -> None:
        """The preflight is at that gate now."""
        self._at = gate
        self._found.setdefault(gate, [])
        self._show()

    def finding(self, finding: Finding) -> None:
        """Something was found."""
        self._found.setdefault(finding.gate, []).append(finding)
        self._show()

    def _show(self) -> None:
        if self._live is not None:
            self._live.update(self._table())

    def _table(self) -> Table:
        shown = Table("gate", "result", "findings", "")
        for gate in Gate:
            if gate in self._found:
                shown.add_row(*self._row(gate, self._found[gate]))
        return shown

    def _row(self, gate: Gate, found: list[Finding]) -> tuple[str, str, str, str]:
        at = "..." if gate is self._at else ""
        if not found:
            return gate.value, at, "", ""
        worst = worst_of(found)
        bad = next((each for each in found if each.grade is worst), found[0])
        # Text of engines: neither the terminal nor rich is to do what it says.
        text = visible(f"{bad.subject}: {bad.seen}").replace("[", r"\[")
        told = "" if worst is Grade.PASS else text
        colour = _COLOURS[worst]
        return gate.value, f"[{colour}]{worst.value}[/] {at}", counted(found), told


@contextmanager
def progress() -> Iterator[Progress]:
    """Draw on stderr if that is a terminal; it is gone at the end, when the report is printed."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield Progress()
        return
    with Live(console=console, transient=True) as live:
        yield Progress(live)
