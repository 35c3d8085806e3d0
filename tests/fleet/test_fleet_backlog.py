"""Prefill work on an engine, against a model that plays the engine."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from narwhal.fleet.backlog import Backlog


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
