"""How fast engines turn out to be, and how far projections hold."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from narwhal.fleet import Backlog, Caution, Pace
from narwhal.fleet.pace import LEAST, MOST, MOST_CAUTION, RELIED_ON

SECONDS = st.floats(0, 100)


@given(st.lists(st.tuples(SECONDS, SECONDS), max_size=30))
def test_the_ratio_is_bounded_whatever_is_observed(seen: list[tuple[float, float]]) -> None:
    pace = Pace(memory=5.0, prior=0.5)
    assert pace.ratio == 1.0
    for predicted, taken in seen:
        pace.observe(predicted, taken)
        assert LEAST <= pace.ratio <= MOST


@given(ratio=st.floats(0.55, 1.9), seconds=st.lists(st.floats(0.01, 3), min_size=1, max_size=20))
def test_an_engine_of_another_speed_is_known_after_some_seconds_of_work(
    ratio: float, seconds: list[float]
) -> None:
    pace, done = Pace(memory=5.0, prior=0.5), 0.0
    while done < 40.0:
        for each in seconds:
            pace.observe(each, ratio * each)
            done += each
    assert pace.ratio == pytest.approx(ratio, rel=1e-3)


def test_prefills_that_were_done_beside_each_other_count_together() -> None:
    backlog, now = Backlog(), 0.0
    for turn in range(60):
        for number in range(4):
            backlog.add((turn, number), 0.25, now)
        now += 1.2
        for number in (0, 1, 3, 2):
            backlog.remove((turn, number), now, done=True)
    assert backlog.pace.ratio == pytest.approx(1.2, rel=0.05)


def test_one_that_hung_is_forgotten_in_time() -> None:
    pace = Pace(memory=5.0, prior=0.5)
    pace.observe(0.1, 1e6)
    assert pace.ratio == MOST
    for _ in range(200):
        pace.observe(0.1, 0.1)
    assert pace.ratio == pytest.approx(1.0, abs=0.05)


def test_one_that_was_given_up_says_nothing() -> None:
    backlog = Backlog()
    backlog.add("a", 1.0, 0.0)
    backlog.remove("a", 50.0)
    assert backlog.pace.ratio == 1.0


def test_the_backlog_is_told_at_the_engine_s_own_pace() -> None:
    backlog = Backlog()
    for n in range(50):
        backlog.add(n, 1.0, 1.5 * n)
        backlog.remove(n, 1.5 * (n + 1), done=True)
    backlog.add("a", 2.0, 100.0)
    backlog.add("b", 2.0, 100.0)
    assert backlog.remaining_s(100.0) == pytest.approx(6.0, rel=1e-3)
    assert backlog.remaining_s(101.0) == pytest.approx(5.0, rel=1e-3)


@given(error=st.floats(0.001, 0.05), seed=st.integers(0, 100))
def test_projections_come_to_hold_as_often_as_they_are_relied_on(error: float, seed: int) -> None:
    rng, caution = random.Random(seed), Caution()
    held = [False] * 3000
    for n in range(len(held)):
        projected = 1.0 + caution.share
        taken = rng.gauss(1.0, error)
        held[n] = taken <= projected
        caution.observe(projected, taken)
    late = held[1000:]
    assert sum(late) / len(late) == pytest.approx(RELIED_ON, abs=0.01)


def test_there_is_none_where_projections_hold_and_never_too_much() -> None:
    caution = Caution()
    caution.observe(1.0, 1.0 + 1e-9)
    assert caution.share == 0.0
    for _ in range(1000):
        caution.observe(1.0, 2.0)
    assert caution.share == MOST_CAUTION
    for _ in range(1_000_000 // 50):
        caution.observe(1.0, 1.0)
    assert caution.share == 0.0
