"""What a journal comes to, as a page that stands alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from narwhal.cli.chart import Panel, Series, svg_chart, xml_text
from narwhal.cli.page import described, page, plain_table
from narwhal.cli.report_tables import about, sections
from narwhal.cli.units import moment, span
from narwhal.model import Role, Terminal

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from narwhal.telemetry.report import Figures, Window

    Of = Callable[[Window], float | None]

_OPEN = frozenset({"How requests ended", "Times", "Where the time went", "Engines"})
"""Tables that are there to be looked at; the others are there to be looked things up in."""


def as_page(figures: Figures) -> str:
    """The figures, the plots over time, and all tables."""
    lines = [*described(about(figures))]
    if figures.windows:
        lines += ["<h2>Over time</h2>", svg_chart(panels_of(figures), title=_title(figures))]
    for section in sections(figures):
        table = plain_table(section.head, section.rows, left=section.left)
        if section.title in _OPEN:
            lines += [f"<h2>{xml_text(section.title)}</h2>", *table]
        else:
            summary = f"{section.title}: {len(section.rows)}"
            lines += [f"<details><summary>{xml_text(summary)}</summary>", *table, "</details>"]
    return page("Journal: " + ", ".join(figures.files), lines)


def _title(figures: Figures) -> str:
    return f"By windows of {span(figures.width_s)}, from {moment(figures.windows[0].at)} UTC"


class _Plots:
    """Panels with one time axis."""

    def __init__(self, figures: Figures) -> None:
        self._windows, self._width_s = figures.windows, figures.width_s
        self._begin = figures.windows[0].at
        length_s = figures.windows[-1].at + figures.width_s - self._begin
        self._unit, self._unit_s = _unit(length_s)
        self._room = (0.0, length_s / self._unit_s)

    def panel(
        self, title: str, y_label: str, series: Sequence[Series], *, reaching: float = 0.0
    ) -> Panel:
        return Panel(
            title=title,
            x_label=f"{self._unit} since the first window",
            y_label=y_label,
            series=series,
            x_room=self._room,
            x_to_ticks=False,
            y_room=(reaching,),
        )

    def at(self, moment_: float) -> float:
        """Where a moment lies, no further out than the axis goes."""
        low, high = self._room
        return min(high, max(low, (moment_ - self._begin) / self._unit_s))

    def lines(self, name: str, of: Of, *, dashed: bool = False) -> list[Series]:
        """A value for each window, as one line or, around gaps, several."""
        runs: list[list[tuple[float, float]]] = [[]]
        for window in self._windows:
            value = of(window)
            if value is not None:
                runs[-1].append((self.at(window.at + self._width_s / 2), value))
            elif runs[-1]:
                runs.append([])
        return [
            # A point that is alone would make no line.
            Series(name=name, points=run, dots=len(run) == 1, dashed=dashed)
            for run in runs
            if run
        ]

    def level(self, name: str, value: float) -> Series:
        """The same all the time."""
        points = [(edge, value) for edge in self._room]
        return Series(name=name, points=points, dots=False, dashed=True)


def _unit(length_s: float) -> tuple[str, float]:
    for unit, unit_s in (("seconds", 1.0), ("minutes", 60.0), ("hours", 3600.0)):
        if length_s <= 200 * unit_s:
            return unit, unit_s
    return "days", 86400.0


def panels_of(figures: Figures) -> list[Panel]:
    """Attainment, arrivals and ends, both times with their targets, the queue, and the roles."""
    plots, width_s = _Plots(figures), figures.width_s
    ttft, tpot = _targets(plots, figures)

    def turned_away(window: Window) -> float:
        return sum(n for end, n in window.ends.items() if end.turned_away) / width_s

    def went_wrong(window: Window) -> float:
        return sum(window.ends.get(end, 0) for end in (Terminal.FAILED, Terminal.EXPIRED)) / width_s

    panels = [
        plots.panel(
            "Attained", "% of those that count", plots.lines("attained", _percent), reaching=100.0
        ),
        plots.panel(
            "Requests",
            "per second",
            [
                *plots.lines("arrived", lambda w: w.requests / width_s),
                *plots.lines("turned away", turned_away),
                *plots.lines("failed or expired", went_wrong),
            ],
        ),
        plots.panel(
            "Tokens generated",
            "per second",
            plots.lines("tokens", lambda w: w.completion_tokens / width_s),
        ),
        plots.panel(
            "Time to first token",
            "seconds",
            [*_two(plots, lambda w: w.ttft_p50, lambda w: w.ttft_p99), *ttft],
        ),
        plots.panel(
            "Time between tokens",
            "seconds",
            [*_two(plots, lambda w: w.tpot_p50, lambda w: w.tpot_p99), *tpot],
        ),
    ]
    if roles := _roles(plots, figures):
        return [*panels, plots.panel("Engines by role", "engines", roles)]
    return [*panels, plots.panel("Wait in the queue", "seconds", _queue(plots))]


def _percent(window: Window) -> float | None:
    share = window.attained.fraction
    return None if share is None else 100.0 * share


def _two(plots: _Plots, p50: Of, p99: Of) -> list[Series]:
    return [*plots.lines("p50", p50), *plots.lines("p99", p99, dashed=True)]


def _queue(plots: _Plots) -> list[Series]:
    return plots.lines("p99", lambda window: window.queue_p99, dashed=True)


def _targets(plots: _Plots, figures: Figures) -> tuple[list[Series], list[Series]]:
    """The targets as lines, if they were the same all the time."""
    if len(figures.targets) != 1:
        return [], []
    (targets,) = figures.targets
    return [plots.level("target", targets.ttft_s)], [plots.level("target", targets.tpot_s)]


def _roles(plots: _Plots, figures: Figures) -> list[Series]:
    """How many engines of each role there were, from what the moves say of the split."""
    steps: dict[Role, list[tuple[float, float]]] = {role: [] for role in Role}
    for row in figures.roles:
        before, after = _split(row.split), _split(row.proposed)
        if row.verdict != "moved" or before is None or after is None:
            continue
        for role in Role:
            if not steps[role]:
                steps[role].append((0.0, before[role]))
            steps[role].append((plots.at(row.ts), after[role]))
    end = plots.at(float("inf"))
    return [
        Series(name=role, points=[*points, (end, points[-1][1])], dots=False, stepped=True)
        for role, points in steps.items()
        if points
    ]


def _split(text: str) -> dict[Role, int] | None:
    """`2P1D` as numbers; None for what is no split."""
    prefill, p, rest = text.partition("P")
    decode, d, nothing = rest.partition("D")
    if not (p and d and not nothing and prefill.isdecimal() and decode.isdecimal()):
        return None
    return {Role.PREFILL: int(prefill[:6]), Role.DECODE: int(decode[:6])}
