"""Charts as SVG: values in, text out.

The same values give the same text. What is drawn is told apart by colour, shape and dashes, so
also by people who see fewer colours, and stands on white, whatever is around it.
"""

from __future__ import annotations

import math
from html import escape
from itertools import pairwise
from typing import TYPE_CHECKING

import attrs

from narwhal.cli.chart_axes import Axis, axis
from narwhal.model.text import visible

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

# Okabe and Ito's colours without yellow, which is too light for lines on white.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#000000", "#e69f00", "#56b4e9")
SHAPES = ("circle", "square", "triangle", "diamond")
COLUMNS = 3
"""Panels side by side, at most; four stand two by two."""

# All in pixels.
_PLOT_W, _PLOT_H = 300, 200
_LEFT, _RIGHT, _TOP, _BOTTOM = 66, 18, 34, 50
_PANEL_W, _PANEL_H = _LEFT + _PLOT_W + _RIGHT, _TOP + _PLOT_H + _BOTTOM
_MARGIN = 12
_TITLE_H, _LEGEND_H = 34, 22
_SAMPLE_W, _GAP = 34, 18
_LETTER_W = 6.6
"""Of a letter at the legend's size, about: text has no width before it is drawn."""


def _points(values: Sequence[tuple[float, float]]) -> tuple[tuple[float, float], ...]:
    return tuple((float(x), float(y)) for x, y in values)


@attrs.frozen(kw_only=True)
class Series:
    """Points that belong together, in the order in which a line would join them.

    Series of one name have one colour in all panels of a chart.
    """

    name: str
    points: Sequence[tuple[float, float]] = attrs.field(converter=_points)
    line: bool = True
    dots: bool = True
    dashed: bool = False
    stepped: bool = False
    """A line stays at a value until the next, as numbers of engines do."""

    def __attrs_post_init__(self) -> None:
        """Raises `ValueError` for a value that has no place on an axis."""
        for point in self.points:
            if not all(map(math.isfinite, point)):
                raise ValueError(f"{self.name}: {point} cannot be drawn, it is not finite")


@attrs.frozen(kw_only=True)
class Panel:
    """One pair of axes. Values on a logarithmic one have to be positive."""

    title: str
    x_label: str
    y_label: str
    series: Sequence[Series]
    x_log: bool = False
    y_log: bool = False
    y_from_zero: bool = True
    """Whether a linear y axis begins at zero, so that heights can be compared."""
    x_room: Sequence[float] = ()
    """Values that the x axis reaches, whether or not a point lies there."""
    y_room: Sequence[float] = ()
    x_to_ticks: bool = True
    """Whether a linear x axis ends on ticks, or where its last value is."""

    def __attrs_post_init__(self) -> None:
        """Raises `ValueError` for a value that has no logarithm and needs one."""
        for name, log, place in (("x", self.x_log, 0), ("y", self.y_log, 1)):
            for series in self.series if log else ():
                wrong = [point[place] for point in series.points if point[place] <= 0]
                if wrong:
                    raise ValueError(
                        f"{series.name}: {name} = {wrong[0]} cannot be drawn on a logarithmic "
                        "axis, it is not positive"
                    )


@attrs.frozen
class _Style:
    colour: str
    shape: str
    series: Series
    """The first of its name: how the legend shows it."""


def svg_chart(panels: Sequence[Panel], *, title: str) -> str:
    """Draw the panels side by side, under a title and a legend for all of them; an SVG document."""
    columns = min(COLUMNS, len(panels)) if len(panels) != 4 else 2  # noqa: PLR2004 - two by two
    width = 2 * _MARGIN + max(1, columns) * _PANEL_W
    styles = _styles(panels)
    legend, legend_rows = _legend(styles, width)
    top = _MARGIN + _TITLE_H + legend_rows * _LEGEND_H
    rows = math.ceil(len(panels) / columns) if panels else 0
    height = top + rows * _PANEL_H + _MARGIN
    lines = [*_head(title, width, height), *legend]
    for place, panel in enumerate(panels):
        row, column = divmod(place, columns)
        lines.append(
            f'<g transform="translate({_MARGIN + column * _PANEL_W} {top + row * _PANEL_H})">'
        )
        lines += _panel(panel, styles)
        lines.append("</g>")
    return "\n".join([*lines, "</svg>", ""])


def _head(title: str, width: int, height: int) -> Iterator[str]:
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="Helvetica, Arial, sans-serif" '
        'font-size="12" fill="#222222" role="img">'
    )
    yield f"<title>{xml_text(title)}</title>"
    yield f'<rect width="{width}" height="{height}" fill="#ffffff"/>'
    yield (
        f'<text x="{width / 2:g}" y="{_MARGIN + 16}" text-anchor="middle" font-size="16" '
        f'font-weight="bold">{xml_text(title)}</text>'
    )


def _styles(panels: Sequence[Panel]) -> dict[str, _Style]:
    styles: dict[str, _Style] = {}
    for panel in panels:
        for series in panel.series:
            place = len(styles)
            colour, shape = COLOURS[place % len(COLOURS)], SHAPES[place % len(SHAPES)]
            styles.setdefault(series.name, _Style(colour, shape, series))
    return styles


def xml_text(text: str) -> str:
    """`text` as it may stand in XML, which has no place for most control characters."""
    return escape(visible(text))


# The legend


def _legend(styles: dict[str, _Style], width: int) -> tuple[list[str], int]:
    """Its lines of SVG, and how many rows it takes."""
    lines: list[str] = []
    x, row = float(_MARGIN + _LEFT), 0
    for name, style in styles.items():
        entry_w = _SAMPLE_W + _LETTER_W * len(name) + _GAP
        if x + entry_w > width - _MARGIN and x > _MARGIN + _LEFT:
            x, row = float(_MARGIN + _LEFT), row + 1
        y = _MARGIN + _TITLE_H + row * _LEGEND_H
        lines += _drawn(style.series, style, [(x, y), (x + _SAMPLE_W - 8, y)], at_middle=True)
        lines.append(f'<text x="{x + _SAMPLE_W:g}" y="{y + 4}">{xml_text(name)}</text>')
        x += entry_w
    return lines, row + 1 if styles else 0


# A panel


def _panel(panel: Panel, styles: dict[str, _Style]) -> Iterator[str]:
    points = [point for series in panel.series for point in series.points]
    xs = [*panel.x_room, *(x for x, _ in points)]
    ys = [*panel.y_room, *(y for _, y in points)]
    x_axis = axis(xs, log=panel.x_log, from_zero=False, to_ticks=panel.x_to_ticks)
    y_axis = axis(ys, log=panel.y_log, from_zero=panel.y_from_zero)
    yield (
        f'<text x="{_LEFT + _PLOT_W / 2:g}" y="{_TOP - 12}" text-anchor="middle" font-size="13" '
        f'font-weight="bold">{xml_text(panel.title)}</text>'
    )
    yield from _grid(x_axis, y_axis)
    yield (
        f'<text x="{_LEFT + _PLOT_W / 2:g}" y="{_TOP + _PLOT_H + 38}" text-anchor="middle">'
        f"{xml_text(panel.x_label)}</text>"
    )
    yield (
        f'<text transform="translate(14 {_TOP + _PLOT_H / 2:g}) rotate(-90)" '
        f'text-anchor="middle">{xml_text(panel.y_label)}</text>'
    )
    for series in panel.series:
        places = [(_x(x_axis.at(x)), _y(y_axis.at(y))) for x, y in series.points]
        yield from _drawn(series, styles[series.name], places)


def _x(at: float) -> float:
    return _LEFT + at * _PLOT_W


def _y(at: float) -> float:
    return _TOP + (1 - at) * _PLOT_H


def _grid(x_axis: Axis, y_axis: Axis) -> Iterator[str]:
    bottom, right = _TOP + _PLOT_H, _LEFT + _PLOT_W
    for tick in y_axis.ticks:
        y = _y(tick.at)
        yield f'<path d="M{_LEFT} {y:.1f}H{right}" stroke="#dddddd"/>'
        yield f'<text x="{_LEFT - 7}" y="{y + 4:.1f}" text-anchor="end">{tick.label}</text>'
    for tick in x_axis.ticks:
        x = _x(tick.at)
        yield f'<path d="M{x:.1f} {bottom}v5" stroke="#222222"/>'
        yield f'<text x="{x:.1f}" y="{bottom + 18}" text-anchor="middle">{tick.label}</text>'
    yield f'<path d="M{_LEFT} {_TOP}V{bottom}H{right}" fill="none" stroke="#222222"/>'


def _drawn(
    series: Series, style: _Style, places: Sequence[tuple[float, float]], *, at_middle: bool = False
) -> Iterator[str]:
    """A series at its places in pixels; with `at_middle` one dot, between the two ends."""
    if series.line and len(places) > 1:
        path = "L".join(f"{x:.1f} {y:.1f}" for x, y in _corners(series, places))
        dashes = ' stroke-dasharray="6 4"' if series.dashed else ""
        yield (
            f'<path d="M{path}" fill="none" stroke="{style.colour}" stroke-width="2" '
            f'stroke-linejoin="round"{dashes}/>'
        )
    if series.dots:
        if at_middle:
            (x0, y), (x1, _) = places
            places = [((x0 + x1) / 2, y)]
        for x, y in places:
            yield f'<path d="{_dot(style.shape, x, y)}" fill="{style.colour}"/>'


def _corners(
    series: Series, places: Sequence[tuple[float, float]]
) -> Sequence[tuple[float, float]]:
    """The places, and for steps the ends of the levels between them."""
    if not series.stepped:
        return places
    levels = ((x, y) for (_, y), (x, _) in pairwise(places))
    return [
        places[0],
        *(corner for pair in zip(levels, places[1:], strict=True) for corner in pair),
    ]


def _dot(shape: str, x: float, y: float) -> str:
    match shape:
        case "circle":
            return f"M{x - 4:.1f} {y:.1f}a4 4 0 1 0 8 0a4 4 0 1 0 -8 0Z"
        case "square":
            return f"M{x - 3.5:.1f} {y - 3.5:.1f}h7v7h-7Z"
        case "triangle":
            return f"M{x:.1f} {y - 4.5:.1f}l4.5 8h-9Z"
        case _:
            return f"M{x:.1f} {y - 5:.1f}l5 5l-5 5l-5 -5Z"
