"""Admission: examples, and what must hold of any load."""

from __future__ import annotations

import math
from math import inf
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from narwhal.admission import Admitted, Cause, DecodePath, PrefillPath, Refused, Targets, judge

TARGETS = Targets(ttft_s=2.0, tpot_s=0.1)


def prefill(iid: str = "p0", ahead: float = 0.0, own: float = 0.5, **more: float) -> PrefillPath:
    return PrefillPath(iid=iid, ahead_s=ahead, own_s=own, **more)


def decode(iid: str = "d0", interval: float = 0.05, **more: Any) -> DecodePath:
    given_ = {"alone_s": 0.02, "kv_tokens": 500, "own_tokens": 100} | more
    return DecodePath(iid=iid, interval_s=interval, **given_)


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
    assert (verdict.iid, verdict.runner_up) == ("p1", "p2")
    assert verdict.projected_s == pytest.approx(0.8)


def test_a_wait_counts_and_so_does_a_margin() -> None:
    paths = [prefill(ahead=1.0)]
    assert isinstance(judge(paths, [], waited_s=0.5, targets=TARGETS), Admitted)
    refused = judge(paths, [], waited_s=0.6, targets=TARGETS)
    assert isinstance(refused, Refused)
    assert refused.projected_s == pytest.approx(2.1)
    wider = attrs.evolve(TARGETS, margin=0.1)
    assert isinstance(judge(paths, [], waited_s=0.6, targets=wider), Admitted)


SECONDS = st.floats(0, 20)
PREFILLS = st.lists(
    st.builds(
        PrefillPath,
        iid=st.sampled_from(["p0", "p1", "p2", "p3"]),
        ahead_s=SECONDS,
        own_s=SECONDS,
        penalty_s=st.sampled_from([0.0, 1.5]),
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
        alone=st.floats(0, 0.2),
        more=st.floats(0, 0.2),
        own=st.integers(1, 1000),
        others=st.integers(0, 1000),
        room=st.integers(1, 2000) | st.just(inf),
    ),
    max_size=3,
    unique_by=lambda path: path.iid,
)


@given(prefills=PREFILLS, decodes=DECODES, waited=SECONDS, more=st.lists(SECONDS, min_size=4))
def test_more_backlog_never_admits_what_less_refuses(
    prefills: list[PrefillPath], decodes: list[DecodePath], waited: float, more: list[float]
) -> None:
    less = judge(prefills, decodes, waited_s=waited, targets=TARGETS)
    busier = [
        attrs.evolve(path, ahead_s=path.ahead_s + extra)
        for path, extra in zip(prefills, more, strict=False)
    ]
    if isinstance(less, Refused):
        assert isinstance(judge(busier, decodes, waited_s=waited, targets=TARGETS), Refused)


@given(prefills=PREFILLS.filter(bool), waited=SECONDS, longer=st.floats(0, 5))
def test_a_longer_prompt_is_never_projected_earlier(
    prefills: list[PrefillPath], waited: float, longer: float
) -> None:
    long = [attrs.evolve(path, own_s=path.own_s + longer) for path in prefills]
    short_, long_ = (judge(each, [], waited_s=waited, targets=TARGETS) for each in (prefills, long))
    assert short_.projected_s is not None
    assert long_.projected_s is not None
    assert short_.projected_s <= long_.projected_s


@given(prefills=PREFILLS, waited=SECONDS)
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
        attrs.evolve(path, ahead_s=max(0.0, path.ahead_s - verdict.retry_after))
        for path in prefills
    ]
    again = judge(later, [], waited_s=0.0, targets=TARGETS)
    assert isinstance(again, Admitted) or min(p.alone_s for p in prefills) > TARGETS.budget_s


@given(prefills=PREFILLS, decodes=DECODES, waited=SECONDS)
def test_what_can_never_fit_is_never_told_to_come_back(
    prefills: list[PrefillPath], decodes: list[DecodePath], waited: float
) -> None:
    idle = [attrs.evolve(path, ahead_s=0.0, penalty_s=0.0) for path in prefills]
    empty = [attrs.evolve(path, interval_s=path.alone_s, kv_tokens=path.own_tokens)
             for path in decodes]  # fmt: skip
    verdict = judge(prefills, decodes, waited_s=waited, targets=TARGETS)
    if prefills and isinstance(judge(idle, empty, waited_s=0.0, targets=TARGETS), Refused):
        assert isinstance(verdict, Refused)
        assert verdict.retry_after is None
    elif isinstance(verdict, Refused):
        assert verdict.retry_after is not None
        assert verdict.retry_after >= 1


@given(prefills=PREFILLS, decodes=DECODES, waited=SECONDS, seed=st.randoms())
def test_the_order_of_engines_makes_no_difference(
    prefills: list[PrefillPath], decodes: list[DecodePath], waited: float, seed: Any
) -> None:
    verdict = judge(prefills, decodes, waited_s=waited, targets=TARGETS)
    seed.shuffle(prefills)
    seed.shuffle(decodes)
    assert judge(prefills, decodes, waited_s=waited, targets=TARGETS) == verdict


def test_a_retry_after_is_whole_and_within_reason() -> None:
    far = judge([prefill(ahead=1e9)], [], waited_s=0.0, targets=TARGETS)
    assert isinstance(far, Refused)
    assert far.retry_after == 3600
    assert math.isfinite(far.projected_s or 0.0)
