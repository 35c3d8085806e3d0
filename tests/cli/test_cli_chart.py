"""Charts: whatever is drawn is XML, in its place, and can be told apart."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Sequence
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from narwhal.cli import chart
from narwhal.cli.chart import Panel, Series, svg_chart
from narwhal.cli.chart_axes import axis

FINITE = st.floats(allow_nan=False, allow_infinity=False)
POSITIVE = st.floats(min_value=0, exclude_min=True, allow_infinity=False)
SVG = "{http://www.w3.org/2000/svg}"
_MOVES = re.compile(r"[ML](-?[\d.]+) (-?[\d.]+)")


def parsed(*panels: Panel, title: str = "a title") -> ET.Element:
    return ET.fromstring(svg_chart(panels, title=title))  # noqa: S314 - our own text


def panel(*series: Series, **more: Any) -> Panel:
    return Panel(title="p", x_label="x", y_label="y", series=series, **more)


def places(root: ET.Element) -> list[tuple[float, float]]:
    """Where the panels' dots and the corners of their lines are, in pixels of their panels."""
    paths = [path for group in root.iter(f"{SVG}g") for path in group.iter(f"{SVG}path")]
    return [(float(x), float(y)) for path in paths for x, y in _MOVES.findall(path.get("d", ""))]


def texts(root: ET.Element) -> list[str]:
    return [element.text or "" for element in root.iter(f"{SVG}text")]


@given(
    points=st.lists(st.lists(st.tuples(FINITE, FINITE), max_size=6), max_size=4),
    from_zero=st.booleans(),
)
def test_any_finite_points_are_drawn_inside_their_axes(
    points: list[list[tuple[float, float]]], from_zero: bool
) -> None:
    series = [Series(name=f"s{n}", points=each) for n, each in enumerate(points)]
    root = parsed(panel(*series, y_from_zero=from_zero))
    assert not re.search(r"nan|inf", svg_chart([panel(*series)], title=""), re.IGNORECASE)
    for x, y in places(root):
        # Within the plot, but for a dot's own size.
        assert chart._LEFT - 5 <= x <= chart._LEFT + chart._PLOT_W + 5
        assert chart._TOP - 6 <= y <= chart._TOP + chart._PLOT_H + 6


@given(points=st.lists(st.tuples(POSITIVE, POSITIVE), max_size=6))
def test_so_are_any_positive_ones_on_logarithmic_axes(points: list[tuple[float, float]]) -> None:
    root = parsed(panel(Series(name="s", points=points), x_log=True, y_log=True))
    for x, y in places(root):
        assert chart._LEFT - 5 <= x <= chart._LEFT + chart._PLOT_W + 5
        assert chart._TOP - 6 <= y <= chart._TOP + chart._PLOT_H + 6


@given(text=st.text(max_size=30))
def test_any_text_stays_text(text: str) -> None:
    root = parsed(Panel(title=text, x_label=text, y_label=text, series=[]), title=text)
    shown = "".join(letter if letter.isprintable() else " " for letter in text)
    assert texts(root).count(shown) >= 4 or not shown.strip()


@given(
    values=st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=8),
    from_zero=st.booleans(),
)
def test_ticks_say_where_they_are(values: list[float], from_zero: bool) -> None:
    found = axis(values, log=False, from_zero=from_zero)
    ats = [tick.at for tick in found.ticks]
    assert (ats[0], ats[-1]) == (0.0, 1.0)
    assert 2 <= len(ats) <= 12
    labels = [tick.label for tick in found.ticks]
    assert len(set(labels)) == len(labels)
    for tick in found.ticks:
        assert found.at(float(tick.label)) == pytest.approx(tick.at, abs=1e-6)
    if from_zero:
        assert "0" in labels


@given(values=st.lists(st.floats(1e-12, 1e12), min_size=1, max_size=8))
def test_so_do_those_of_a_logarithmic_axis(values: list[float]) -> None:
    found = axis(values, log=True, from_zero=False)
    assert 2 <= len(found.ticks) <= 16
    for tick in found.ticks:
        assert found.at(float(tick.label)) == pytest.approx(tick.at, abs=1e-6)
    for value in values:
        assert -1e-6 <= found.at(value) <= 1 + 1e-6


@pytest.mark.parametrize(
    ("values", "log", "labels"),
    [
        ([0.0, 4.3], False, "0 1 2 3 4 5"),
        ([0.013, 0.019], False, "0.013 0.014 0.015 0.016 0.017 0.018 0.019"),
        ([3.0], False, "1.5 2 2.5 3 3.5 4 4.5"),
        ([0.0], False, "-1 -0.5 0 0.5 1"),
        ([], False, "-1 -0.5 0 0.5 1"),
        ([-250.0, 1e6], False, "-200000 0 200000 400000 600000 800000 1000000"),
        ([1e300, 1.7e308], False, "0 5e307 1e308 1.5e308 2e308"),
        ([5e-324, 1e-322], False, "0 2e-323 4e-323 6e-323 8e-323 1e-322"),
        ([1.0, 1000.0], True, "1 10 100 1000"),
        ([3.0, 40.0], True, "2 5 10 20 50"),
        ([7.0], True, "5 6 7 8 9 10"),
        ([1e-320, 1e300], True, "1e-300 1e-236"),
    ],
)
def test_ticks_are_nice(values: Sequence[float], log: bool, labels: str) -> None:
    found = [tick.label for tick in axis(values, log=log, from_zero=False).ticks]
    if values == [1e-320, 1e300]:
        assert len(found) <= 12
        assert all(re.fullmatch(r"1e-?\d+", label) or label == "1" for label in found)
    else:
        assert " ".join(found) == labels


def test_a_larger_value_is_further_along() -> None:
    for log in (False, True):
        values = [0.5, 1.0, 3.0, 70.0]
        at = axis(values, log=log, from_zero=False).at
        assert all(at(one) < at(other) for one, other in itertools.pairwise(values))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_refused_by_name(value: float) -> None:
    with pytest.raises(ValueError, match=r"fit: .* is not finite"):
        Series(name="fit", points=[(1.0, 2.0), (1.0, value)])
    with pytest.raises(ValueError, match="fit: "):
        Series(name="fit", points=[(value, 1.0)])


def test_what_has_no_logarithm_is_refused_by_name() -> None:
    series = Series(name="fit", points=[(1.0, 0.0)])
    with pytest.raises(ValueError, match=r"fit: y = 0.0 .* not positive"):
        panel(series, y_log=True)
    panel(series, x_log=True)


def test_series_of_one_name_look_alike_and_others_do_not() -> None:
    def series(name: str) -> Series:
        return Series(name=name, points=[(0, 0), (1, 1)])

    root = parsed(panel(series("a"), series("b")), panel(series("b"), series("a")))
    groups = list(root.iter(f"{SVG}g"))
    strokes = [
        [path.get("stroke") for path in group.iter(f"{SVG}path") if path.get("stroke-width")]
        for group in groups
    ]
    assert strokes[0] == strokes[1][::-1]
    assert len(set(strokes[0])) == 2
    assert texts(root).count("a") == 1, "one legend for all panels"


def test_lines_dots_and_dashes_are_drawn_as_asked_for() -> None:
    points = [(0, 0), (1, 1), (2, 1)]
    fit = Series(name="fit", points=points, dots=False, dashed=True)
    samples = Series(name="samples", points=points, line=False)
    (group,) = parsed(panel(fit, samples)).iter(f"{SVG}g")
    paths = list(group.iter(f"{SVG}path"))
    assert len([path for path in paths if path.get("stroke-dasharray")]) == 1
    assert len([path for path in paths if path.get("fill") not in (None, "none")]) == 3


@pytest.mark.parametrize(
    ("count", "wide", "high"), [(0, 1, 0), (1, 1, 1), (2, 2, 1), (3, 3, 1), (4, 2, 2), (5, 3, 2)]
)
def test_panels_stand_side_by_side_and_wrap(count: int, wide: int, high: int) -> None:
    root = parsed(*[panel() for _ in range(count)])
    assert len(list(root.iter(f"{SVG}g"))) == count
    assert float(root.get("width", "")) == pytest.approx(wide * chart._PANEL_W, abs=50)
    assert float(root.get("height", "")) == pytest.approx(high * chart._PANEL_H, abs=100)


def test_the_same_values_give_the_same_text_on_white() -> None:
    drawn = [svg_chart([panel(Series(name="s", points=[(1, 2)]))], title="t") for _ in range(2)]
    assert drawn[0] == drawn[1]
    assert 'fill="#ffffff"' in drawn[0]


def test_steps_stay_at_a_value_until_the_next() -> None:
    steps = Series(name="s", points=[(0, 0), (1, 2), (2, 1)], dots=False, stepped=True)
    # The last that is drawn, after the grid and the axes.
    first, level, up, along, last = places(parsed(panel(steps)))[-5:]
    assert first[1] == level[1]
    assert level[0] == up[0]
    assert up[1] == along[1]
    assert along[0] == last[0]
    assert up[1] < last[1] < first[1]


def test_axes_reach_what_they_have_room_for() -> None:
    points = Series(name="s", points=[(3, 3)])
    place = places(parsed(panel(points, x_room=(0, 6), y_room=(6,))))[-1]
    middle = chart._LEFT + chart._PLOT_W / 2, chart._TOP + chart._PLOT_H / 2
    assert place == (middle[0] - 4, middle[1])


@given(values=st.lists(st.integers(-(10**9), 10**9), min_size=2, max_size=8, unique=True))
def test_an_axis_may_end_where_its_values_do(values: list[int]) -> None:
    found = axis(values, log=False, from_zero=False, to_ticks=False)
    assert found.at(min(values)) == pytest.approx(0, abs=1e-6)
    assert found.at(max(values)) == pytest.approx(1, abs=1e-6)
    assert all(-1e-6 <= tick.at <= 1 + 1e-6 for tick in found.ticks)
    apart = max(values) - min(values) > 1e-3 * max(map(abs, values))
    for tick in found.ticks if apart else ():
        assert found.at(float(tick.label)) == pytest.approx(tick.at, abs=1e-6)
