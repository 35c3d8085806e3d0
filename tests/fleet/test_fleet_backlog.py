"""Prefill work on an engine, against a model that plays the engine."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from narwhal.fleet.backlog import Backlog, filled_to


def test_what_is_left_of_the_first_and_all_of_the_others() -> None:
    backlog = Backlog()
    assert backlog.remaining_s(0.0) == 0.0
    backlog.add("a", 2.0, 10.0)
    backlog.add("b", 3.0, 11.0)
    assert backlog.remaining_s(11.0) == pytest.approx(4.0)
    backlog.remove("a", 12.0)
    assert backlog.remaining_s(13.0) == pytest.approx(2.0)
    assert backlog.remaining_s(99.0) == 0.0
    backlog.remove("b", 99.0)
    assert len(backlog) == 0


def test_a_prefill_that_is_late_hides_nothing_behind_it() -> None:
    backlog = Backlog()
    backlog.add("slow", 1.0, 0.0)
    backlog.add("next", 5.0, 0.0)
    assert backlog.remaining_s(100.0) == pytest.approx(5.0)


def test_one_that_is_given_up_takes_its_share_with_it() -> None:
    backlog = Backlog()
    for name in "abc":
        backlog.add(name, 1.0, 0.0)
    backlog.remove("b", 0.5)
    assert backlog.remaining_s(0.5) == pytest.approx(1.5)
    backlog.remove("a", 0.5)
    assert backlog.remaining_s(0.5) == pytest.approx(1.0)


@given(st.lists(st.tuples(st.floats(0, 5), st.floats(0, 5)), min_size=1, max_size=20))
def test_an_engine_that_keeps_to_the_predictions_is_idle_when_it_says(
    arrivals: list[tuple[float, float]],
) -> None:
    backlog, now, idle_at = Backlog(), 0.0, 0.0
    ends: list[tuple[float, int]] = []
    for number, (pause, seconds) in enumerate(arrivals):
        now += pause
        while ends and ends[0][0] <= now:
            at, done = ends.pop(0)
            backlog.remove(done, at)
        assert backlog.remaining_s(now) == pytest.approx(max(0.0, idle_at - now), abs=1e-6)
        idle_at = max(idle_at, now) + seconds
        ends.append((idle_at, number))
        backlog.add(number, seconds, now)
        assert backlog.remaining_s(now) == pytest.approx(idle_at - now, abs=1e-6)


BUSY = st.lists(st.floats(0.0, 9.0), min_size=1, max_size=4)
LINE = st.lists(st.floats(0.0, 5.0), max_size=6)


@pytest.mark.parametrize(
    ("backlogs", "line_s", "level"),
    [
        ([3.0], 0.0, 3.0),
        ([3.0], 2.0, 5.0),
        ([3.0, 1.0], 0.0, 1.0),
        ([3.0, 1.0], 2.0, 3.0),
        ([3.0, 1.0], 4.0, 4.0),
        ([9.0, 1.0, 2.0], 3.0, 3.0),
    ],
)
def test_a_line_goes_to_where_there_is_least(
    backlogs: list[float], line_s: float, level: float
) -> None:
    assert filled_to(backlogs, line_s) == level


def test_there_has_to_be_an_engine() -> None:
    with pytest.raises(ValueError, match="no engines"):
        filled_to([], 1.0)


@given(BUSY, LINE, st.floats(0.0, 20.0))
def test_whoever_waits_that_long_finds_an_engine_free_if_nobody_else_came(
    backlogs: list[float], line: list[float], wait: float
) -> None:
    """Engines that take the next prefill in line whenever they are idle."""
    told, busy, waiting = filled_to(backlogs, sum(line)), sorted(backlogs), line[:]
    while waiting and busy[0] < wait:
        busy[0] += waiting.pop(0)
        busy.sort()
    left = [max(0.0, seconds - wait) for seconds in busy]
    assert filled_to(left, sum(waiting)) <= max(0.0, told - wait) + 1e-9


@given(BUSY, st.floats(0.0, 9.0), st.floats(0.0, 9.0), st.randoms(use_true_random=False))
def test_more_work_is_never_done_earlier(
    backlogs: list[float], line_s: float, more: float, rng: random.Random
) -> None:
    level = filled_to(backlogs, line_s)
    assert level >= min(backlogs)
    assert filled_to(backlogs, line_s + more) >= level - 1e-9
    busier = [backlogs[0] + more, *backlogs[1:]]
    rng.shuffle(busier)
    assert filled_to(busier, line_s) >= level - 1e-9
