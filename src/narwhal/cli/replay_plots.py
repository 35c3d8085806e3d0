"""The plots of replays: what happened when, as panels of charts."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import attrs

from narwhal.cli.chart import Panel, Series
from narwhal.simulate.replay.figures import windows_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from narwhal.simulate.replay.figures import Share, Window
    from narwhal.simulate.replay.results import Result, Sample

ALL = "all requests"
# More points than this are a line without dots.
_DOTS = 30


@attrs.frozen
class Clock:
    """The unit that time is drawn in."""

    unit: str
    seconds: float

    def at(self, seconds: float) -> float:
        """Where a moment lies."""
        return seconds / self.seconds

    @property
    def label(self) -> str:
        """Of an axis."""
        return f"{self.unit} since the replay began"


def clock_for(seconds: float) -> Clock:
    """The largest unit of which there are some, for a replay that long."""
    if seconds <= 600:  # noqa: PLR2004 - ten minutes
        return Clock("seconds", 1.0)
    few = 10_800  # three hours
    return Clock("minutes", 60.0) if seconds <= few else Clock("hours", 3600.0)


def overlay(results: Sequence[Result], kinds: Sequence[str], width_s: float) -> list[Panel]:
    """Attainment of every arm over time: of all requests, and of each of a few kinds."""
    clock = clock_for(max((result.virtual_s for result in results), default=0.0))
    windows = {result.arm: windows_of(result, width_s) for result in results}

    def panel(title: str, share: Callable[[Window], Share | None]) -> Panel:
        series = [
            _line(arm, _percents(each, width_s, clock, share), dashed=place > 0)
            for place, (arm, each) in enumerate(windows.items())
        ]
        return _attainment(title, series, clock)

    panels = [panel(f"Attained: {ALL}", lambda window: window.all)]
    if 1 < len(kinds) <= 5:  # noqa: PLR2004 - six panels in two rows
        panels += [panel(f"Attained: {kind}", partial(_of_kind, kind)) for kind in kinds]
    return panels


def panels_of(result: Result, width_s: float) -> list[Panel]:
    """One replay: attainment, what was offered, refusals, queue, roles, loads over time.

    Without loads, which only a controller measures, there are five.
    """
    clock = clock_for(result.virtual_s)
    windows = windows_of(result, width_s)
    panels = [
        _attained(windows, width_s, clock),
        _offered(windows, width_s, clock),
        _refusals(windows, width_s, clock),
        _queue(result.samples, width_s, clock),
        _roles(result.samples, clock),
        _loads(result.samples, width_s, clock),
    ]
    return [panel for panel in panels if panel is not None]


# By windows of requests


def _attained(windows: Sequence[Window], width_s: float, clock: Clock) -> Panel:
    kinds = _names(window.kinds for window in windows)
    series = [_line(ALL, _percents(windows, width_s, clock, lambda window: window.all))]
    if len(kinds) > 1:
        series += [
            _line(kind, _percents(windows, width_s, clock, partial(_of_kind, kind)), dashed=True)
            for kind in kinds
        ]
    return _attainment("Attainment", series, clock)


def _attainment(title: str, series: Sequence[Series], clock: Clock) -> Panel:
    return Panel(
        title=title,
        x_label=clock.label,
        y_label="% of the offered in time",
        series=series,
        y_room=(100.0,),
    )


def _offered(windows: Sequence[Window], width_s: float, clock: Clock) -> Panel:
    kinds = _names(window.kinds for window in windows)
    rates = [(window.at, window.all.offered / width_s) for window in windows]
    series = [_line(ALL, _middles(rates, width_s, clock))]
    for kind in kinds if len(kinds) > 1 else ():
        of_kind = [
            (window.at, window.kinds[kind].offered / width_s if kind in window.kinds else 0.0)
            for window in windows
        ]
        series.append(_line(kind, _middles(of_kind, width_s, clock), dashed=True))
    return Panel(title="Arrivals", x_label=clock.label, y_label="requests/s", series=series)


def _refusals(windows: Sequence[Window], width_s: float, clock: Clock) -> Panel:
    codes = _names(window.refused for window in windows)
    series = [
        _line(
            code,
            _middles(
                [(window.at, window.refused.get(code, 0) / width_s) for window in windows],
                width_s,
                clock,
            ),
        )
        for code in codes
    ]
    return Panel(
        title="Refusals" if codes else "Refusals: none",
        x_label=clock.label,
        y_label="requests/s",
        series=series or [_line("none", [(0.0, 0.0)])],
    )


def _percents(
    windows: Sequence[Window],
    width_s: float,
    clock: Clock,
    share: Callable[[Window], Share | None],
) -> list[tuple[float, float]]:
    found = [(window.at, _fraction(share(window))) for window in windows]
    known = [(at, 100 * fraction) for at, fraction in found if fraction is not None]
    return _middles(known, width_s, clock)


def _of_kind(kind: str, window: Window) -> Share | None:
    return window.kinds.get(kind)


def _fraction(share: Share | None) -> float | None:
    return None if share is None else share.fraction


def _middles(
    values: Iterable[tuple[float, float]], width_s: float, clock: Clock
) -> list[tuple[float, float]]:
    return [(clock.at(at + width_s / 2), value) for at, value in values]


def _names(counts: Iterable[Iterable[str]]) -> list[str]:
    return sorted({name for each in counts for name in each})


# By samples of the fleet


def _roles(samples: Sequence[Sample], clock: Clock) -> Panel:
    return Panel(
        title="Roles",
        x_label=clock.label,
        y_label="engines in service",
        series=[
            _steps("prefill", [(each.at, each.prefill) for each in samples], clock),
            _steps("decode", [(each.at, each.decode) for each in samples], clock),
        ],
    )


def _queue(samples: Sequence[Sample], width_s: float, clock: Clock) -> Panel:
    most = _by_window([(each.at, float(each.queue)) for each in samples], width_s, max)
    return Panel(
        title="Queue",
        x_label=clock.label,
        y_label="most requests that waited",
        series=[_line("waiting", _middles(most, width_s, clock))],
    )


def _loads(samples: Sequence[Sample], width_s: float, clock: Clock) -> Panel | None:
    series = []
    for name, values in (
        ("prefill", [(each.at, each.prefill_load) for each in samples]),
        ("decode", [(each.at, each.decode_load) for each in samples]),
    ):
        known = [(at, value) for at, value in values if value is not None]
        means = _by_window(known, width_s, lambda found: sum(found) / len(found))
        series.append(_line(name, _middles(means, width_s, clock)))
    points = [x for each in series for x, _ in each.points]
    if not points:
        return None
    target = Series(
        name="target", points=[(min(points), 1.0), (max(points), 1.0)], dots=False, dashed=True
    )
    return Panel(
        title="Loads",
        x_label=clock.label,
        y_label="load over target",
        series=[*series, target],
    )


def _by_window(
    values: Iterable[tuple[float, float]], width_s: float, of: Callable[[list[float]], float]
) -> Iterator[tuple[float, float]]:
    slots: dict[int, list[float]] = {}
    for at, value in values:
        slots.setdefault(int(at // width_s), []).append(value)
    return ((n * width_s, of(slots[n])) for n in sorted(slots))


def _steps(name: str, values: Sequence[tuple[float, int]], clock: Clock) -> Series:
    """Where it changes, and the last moment: a level in between says nothing more."""
    kept = [
        value
        for n, value in enumerate(values)
        if n in (0, len(values) - 1) or value[1] != values[n - 1][1]
    ]
    points = [(clock.at(at), float(count)) for at, count in kept]
    return Series(name=name, points=points, dots=len(points) == 1, stepped=True)


def _line(name: str, points: Sequence[tuple[float, float]], *, dashed: bool = False) -> Series:
    return Series(name=name, points=points, dots=len(points) <= _DOTS, dashed=dashed)
