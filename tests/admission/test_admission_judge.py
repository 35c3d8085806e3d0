"""Admission: examples, and what must hold of any load."""

from __future__ import annotations

import math
from math import inf
from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from narwhal.admission import Admitted, Cause, DecodePath, PrefillPath, Refused, Targets, judge

TARGETS = Targets(ttft_s=2.0, tpot_s=0.1)


def prefill(iid: str = "p0", ahead: float = 0.0, own: float = 0.5, **more: Any) -> PrefillPath:
    return PrefillPath(iid=iid, ahead_s=ahead, own_s=own, **more)


def decode(iid: str = "d0", interval: float = 0.05, **more: Any) -> DecodePath:
    given_ = {"alone_s": 0.02, "kv_tokens": 500, "own_tokens": 100} | more
    return DecodePath(iid=iid, interval_s=interval, **given_)


def whole(decode_: DecodePath, **more: Any) -> PrefillPath:
    """Both phases on one engine."""
    measured = more.pop("measured", True)
    return replace(prefill(**more), decode=decode_, measured=measured)


@pytest.mark.parametrize(
    ("prefills", "decodes", "cause", "retry_after"),
    [
        ([prefill(ahead=1.6)], [decode()], Cause.BACKLOG, 1),
        ([prefill(ahead=7.1)], [decode()], Cause.BACKLOG, 6),
        ([prefill(penalty_s=30.0)], [decode()], Cause.BACKLOG, 29),
        ([prefill(own=2.1)], [decode()], Cause.PROMPT, None),
        ([prefill(own=1.9, after_s=0.2)], [decode()], Cause.PROMPT, None),
        ([prefill()], [decode(interval=0.11)], Cause.DECODE, 1),
        ([prefill()], [decode(kv_tokens=501, capacity=500)], Cause.DECODE, 1),
        ([prefill()], [decode(own_tokens=501, capacity=500)], Cause.LENGTH, None),
        ([prefill()], [decode(alone_s=0.11)], Cause.LENGTH, None),
        ([], [decode()], Cause.NO_ENGINE, 1),
        ([whole(decode(), own=2.1)], [], Cause.PROMPT, None),
        ([whole(decode(own_tokens=501, capacity=500))], [], Cause.LENGTH, None),
        ([whole(decode(alone_s=0.11))], [], Cause.LENGTH, None),
        ([whole(decode(), measured=False, own=2.1)], [], Cause.PROMPT, None),
        ([whole(decode(), measured=False)], [], Cause.NO_ENGINE, 1),
        ([whole(decode(interval=0.11))], [], Cause.DECODE, 1),
        ([whole(decode(), ahead=7.1)], [], Cause.BACKLOG, 6),
        ([whole(decode(alone_s=0.11)), prefill("p1", own=2.1)], [], Cause.LENGTH, None),
    ],
)
def test_refusals(
    prefills: list[PrefillPath], decodes: list[DecodePath], cause: Cause, retry_after: int | None
) -> None:
    verdict = judge(prefills, decodes, waited_s=0.0, targets=TARGETS)
    assert isinstance(verdict, Refused)
    assert (verdict.cause, verdict.retry_after) == (cause, retry_after)


def test_the_cheapest_prefill_counts_and_any_decode_that_does() -> None:
    prefills = [prefill("p0", ahead=5.0), prefill("p1", ahead=0.2), prefill("p2", ahead=0.3)]
    decodes = [decode("d0", interval=1.0), decode("d1")]
    verdict = judge(prefills, decodes, waited_s=0.1, targets=TARGETS)
    assert isinstance(verdict, Admitted)
    assert verdict.projected_s == pytest.approx(0.8)


def test_an_engine_that_runs_both_phases_has_to_do_for_both() -> None:
    cheap_but_slow = whole(decode("d0", interval=0.2), iid="d0", own=0.1)
    cheap_but_busy = whole(decode("d1"), iid="d1", own=0.1, measured=False)
    will_do = whole(decode("d2"), iid="d2", own=0.4)
    verdict = judge([cheap_but_slow, cheap_but_busy, will_do], [], waited_s=0.0, targets=TARGETS)
    assert verdict == Admitted(projected_s=0.4)


def test_who_comes_back_on_the_second_is_not_turned_away_by_rounding() -> None:
    first = judge([prefill(ahead=10.3, own=0.7)], [], waited_s=0.0, targets=TARGETS)
    assert isinstance(first, Refused)
    assert first.retry_after == 9
    assert TARGETS.budget_s < 10.3 - 9 + 0.7, "by rounding alone"
    again = judge([prefill(ahead=10.3 - 9, own=0.7)], [], waited_s=0.0, targets=TARGETS)
    assert isinstance(again, Admitted)


def test_a_wait_counts_and_so_does_a_margin() -> None:
    paths = [prefill(ahead=1.0)]
    assert isinstance(judge(paths, [], waited_s=0.5, targets=TARGETS), Admitted)
    refused = judge(paths, [], waited_s=0.6, targets=TARGETS)
    assert isinstance(refused, Refused)
    assert refused.projected_s == pytest.approx(2.1)
    wider = attrs.evolve(TARGETS, margin=0.1)
    assert isinstance(judge(paths, [], waited_s=0.6, targets=wider), Admitted)


# Most of what is drawn is near the targets: what is far from them tells little.
SECONDS = st.floats(0, 1) | st.floats(0, 1) | st.floats(0, 3) | st.floats(0, 20)
OFTEN = settings(max_examples=500)
PREFILLS = st.lists(
    st.builds(
        PrefillPath,
        iid=st.sampled_from(["p0", "p1", "p2", "p3"]),
        ahead_s=SECONDS,
        own_s=st.floats(0, 1) | SECONDS,
        penalty_s=st.sampled_from([0.0, 0.0, 1.5]),
        after_s=st.sampled_from([0.0, 0.1]),
    ),
    max_size=4,
    unique_by=lambda path: path.iid,
)
DECODES = st.lists(
    st.builds(
        lambda iid, alone, more, own, others, room: DecodePath(
            iid=iid,
            interval_s=alone + more,
            alone_s=alone,
            kv_tokens=own + others,
            own_tokens=own,
            capacity=room,
        ),
        iid=st.sampled_from(["d0", "d1", "d2"]),
        alone=st.floats(0, 0.05) | st.floats(0, 0.2),
        more=st.floats(0, 0.05) | st.floats(0, 0.2),
        own=st.integers(1, 1000),
        others=st.integers(0, 1000),
        room=st.just(inf) | st.integers(1000, 2000) | st.integers(1, 2000),
    ),
    max_size=3,
    unique_by=lambda path: path.iid,
)


WHOLES = st.lists(
    st.builds(
        lambda path, decode_, measured: replace(path, decode=decode_, measured=measured),
        path=PREFILLS.filter(bool).map(lambda paths: paths[0]),
        decode_=DECODES.filter(bool).map(lambda paths: paths[0]),
        measured=st.booleans(),
    ),
    max_size=4,
    unique_by=lambda path: path.iid,
)
Paths = tuple[list[PrefillPath], list[DecodePath]]
PATHS = st.tuples(PREFILLS, DECODES) | st.tuples(WHOLES, st.builds(list[DecodePath]))
"""Two engines for a request, or one that runs both phases."""


@OFTEN
@given(paths=PATHS, waited=SECONDS, more=st.lists(SECONDS, min_size=4))
def test_more_backlog_never_admits_what_less_refuses(
    paths: Paths, waited: float, more: list[float]
) -> None:
    prefills, decodes = paths
    less = judge(prefills, decodes, waited_s=waited, targets=TARGETS)
    busier = [
        replace(path, ahead_s=path.ahead_s + extra)
        for path, extra in zip(prefills, more, strict=False)
    ]
    if isinstance(less, Refused):
        assert isinstance(judge(busier, decodes, waited_s=waited, targets=TARGETS), Refused)


@OFTEN
@given(paths=PATHS, waited=SECONDS, longer=st.floats(0, 5), more=st.integers(0, 500))
def test_a_longer_prompt_is_never_projected_earlier_nor_let_in_where_a_shorter_is_not(
    paths: Paths, waited: float, longer: float, more: int
) -> None:
    prefills, decodes = paths

    def grown(path: DecodePath) -> DecodePath:
        kv, own = path.kv_tokens + more, path.own_tokens + more
        return replace(path, kv_tokens=kv, own_tokens=own)

    long = [
        replace(path, own_s=path.own_s + longer, decode=path.decode and grown(path.decode))
        for path in prefills
    ]
    short_ = judge(prefills, decodes, waited_s=waited, targets=TARGETS)
    long_ = judge(long, [grown(path) for path in decodes], waited_s=waited, targets=TARGETS)
    if isinstance(long_, Admitted):
        assert isinstance(short_, Admitted)
    if type(short_) is type(long_):
        assert (short_.projected_s is None) == (long_.projected_s is None)
        assert (short_.projected_s or 0.0) <= (long_.projected_s or 0.0)


@OFTEN
@given(prefills=PREFILLS | WHOLES, waited=SECONDS)
def test_who_comes_back_when_told_to_is_let_in_if_nobody_else_came(
    prefills: list[PrefillPath], waited: float
) -> None:
    verdict = judge(prefills, [], waited_s=waited, targets=TARGETS)
    if not isinstance(verdict, Refused) or verdict.cause is not Cause.BACKLOG:
        return
    assert verdict.retry_after is not None
    if any(path.penalty_s for path in prefills):
        return  # a penalty does not shrink as time goes by
    later = [
        replace(path, ahead_s=max(0.0, path.ahead_s - verdict.retry_after)) for path in prefills
    ]
    again = judge(later, [], waited_s=0.0, targets=TARGETS)
    # How long other decodes go on is not known, so that is no part of the promise.
    assert isinstance(again, Admitted) or again.cause is Cause.DECODE


@OFTEN
@given(paths=PATHS, waited=SECONDS)
def test_what_can_never_fit_is_never_told_to_come_back(paths: Paths, waited: float) -> None:
    prefills, decodes = paths

    def idle(path: DecodePath) -> DecodePath:
        return replace(path, interval_s=path.alone_s, kv_tokens=path.own_tokens)

    empty = [
        replace(
            path,
            ahead_s=0.0,
            penalty_s=0.0,
            measured=True,
            decode=path.decode and idle(path.decode),
        )
        for path in prefills
    ]
    verdict = judge(prefills, decodes, waited_s=waited, targets=TARGETS)
    best = judge(empty, [idle(path) for path in decodes], waited_s=0.0, targets=TARGETS)
    if isinstance(best, Refused) and (prefills or best.cause is not Cause.NO_ENGINE):
        assert isinstance(verdict, Refused)
        assert verdict.retry_after is None
    elif isinstance(verdict, Refused):
        assert verdict.retry_after is not None
        assert verdict.retry_after >= 1


@OFTEN
@given(paths=PATHS, waited=SECONDS, seed=st.randoms())
def test_the_order_of_engines_makes_no_difference(paths: Paths, waited: float, seed: Any) -> None:
    prefills, decodes = paths
    verdict = judge(prefills, decodes, waited_s=waited, targets=TARGETS)
    seed.shuffle(prefills)
    seed.shuffle(decodes)
    assert judge(prefills, decodes, waited_s=waited, targets=TARGETS) == verdict


def test_a_retry_after_is_whole_and_within_reason() -> None:
    far = judge([prefill(ahead=1e9)], [], waited_s=0.0, targets=TARGETS)
    assert isinstance(far, Refused)
    assert far.retry_after == 3600
    assert math.isfinite(far.projected_s or 0.0)
