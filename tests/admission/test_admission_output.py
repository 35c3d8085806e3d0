"""Expected output lengths."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from narwhal.admission import OutputHistory
from narwhal.admission.output import UNCAPPED_TOKENS

CAPS = st.none() | st.integers(1, 1 << 30)


def test_a_cap_is_believed_until_answers_say_otherwise() -> None:
    history = OutputHistory()
    assert history.expected(1000) == 1000
    for _ in range(200):
        history.delivered(1000, 100)
    assert 100 <= history.expected(1000) < 110
    assert history.expected(900) < 100, "the same size"
    assert history.expected(100) == 100, "another size"


def test_without_a_cap_the_mean_is_expected() -> None:
    history = OutputHistory()
    assert history.expected(None) == UNCAPPED_TOKENS
    for _ in range(200):
        history.delivered(None, 40)
    assert 40 <= history.expected(None) <= 41


@given(st.lists(st.tuples(CAPS, st.integers(0, 1 << 40)), max_size=50), CAPS)
def test_an_expectation_is_within_its_cap(
    delivered: list[tuple[int | None, int]], cap: int | None
) -> None:
    history = OutputHistory()
    for allowed, tokens in delivered:
        history.delivered(allowed, tokens)
    assert 1 <= history.expected(cap) <= (cap or 1 << 20)
