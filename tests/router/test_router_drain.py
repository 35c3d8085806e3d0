"""What clients are told when all seats are taken."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from narwhal.router.drain import ServiceTime

SECONDS = st.lists(st.floats(0.0, 50.0), min_size=1, max_size=30)


def test_one_request_is_enough_to_know_something() -> None:
    service = ServiceTime()
    assert service.drain_s(waiting=9, seats=1) == 1, "nothing is known"
    service.served(5.0)
    assert service.drain_s(waiting=0, seats=1) == 5
    assert service.drain_s(waiting=3, seats=2) == 10
    assert service.drain_s(waiting=0, seats=100) == 1
    assert service.drain_s(waiting=99, seats=1) == 60


def test_the_newest_count_most() -> None:
    service = ServiceTime()
    service.served(1.0)
    for _ in range(60):
        service.served(10.0)
    assert service.drain_s(waiting=0, seats=1) == 10


@given(SECONDS, st.integers(0, 50), st.integers(1, 50), st.integers(0, 50))
def test_a_longer_line_is_never_told_less(
    seconds: list[float], waiting: int, seats: int, more: int
) -> None:
    service = ServiceTime()
    for each in seconds:
        service.served(each)
    told = service.drain_s(waiting=waiting, seats=seats)
    assert told <= service.drain_s(waiting=waiting + more, seats=seats)
    assert 1 <= told <= 60
    if not waiting and seats == 1:
        assert int(min(seconds)) <= told <= max(1, math.ceil(max(seconds)))
