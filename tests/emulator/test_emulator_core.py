from __future__ import annotations

import statistics
from itertools import pairwise
from random import Random
from typing import TYPE_CHECKING

import pytest
from emulator_kit import settings
from hypothesis import given
from hypothesis import strategies as st

from narwhal.emulator import (
    EngineCore,
    Leg,
    PrefillFinished,
    Sequence,
    SequenceFinished,
    State,
    TimeModel,
    TokensProduced,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

LINEAR = TimeModel(prefill=(0.0, 1.0, 0.0), decode=(1.0, 0.0, 0.0))


def sequence(
    leg: Leg = Leg.WHOLE, prompt: int = 10, output: int = 3, name: str = "r", digest: int = 1
) -> Sequence:
    return Sequence(
        request_id=name, leg=leg, prompt_tokens=prompt, output_tokens=output, digest=digest
    )


def drain(core: EngineCore) -> list[object]:
    """Advance from event to event until nothing is left to happen."""
    effects: list[object] = []
    while (at := core.next_event_at()) is not None:
        effects += core.advance(at)
    return effects


def times(effects: Iterable[object], kind: type) -> list[float]:
    return [effect.at for effect in effects if isinstance(effect, kind)]  # type: ignore[attr-defined]  # every effect has it


def test_a_prefill_takes_what_the_model_says() -> None:
    time = TimeModel(prefill=(0.5, 2.0, 7.0), decode=(0.0, 0.0, 0.0))
    core = EngineCore(settings(time=time))
    assert core.submit(sequence(Leg.PREFILL, prompt=4, output=1), 100.0)
    assert core.next_event_at() == 100.0 + 0.5 * 16 + 2.0 * 4 + 7.0


CHUNKED = TimeModel(prefill=(0.0, 0.5, 0.0), decode=(1.0, 0.0, 0.0), chunk_tokens=4)


def test_a_chunked_prefill_waits_for_the_steps_that_it_shares() -> None:
    core = EngineCore(settings(time=CHUNKED))
    core.submit(sequence(Leg.DECODE, prompt=8, output=1000), 0.0)
    core.submit(sequence(Leg.PREFILL, prompt=16, output=1), 0.0)
    ends = [e.at for e in core.advance(100.0) if isinstance(e, PrefillFinished)]
    # 16 tokens at half a second, and four chunks that wait a second each.
    assert ends == [16 * 0.5 + 4 * 1.0]


def test_a_step_beside_a_prefill_carries_a_chunk_of_it() -> None:
    core = EngineCore(settings(time=CHUNKED))
    core.submit(sequence(Leg.PREFILL, prompt=16, output=1), 0.0)
    core.submit(sequence(Leg.DECODE, prompt=8, output=4), 0.0)
    steps = [
        e.at
        for e in drain(core)
        if isinstance(e, TokensProduced) and e.sequences[0].leg is Leg.DECODE
    ]
    # Alone when it began, the prefill ends after 8 s: steps of 1 s and 4 tokens, then without.
    assert steps == [3.0, 6.0, 9.0, 10.0]


def test_without_chunks_neither_phase_notices_the_other() -> None:
    core = EngineCore(settings(time=LINEAR))
    core.submit(sequence(Leg.DECODE, prompt=8, output=4), 0.0)
    core.submit(sequence(Leg.PREFILL, prompt=16, output=1), 0.0)
    assert times(drain(core), TokensProduced) == [1.0, 2.0, 3.0, 4.0, 16.0]


def test_a_faster_model_has_the_same_chunks() -> None:
    assert CHUNKED.faster(2.0).chunk_tokens == 4
    assert CHUNKED.faster(2.0).chunk_seconds() == 1.0


def test_a_step_takes_what_the_model_says_for_requests_and_resident_tokens() -> None:
    time = TimeModel(prefill=(0.0, 0.0, 0.0), decode=(1.0, 0.25, 0.0625))
    core = EngineCore(settings(time=time))
    core.submit(sequence(Leg.DECODE, prompt=8, output=2), 0.0)
    first = 1.0 + 0.25 + 0.0625 * 8
    assert core.next_event_at() == first
    core.submit(sequence(Leg.DECODE, prompt=16, output=1), 0.5)  # joins the next step
    assert core.next_event_at() == first
    (produced,) = core.advance(first)
    assert isinstance(produced, TokensProduced)
    assert len(produced.sequences) == 1
    assert core.next_event_at() == first + 1.0 + 0.25 * 2 + 0.0625 * (8 + 1 + 16)


def test_noise_is_around_the_model_drawn_from_what_is_given_and_bounded() -> None:
    time = TimeModel(prefill=(0.0, 1.0, 0.0), decode=(1.0, 0.0, 0.0))

    def lengths(seed: int, noise: float) -> list[float]:
        core = EngineCore(settings(time=time, noise=noise), random=Random(seed))
        found, now = [], 0.0
        for _ in range(400):
            core.submit(sequence(Leg.PREFILL, prompt=10, output=1), now)
            ends = core.next_event_at()
            assert ends is not None
            found.append(ends - now)
            now = ends
            core.advance(now)
            core.notify("r", now)
        return found

    noisy = lengths(1, 0.1)
    assert noisy == lengths(1, 0.1) != lengths(2, 0.1)
    assert statistics.fmean(noisy) == pytest.approx(10.0, rel=0.02)
    assert statistics.stdev(noisy) == pytest.approx(1.0, rel=0.15)
    assert 7.0 <= min(noisy) < max(noisy) <= 13.0
    assert lengths(1, 0.0) == pytest.approx([10.0] * 400)
    without = EngineCore(settings(time=time, noise=0.1))
    without.submit(sequence(Leg.DECODE, prompt=1, output=2), 0.0)
    assert without.next_event_at() == 1.0


def test_prefills_run_one_at_a_time_in_the_order_of_submission() -> None:
    core = EngineCore(settings(time=LINEAR))
    legs = [sequence(Leg.PREFILL, prompt=n, output=1, name=f"r{n}") for n in (5, 3, 4)]
    for place, leg in enumerate(legs):
        core.submit(leg, float(place))
    effects = drain(core)
    done = [(e.at, e.sequence) for e in effects if isinstance(e, PrefillFinished)]
    assert done == [(5.0, legs[0]), (8.0, legs[1]), (12.0, legs[2])]


def test_a_whole_request_gets_its_first_token_from_the_prefill() -> None:
    core = EngineCore(settings(time=LINEAR))
    core.submit(sequence(prompt=10, output=3), 0.0)
    assert times(drain(core), TokensProduced) == [10.0, 11.0, 12.0]


def test_a_decode_leg_gets_its_first_token_from_its_first_step() -> None:
    core = EngineCore(settings(time=LINEAR))
    core.submit(sequence(Leg.DECODE, output=2), 5.0)
    assert times(drain(core), TokensProduced) == [6.0, 7.0]


def test_decodes_do_not_wait_for_prefills() -> None:
    core = EngineCore(settings(time=LINEAR))
    for name in ("a", "b"):
        core.submit(sequence(Leg.PREFILL, prompt=100, output=1, name=name), 0.0)
    core.submit(sequence(Leg.DECODE, output=1), 0.0)
    assert isinstance(core.advance(1.0)[0], TokensProduced)


def test_seats_bound_what_runs_and_nobody_overtakes() -> None:
    core = EngineCore(settings(time=LINEAR, max_num_seqs=2))
    decodes = [sequence(Leg.DECODE, output=2) for _ in range(4)]
    for leg in decodes:
        core.submit(leg, 0.0)
    assert (core.running, core.waiting) == (2, 2)
    finished = [e for e in drain(core) if isinstance(e, SequenceFinished)]
    assert [(e.at, e.sequence) for e in finished] == [
        (2.0, decodes[0]),
        (3.0, decodes[1]),  # its first step begins when that of the first has ended
        (4.0, decodes[2]),
        (5.0, decodes[3]),
    ]


def test_a_prefill_that_waits_for_a_seat_is_not_overtaken_by_later_decodes() -> None:
    core = EngineCore(settings(time=LINEAR, max_num_seqs=1))
    core.submit(sequence(Leg.DECODE, output=2), 0.0)
    prefill = sequence(Leg.PREFILL, prompt=5, output=1)
    core.submit(prefill, 0.0)
    core.submit(sequence(Leg.DECODE, output=1), 0.0)
    core.advance(2.0)
    assert prefill.state is State.PREFILLING


def test_kv_blocks_bound_what_runs_and_are_pinned_until_the_handle_goes() -> None:
    core = EngineCore(settings(time=LINEAR, kv_capacity_tokens=64, max_model_len=64, lease_s=30.0))
    core.submit(sequence(Leg.PREFILL, prompt=32, output=1, name="first"), 0.0)
    core.submit(sequence(Leg.PREFILL, prompt=32, output=1, name="second"), 0.0)
    core.advance(32.0)
    assert core.pool.usage == 0.5
    assert (core.running, core.waiting) == (0, 1)  # 2 blocks pinned, 3 needed, 4 in all
    assert core.notify("first", 40.0)
    assert core.running == 1
    assert times(drain(core), PrefillFinished) == [72.0]


def test_a_busy_engine_refuses_and_counts_waiting_and_running() -> None:
    core = EngineCore(settings(time=LINEAR, max_num_queued_reqs=2))
    assert core.submit(sequence(Leg.PREFILL, output=1, name="a"), 0.0)
    assert core.submit(sequence(Leg.PREFILL, output=1, name="b"), 0.0)
    assert not core.submit(sequence(Leg.PREFILL, output=1, name="c"), 0.0)
    assert core.submit(sequence(Leg.PREFILL, output=1, name="d"), 10.0)


def test_a_handle_expires_with_its_lease_and_a_late_notification_is_counted() -> None:
    core = EngineCore(settings(time=LINEAR, lease_s=30.0))
    leg = sequence(Leg.PREFILL, prompt=10, output=1, name="r")
    core.submit(leg, 0.0)
    core.advance(39.9)
    assert leg.handle is not None
    assert (len(core.handles), core.expired) == (1, 0)
    assert core.next_event_at() == 40.0
    core.advance(40.0)
    assert (len(core.handles), core.expired, core.pool.used) == (0, 1, 0)
    assert not core.notify("r", 41.0)
    assert core.late_notifications == 1
    assert core.uses["r"] == 1


def test_a_step_that_lost_all_its_sequences_is_over() -> None:
    core = EngineCore(settings(time=LINEAR))
    left = sequence(Leg.DECODE)
    core.submit(left, 0.0)
    core.abort(left, 0.5)
    core.submit(sequence(Leg.DECODE), 0.5)
    assert core.next_event_at() == 1.5


def test_uses_of_handles_are_remembered_for_a_bounded_number() -> None:
    core = EngineCore(settings(time=TimeModel(prefill=(0, 0, 0))))
    for number in range(5000):
        core.submit(sequence(Leg.PREFILL, output=1, name=f"r{number}"), 0.0)
    core.advance(0.0)
    assert len(core.handles) == 5000
    assert len(core.uses) == 4096
    assert next(iter(core.uses)) == "r904"


def test_a_late_caller_changes_no_event() -> None:
    prompt, late = EngineCore(settings(time=LINEAR)), EngineCore(settings(time=LINEAR))
    for core in (prompt, late):
        for name in "abc":
            core.submit(sequence(prompt=4, output=3, name=name), 0.0)
    assert times(drain(prompt), TokensProduced) == times(late.advance(1000.0), TokensProduced)


def test_time_does_not_run_backwards() -> None:
    core = EngineCore(settings())
    core.advance(5.0)
    with pytest.raises(ValueError, match="backwards"):
        core.advance(4.0)


def test_a_sequence_is_submitted_once() -> None:
    core = EngineCore(settings())
    leg = sequence()
    core.submit(leg, 0.0)
    with pytest.raises(ValueError, match="once"):
        core.submit(leg, 0.0)


# Properties

LEGS = st.sampled_from(list(Leg))
JOBS = st.lists(
    st.tuples(LEGS, st.integers(1, 40), st.integers(1, 5), st.sampled_from([0.0, 0.5, 3.0])),
    min_size=1,
    max_size=12,
)


@given(JOBS)
def test_prefills_conserve_work(jobs: list[tuple[Leg, int, int, float]]) -> None:
    """The prefill unit never idles while a prompt waits: busy periods are sums of service."""
    core = EngineCore(settings(time=LINEAR))
    effects: list[object] = []
    free_at = now = 0.0
    expected = []
    for place, (leg, prompt, output, gap) in enumerate(jobs):
        now += gap
        effects += core.advance(now)
        core.submit(sequence(leg, prompt, output, name=f"r{place}"), now)
        if leg is not Leg.DECODE:
            free_at = max(free_at, now) + prompt
            expected.append(free_at)
    effects += drain(core)
    assert times(effects, PrefillFinished) == expected


@given(JOBS, st.integers(1, 4))
def test_everything_finishes_with_all_its_tokens(
    jobs: list[tuple[Leg, int, int, float]], seats: int
) -> None:
    core = EngineCore(
        settings(time=LINEAR, max_num_seqs=seats, kv_capacity_tokens=64, max_model_len=64)
    )
    sequences = [
        sequence(leg, prompt, output, name=f"r{place}", digest=place)
        for place, (leg, prompt, output, _) in enumerate(jobs)
    ]
    for each in sequences:
        core.submit(each, 0.0)
    effects = drain(core)
    assert [each.produced for each in sequences] == [output for _, _, output, _ in jobs]
    at = [effect.at for effect in effects]  # type: ignore[attr-defined]  # every effect has it
    assert all(one <= two for one, two in pairwise(at))
    tokens = [s for e in effects if isinstance(e, TokensProduced) for s in e.sequences]
    assert len(tokens) == sum(each.produced for each in sequences)
    assert core.idle


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("submit"), LEGS, st.integers(1, 40), st.integers(1, 5)),
            st.tuples(st.just("abort"), st.integers(0, 20)),
            st.tuples(st.just("notify"), st.integers(0, 20)),
            st.tuples(st.just("wait"), st.sampled_from([0.0, 0.5, 1.0, 7.0, 31.0])),
        ),
        max_size=40,
    ),
    st.integers(1, 3),
    st.sampled_from([None, 64, 128]),
)
def test_whatever_happens_the_engine_comes_back_to_zero(
    steps: list[tuple[object, ...]], seats: int, capacity: int | None
) -> None:
    config = settings(
        time=LINEAR, max_num_seqs=seats, kv_capacity_tokens=capacity, max_model_len=64
    )
    core = EngineCore(config)
    known: list[Sequence] = []
    now = 0.0
    for step in steps:
        match step:
            case ("submit", Leg() as leg, int(prompt), int(output)):
                known.append(sequence(leg, prompt, output, name=f"r{len(known)}"))
                core.submit(known[-1], now)
            case ("abort", int(place)) if place < len(known):
                core.abort(known[place], now)
            case ("notify", int(place)):
                core.notify(f"r{place}", now)
            case ("wait", float(seconds)):
                now += seconds
                core.advance(now)
        assert core.running <= seats
        assert capacity is None or core.pool.used <= core.pool.capacity  # type: ignore[operator]  # it has one
        decoding = [s for s in known if s.state is State.DECODING]
        assert core.resident_tokens == sum(s.prompt_tokens + s.produced for s in decoding)
    for each in known:
        core.abort(each, now)
    assert (core.running, core.waiting, core.resident_tokens) == (0, 0, 0)
    drain(core)  # leases run out
    assert core.idle
    assert core.pool.used == 0


@given(
    st.lists(
        st.tuples(
            st.sampled_from(list(Leg)), st.integers(1, 60), st.integers(1, 40), st.floats(0, 9)
        ),
        min_size=1,
        max_size=12,
    ),
    st.integers(2, 16),
)
def test_who_looks_only_when_it_matters_misses_nothing_that_matters(
    asked: list[tuple[Leg, int, int, float]], every: int
) -> None:
    time = TimeModel(prefill=(0.0, 0.01, 0.1), decode=(0.05, 0.01, 0.001), chunk_tokens=8)

    def seen(*, quiet: bool) -> list[tuple[float, float, str]]:
        """What matters: when it happened, when it was noticed, what it was."""
        core = EngineCore(settings(time=time, max_num_seqs=4))
        came = sorted(asked, key=lambda each: each[3])
        found: list[tuple[float, float, str]] = []
        while True:
            at = core.quiet_until(every) if quiet else core.next_event_at()
            if came and (at is None or came[0][3] <= at):
                leg, prompt, output, at = came.pop(0)
                core.submit(sequence(leg, prompt, output, name=str(len(came))), at)
            elif at is None:
                return found
            for effect in core.advance(at):
                if isinstance(effect, SequenceFinished):
                    found.append((effect.at, at, f"{effect.sequence.request_id} ends"))
                elif isinstance(effect, TokensProduced) and effect.step % every == 0:
                    names = [each.request_id for each in effect.sequences]
                    found.append((effect.at, at, f"step {effect.step} of {names}"))

    often, seldom = seen(quiet=False), seen(quiet=True)
    assert [what for _, _, what in seldom] == [what for _, _, what in often]
    for (happened, noticed, _), (expected, _, _) in zip(seldom, often, strict=True):
        assert happened == expected
        assert noticed == pytest.approx(happened)
