"""Tables of figures for people: what stands in their cells, and columns that are as wide."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence


def percent(share: float | None) -> str:
    """Rounded, but never to all or nothing if it is neither."""
    if share is None:
        return "-"
    if 0.0 < share < 1.0:
        return f"{min(99.9, max(0.1, 100 * share)):.1f} %"
    return f"{100 * share:.0f} %"


def listed(counts: Mapping[str, int]) -> str:
    """Each count with its name."""
    return ", ".join(f"{name} {count}" for name, count in counts.items()) or "-"


def table(
    head: Sequence[str], rows: Sequence[Sequence[str]], *, left: Collection[str]
) -> list[str]:
    """A line for the head and one for each row; columns named in `left` are aligned there."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]

    def line(row: Sequence[str]) -> str:
        cells = (
            cell.ljust(width) if name in left else cell.rjust(width)
            for name, cell, width in zip(head, row, widths, strict=True)
        )
        return "  ".join(cells).rstrip()

    return [line(row) for row in (head, *rows)]
