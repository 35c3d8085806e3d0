"""Failures in a row, and what they ask for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from narwhal.fleet import REMEDIES, Remedy, Streaks
from narwhal.model import FailureClass, Phase

F = FailureClass
LEGS = st.sampled_from([Phase.TOKENIZE, Phase.PREFILL, Phase.DECODE])


def streaks(eject_after: int = 3) -> Streaks:
    return Streaks(["a", "b"], eject_after=eject_after)


@pytest.mark.parametrize(
    ("failure", "remedy"),
    [
        (F.CONNECTION, Remedy.EJECT),
        (F.LIVENESS, Remedy.EJECT),
        (F.TIMEOUT, Remedy.PROBE),
        (F.OVERLOAD, Remedy.PROBE),
        (F.INFERENCE_STATUS, Remedy.HOLD),
        (F.KV_HANDOFF, Remedy.HOLD),
        (F.STREAM, Remedy.HOLD),
        (F.NEUTRAL, None),
        (F.LOCAL, None),
    ],
)
def test_so_many_in_a_row_ask_for_their_remedy_once(failure: F, remedy: Remedy | None) -> None:
    own = streaks()
    said = [own.failed("a", Phase.DECODE, failure) for _ in range(6)]
    assert said == [None, None, remedy] * 2
    assert own.counts("b") == {}


def test_every_class_has_a_remedy_or_says_nothing() -> None:
    assert set(F) - set(REMEDIES) == {F.NEUTRAL, F.LOCAL}


@pytest.mark.parametrize("nothing", [F.NEUTRAL, F.LOCAL])
def test_what_says_nothing_neither_lengthens_nor_ends_a_streak(nothing: F) -> None:
    own = streaks()
    for _ in range(2):
        assert own.failed("a", Phase.DECODE, F.STREAM) is None
        assert own.failed("a", Phase.DECODE, nothing) is None
    assert own.failed("a", Phase.DECODE, F.STREAM) is Remedy.HOLD


def test_a_success_ends_the_streaks_of_its_kind_of_leg_and_of_connections() -> None:
    own = streaks(eject_after=2)
    own.failed("a", Phase.DECODE, F.STREAM)
    own.failed("a", Phase.PREFILL, F.TIMEOUT)
    own.failed("a", Phase.PREFILL, F.CONNECTION)
    own.succeeded("a", Phase.PREFILL)
    assert own.counts("a") == {F.STREAM: 1}
    assert own.failed("a", Phase.PREFILL, F.TIMEOUT) is None
    assert own.failed("a", Phase.DECODE, F.STREAM) is Remedy.HOLD


def test_classes_and_kinds_of_legs_are_counted_apart_but_connections_are_one() -> None:
    own = streaks(eject_after=2)
    for phase in (Phase.PREFILL, Phase.DECODE):
        assert own.failed("a", phase, F.TIMEOUT) is None
        assert own.failed("a", phase, F.STREAM) is None
    assert own.failed("a", Phase.PREFILL, F.CONNECTION) is None
    assert own.failed("a", Phase.DECODE, F.CONNECTION) is Remedy.EJECT


def test_a_reset_forgets_everything() -> None:
    own = streaks(eject_after=2)
    for failure in REMEDIES:
        own.failed("a", Phase.DECODE, failure)
    own.reset("a")
    assert own.counts("a") == {}


@given(
    st.integers(1, 5),
    st.lists(st.tuples(LEGS, st.sampled_from(list(F)) | st.none()), max_size=60),
)
def test_a_remedy_takes_exactly_so_many_failures_without_a_success_in_between(
    eject_after: int, legs: list[tuple[Phase, F | None]]
) -> None:
    own = streaks(eject_after)
    history: list[tuple[Phase, F | None]] = []
    for phase, failure in legs:
        history.append((phase, failure))
        if failure is None:
            own.succeeded("a", phase)
            continue
        remedy = own.failed("a", phase, failure)
        count = 0
        everywhere = failure in (F.CONNECTION, F.LIVENESS)
        for other, what in reversed(history):
            if what is None and (everywhere or other is phase):
                break
            count += what is failure and (everywhere or other is phase)
        expected = failure in REMEDIES and count % eject_after == 0
        assert (remedy is not None) == expected
