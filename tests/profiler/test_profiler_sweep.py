"""What is to be measured fits the engine, or it is said what does not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from narwhal.profiler import Room, Sweep, Wanted, plan_sweep
from narwhal.profiler.sweep import HANDOFF_TOKENS, LEAST_SPARE

LENS = st.lists(st.integers(1, 5000), min_size=1, max_size=8)
ROOMS = st.builds(
    Room,
    context_tokens=st.integers(1, 200_000),
    kv_tokens=st.none() | st.integers(1, 500_000),
)
WISHES = st.builds(
    Wanted,
    prefill_lens=st.none() | LENS,
    prefill_repeats=st.integers(3, 9),
    decode_input_lens=st.none() | LENS,
    decode_concurrency=st.none() | st.lists(st.integers(1, 300), min_size=1, max_size=6),
    decode_tokens=st.integers(3, 300),
    max_requests=st.none() | st.integers(1, 300),
)


def planned(wanted: Wanted, room: Room) -> Sweep:
    sweep = plan_sweep(wanted, room)
    assert isinstance(sweep, Sweep), sweep
    return sweep


@given(WISHES, ROOMS)
def test_nothing_is_planned_that_does_not_fit(wanted: Wanted, room: Room) -> None:
    sweep = plan_sweep(wanted, room)
    if isinstance(sweep, str):
        assert "--" in sweep  # it says what to change
        return
    memory = room.kv_tokens or room.context_tokens
    assert all(n + 1 <= min(room.context_tokens, memory) for n in sweep.prefill_lens)
    assert len(sweep.prefill_lens) >= 4
    assert all(n + HANDOFF_TOKENS <= room.context_tokens for n in sweep.handoff_lens)
    assert set(sweep.handoff_lens) <= set(sweep.prefill_lens)
    for requests, tokens in sweep.batches:
        each = tokens + sweep.decode_tokens + LEAST_SPARE
        assert each <= room.context_tokens
        assert room.kv_tokens is None or requests * each <= room.kv_tokens
        assert wanted.max_requests is None or requests <= wanted.max_requests
    assert len({requests for requests, _ in sweep.batches}) >= 2
    assert len({tokens for _, tokens in sweep.batches}) >= 2


@given(WISHES, ROOMS)
def test_what_was_asked_for_is_planned_or_said_to_be_left_out(wanted: Wanted, room: Room) -> None:
    sweep = plan_sweep(wanted, room)
    if isinstance(sweep, str) or wanted.decode_concurrency is None:
        return
    if wanted.prefill_lens is not None:
        assert set(sweep.prefill_lens) == set(wanted.prefill_lens)
    if wanted.decode_input_lens is not None:
        asked = {(r, n) for r in wanted.decode_concurrency for n in wanted.decode_input_lens}
        missing = asked - set(sweep.batches)
        assert bool(missing) == bool(sweep.left_out)


@given(st.integers(200, 200_000))
def test_an_engine_of_any_usual_size_needs_no_options(context: int) -> None:
    sweep = planned(Wanted(), Room(context_tokens=context, kv_tokens=None))
    assert sweep.prefill_lens[-1] == context - 1  # the context as a whole is measured
    assert sweep.left_out == ()


def test_batches_beyond_the_limit_are_left_out_and_named() -> None:
    room = Room(context_tokens=32_768, kv_tokens=None)
    sweep = planned(Wanted(max_requests=8), room)
    assert {requests for requests, _ in sweep.batches} == {1, 2, 8}
    assert sweep.left_out == (
        "32 requests: --limits allows 8",
        "64 requests: --limits allows 8",
    )


def test_batches_beyond_the_memory_are_left_out_and_named() -> None:
    room = Room(context_tokens=32_768, kv_tokens=100_000)
    sweep = planned(Wanted(), room)
    assert (8, 8192) in sweep.batches
    assert "32 requests of 8192 tokens: memory holds 100000 KV tokens" in sweep.left_out


@pytest.mark.parametrize(
    ("wanted", "context", "said"),
    [
        (Wanted(prefill_lens=(64, 128, 256, 2048)), 2048, "give --prefill-lens up to 2047"),
        (Wanted(prefill_lens=(64, 128, 256)), 2048, "give four or more"),
        (Wanted(), 128, "its context of 128 tokens is too short"),
        (Wanted(decode_input_lens=(64, 2000)), 2048, "give --decode-input-lens up to 1982"),
        (Wanted(decode_tokens=2046), 2048, "too short for --decode-tokens 2046"),
        (Wanted(decode_concurrency=(4,)), 2048, "choose smaller --decode-concurrency"),
        (Wanted(decode_input_lens=(64,)), 2048, "takes two numbers of requests"),
    ],
)
def test_what_does_not_fit_is_said_with_what_to_do(wanted: Wanted, context: int, said: str) -> None:
    sweep = plan_sweep(wanted, Room(context_tokens=context, kv_tokens=None))
    assert isinstance(sweep, str)
    assert said in sweep
