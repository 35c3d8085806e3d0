"""The page of a replay: well-formed, whole, and nothing in it from elsewhere."""

from __future__ import annotations

import math
import re
from pathlib import Path
from xml.etree import ElementTree as ET

import attrs
import pytest
from replay_files import Files, files_in, run

from narwhal.cli.chart import Panel, Series
from narwhal.cli.replay_plots import fleet_panels, overlay, request_panels
from narwhal.model import Terminal
from narwhal.simulate.replay.arrivals import Arrival
from narwhal.simulate.replay.results import Move, Result, Sample, Served

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return files_in(tmp_path)


def page_of(files: Files, *arguments: str) -> str:
    path = files.folder / "page.html"
    done = run("replay", "--fleet", files.fleet, "--html", str(path), *arguments)
    assert done.exit_code == 0, done.output
    return path.read_text(encoding="utf-8")


def texts(root: ET.Element, name: str) -> list[str]:
    return ["".join(element.itertext()) for element in root.iter(name)]


def test_a_page_has_the_table_and_all_plots_and_stands_alone(files: Files) -> None:
    a, b = files.trace("a", 6), files.trace("b", 6)
    drawn = page_of(files, "--trace", a, "--trace", b, "--compare", "--seeds", "0,1")
    root = ET.fromstring(drawn.removeprefix("<!DOCTYPE html>"))  # noqa: S314 - our own text
    rows = [row for row in texts(root, "tr") if row.startswith(("controller", "1P2D", "2P1D"))]
    assert len(rows) == 3
    assert texts(root, "h2") == [
        "All arms over time, seed 0",
        *("controller, seed 0", "1P2D, seed 0", "2P1D, seed 0"),
    ]
    shown = texts(root, f"{SVG}text")
    assert [shown.count(f"Attained: {kind}") for kind in ("all requests", "a", "b")] == [1, 1, 1]
    titles = ("Attainment", "Arrivals", "Refusals: none", "Queue", "Roles")
    assert [shown.count(title) for title in titles] == [3] * 5
    targets = re.findall(r"(?:href|src)=\"([^\"]*)\"", drawn)
    assert targets == ["#arm-0", "#arm-1", "#arm-2"]
    assert {section.get("id") for section in root.iter("section")} == {"arm-0", "arm-1", "arm-2"}
    assert not re.search(r"<script|url\(|@import", drawn)
    assert "prefers-color-scheme: dark" in drawn


def test_names_are_only_text(files: Files) -> None:
    name = "<b>&\"'\x07"
    drawn = page_of(files, "--trace", f"{name}={files.trace('a')}")
    root = ET.fromstring(drawn.removeprefix("<!DOCTYPE html>"))  # noqa: S314 - our own text
    assert texts(root, "h1") == ["Replay: <b>&\"' "]
    assert texts(root, "h2") == ["controller"]


def served(at: float, kind: str, *, attained: bool = True) -> Served:
    return Served(
        arrival=Arrival(at=at, prompt=1, output=2, kind=kind),
        terminal=Terminal.COMPLETED if attained else Terminal.REFUSED,
        code=None if attained else "queue_full",
        attained=attained,
    )


RESULT = Result(
    arm="controller",
    seed=0,
    requests=(
        *(served(0.0, "a"), served(1.0, "a", attained=False), served(2.5, "b")),
        *(served(6.0, "a"), served(7.0, "a")),
    ),
    samples=tuple(
        Sample(
            at=float(n),
            prefill=1 + (n >= 3),
            decode=2 - (n >= 3),
            queue=n % 3,
            prefill_load=n / 10 if n else None,
            decode_load=1.0 if n else None,
        )
        for n in range(9)
    ),
    moves=(Move(at=3.0, iid="d0", to="prefill", rule="demand"),),
    decisions={},
    virtual_s=8.0,
    real_s=1.0,
)


def lines(panel: Panel) -> list[tuple[str, tuple[tuple[float, float], ...]]]:
    return [(series.name, tuple(series.points)) for series in panel.series]


def test_a_kind_that_is_not_there_leaves_a_gap() -> None:
    attained, arrivals, refusals = request_panels(RESULT, 2.0)
    assert lines(attained) == [
        ("all requests", ((1.0, 50.0), (3.0, 100.0))),
        ("all requests", ((7.0, 100.0),)),
        ("a", ((1.0, 50.0),)),
        ("a", ((7.0, 100.0),)),
        ("b", ((3.0, 100.0),)),
    ]
    # What is alone is no line, so it is a dot.
    assert [series.dots for series in attained.series] == [False, True, True, True, True]
    assert lines(arrivals)[1] == ("a", ((1.0, 1.0), (3.0, 0.0), (5.0, 0.0), (7.0, 1.0)))
    assert lines(refusals) == [("queue_full", ((1.0, 0.5), (3.0, 0.0), (5.0, 0.0), (7.0, 0.0)))]


def test_roles_are_steps_and_queues_their_most() -> None:
    queue, roles, loads = fleet_panels(RESULT, 2.0)
    assert lines(queue) == [("waiting", ((1, 1), (3, 2), (5, 2), (7, 1), (9, 2)))]
    assert lines(roles) == [
        ("prefill", ((0, 1), (3, 2), (8, 2))),
        ("decode", ((0, 2), (3, 1), (8, 1))),
    ]
    assert all(series.stepped for series in roles.series)
    assert lines(loads)[0][1][1] == (3.0, 0.25)
    assert lines(loads)[-1] == ("target", ((0.0, 1.0), (8.0, 1.0)))
    nothing = attrs.evolve(RESULT, samples=RESULT.samples[:1])
    assert [panel.title for panel in fleet_panels(nothing, 2.0)] == ["Queue", "Roles"]


def test_a_load_that_no_engine_bears_is_a_gap() -> None:
    samples = tuple(attrs.evolve(each, prefill_load=math.inf) for each in RESULT.samples)
    *_, loads = fleet_panels(attrs.evolve(RESULT, samples=samples), 2.0)
    assert {series.name for series in loads.series} == {"decode", "target"}


@pytest.mark.parametrize(
    ("seconds", "unit"), [(600.0, "seconds"), (3600.0, "minutes"), (86400.0, "hours")]
)
def test_time_is_in_a_unit_of_which_there_are_some(seconds: float, unit: str) -> None:
    long = attrs.evolve(RESULT, virtual_s=seconds)
    assert request_panels(long, 2.0)[0].x_label == f"{unit} since the replay began"


def test_more_arms_than_colours_are_told_apart_by_dots() -> None:
    arms = [attrs.evolve(RESULT, arm=f"{n}") for n in range(9)]
    (panel,) = overlay(arms, ["a"], 2.0, solid=["0", "1"])
    whole = [series for series in panel.series if len(series.points) > 1]
    assert [series.name for series in whole] == [*"012345678", "0"]
    assert [series.dots for series in whole] == [False] * 7 + [True] * 2 + [False]
    assert [series.dashed for series in whole] == [False] * 2 + [True] * 7 + [False]


def test_a_result_without_requests_is_drawn() -> None:
    empty = attrs.evolve(RESULT, requests=(), samples=(), moves=())
    panels = [*request_panels(empty, 1.0), *fleet_panels(empty, 1.0)]
    found: list[Series] = [series for panel in panels for series in panel.series]
    assert all(not series.points for series in found)
