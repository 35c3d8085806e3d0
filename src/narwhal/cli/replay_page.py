"""What replays came to, as a page that stands alone: no script, and nothing from elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

from narwhal.cli.chart import svg_chart, xml_text
from narwhal.cli.page import described, page, plain_table
from narwhal.cli.replay_plots import fleet_panels, overlay, request_panels
from narwhal.cli.replay_report import LEFT, about_of, head_of, is_split, row_of, verdicts_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from narwhal.cli.replay_report import Report
    from narwhal.simulate.replay.figures import Figures
    from narwhal.simulate.replay.results import Move, Result

_MOST_MOVES = 500


def as_page(report: Report) -> str:
    """The page: what was replayed, the table, all arms over time, and a section for each."""
    title = "Replay: " + ", ".join(report.plan.workload.traces)
    lines = [
        *described(about_of(report.plan)),
        *_table(report),
        *(f"<p>{xml_text(text)}</p>" for text in verdicts_of(report.figures)),
        *_overlay(report),
    ]
    for place, figures in enumerate(report.figures):
        lines += _arm(place, figures, report)
    return page(title, lines)


def _table(report: Report) -> Iterator[str]:
    head = head_of(report)
    yield '<div class="wide"><table><thead><tr>'
    yield from (f"<th{_side(name)}>{xml_text(name)}</th>" for name in head)
    yield "</tr></thead><tbody>"
    for place, figures in enumerate(report.figures):
        first, *others = row_of(report, figures)
        cells = [f'<td class="text"><a href="#arm-{place}">{xml_text(first)}</a></td>']
        cells += [
            f"<td{_side(name)}>{xml_text(cell)}</td>"
            for name, cell in zip(head[1:], others, strict=True)
        ]
        yield f"<tr>{''.join(cells)}</tr>"
    yield "</tbody></table></div>"


def _side(name: str) -> str:
    return ' class="text"' if name in LEFT else ""


def _overlay(report: Report) -> Iterator[str]:
    if len(report.figures) == 1:
        return
    firsts = [report.results[figures.arm][0] for figures in report.figures]
    yield f"<h2>All arms over time{_of_seed(report, firsts[0])}</h2>"
    solid = [figures.arm for figures in report.figures if not is_split(figures.arm)]
    panels = overlay(firsts, report.kinds, report.width_s, solid=solid)
    yield svg_chart(panels, title=f"Attained, by windows of {report.width_s:g} s")


def _arm(place: int, figures: Figures, report: Report) -> Iterator[str]:
    """The first seed stands for all: lines of several would only hide each other."""
    result = report.results[figures.arm][0]
    title = f"{figures.arm}{_of_seed(report, result)}"
    yield f'<section id="arm-{place}"><h2>{xml_text(title)}</h2>'
    windows = f"by windows of {report.width_s:g} s"
    for of, panels in (("requests", request_panels), ("fleet", fleet_panels)):
        yield svg_chart(panels(result, report.width_s), title=f"{title}: {of}, {windows}")
    if figures.decisions:
        yield "<details><summary>Passes of the controller, by rule and gate</summary>"
        rows = [(name, str(count)) for name, count in figures.decisions.items()]
        yield from plain_table(("rule/gate", "passes"), rows)
        yield "</details>"
    if result.moves:
        yield f"<details><summary>Moves: {len(result.moves)}</summary>"
        yield from _moves(result.moves)
        yield "</details>"
    yield "</section>"


def _of_seed(report: Report, result: Result) -> str:
    return f", seed {result.seed}" if len(report.plan.seeds) > 1 else ""


def _moves(moves: Sequence[Move]) -> Iterator[str]:
    rows = [(f"{move.at:.1f} s", move.iid, move.to, move.rule) for move in moves[:_MOST_MOVES]]
    yield from plain_table(("at", "engine", "to", "rule"), rows)
    if len(moves) > _MOST_MOVES:
        yield f"<p>The first {_MOST_MOVES} of them; --out has them all.</p>"
