"""Only the time in which all streams of a batch decode counts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from narwhal.profiler.cohort import Cohort, first_and_interval


def test_a_batch_counts_from_the_step_after_its_last_stream_came() -> None:
    cohort = Cohort(requests=2, prompt_tokens=100, wanted=2)
    for n in range(1, 6):  # alone, and fast
        cohort.token(0, n, 0.01 * n)
    cohort.token(1, 1, 1.0)  # the step in which it came is not one of the batch
    cohort.token(0, 6, 1.1)
    for n in (1, 2, 3):
        cohort.token(0, 6 + n, 1.1 + 0.2 * n)
        assert not cohort.complete
        cohort.token(1, 1 + n, 1.1 + 0.2 * n)
    assert cohort.complete
    sample = cohort.sample()
    assert sample.requests == 2
    assert sample.interval_s == pytest.approx(0.2)
    # Stream 0 had 6 to 8 tokens before its steps, stream 1 two and three.
    assert sample.kv_tokens == round(100 + 7.0 + 100 + 2.5)


def test_a_batch_that_lost_a_stream_is_not_complete_any_more() -> None:
    cohort = Cohort(requests=2, prompt_tokens=8, wanted=2)
    cohort.token(0, 1, 0.1)
    cohort.token(1, 1, 0.2)
    cohort.ended()
    for n in range(2, 9):
        cohort.token(0, n, 0.1 * n)
        cohort.token(1, n, 0.1 * n)
    assert not cohort.complete


@given(
    st.integers(1, 6),
    st.integers(3, 20),
    st.floats(0.001, 1.0),
    st.lists(st.integers(0, 30), min_size=6, max_size=6),
    st.integers(1, 4),
)
def test_the_interval_is_that_of_the_whole_batch_however_its_streams_begin(
    requests: int, wanted: int, interval: float, begins: list[int], lump: int
) -> None:
    """Streams come one by one, steps are faster while some are missing, reads bring several."""
    cohort = Cohort(requests=requests, prompt_tokens=10, wanted=wanted)
    begins = begins[:requests]
    now, tokens, pending = 0.0, [0] * requests, [0] * requests
    for step in range(max(begins) + lump * (wanted + 3)):
        whole = all(each > 0 for each in tokens)
        now += interval if whole else interval / 10
        for stream in range(requests):
            if step >= begins[stream]:
                tokens[stream] += 1
                pending[stream] += 1
                if tokens[stream] == 1 or pending[stream] == lump:
                    cohort.token(stream, tokens[stream], now)
                    pending[stream] = 0
    assert cohort.complete
    assert cohort.sample().interval_s == pytest.approx(interval)


def test_the_first_token_of_a_stream_whose_first_read_brought_several() -> None:
    for marks, expected in (
        ([(3, 1.0), (5, 1.4)], [0.6, 0.2]),
        ([(1, 1.0), (9, 1.8)], [1.0, 0.1]),
        ([(9, 1.8)], [1.8, 0.0]),
    ):
        assert list(first_and_interval(marks)) == pytest.approx(expected)
