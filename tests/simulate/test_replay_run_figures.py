"""What a replay says of requests is what arithmetic says of them."""

from __future__ import annotations

import attrs
import pytest
from replay_fleets import fleet, profile, replay, steady

from narwhal.model import Terminal
from narwhal.simulate.replay.arrivals import Arrival
from narwhal.simulate.replay.batch import run_replays
from narwhal.simulate.replay.requests import cap_of
from narwhal.simulate.replay.run import run_replay


def test_a_request_alone_takes_prefill_handoff_and_steps() -> None:
    config = fleet()
    truth = {spec.iid: profile(handoff=0.02) for spec in config.engines}
    result = run_replay(replay(config, [Arrival(at=3.0, prompt=200, output=11)], truth=truth))
    (served,) = result.requests
    assert served.terminal is Terminal.COMPLETED
    # 200 tokens at a millisecond, the handoff, and the first step.
    assert served.first_token_s == pytest.approx(0.2 + 0.02 + 0.01)
    assert served.tpot_s == pytest.approx(0.01)
    assert served.attained
    assert result.virtual_s == pytest.approx(3.0 + 0.23 + 10 * 0.01)


@pytest.mark.parametrize("output", [1, 2, 8, 9, 10, 40])
def test_how_often_engines_write_changes_nothing_that_is_judged(output: int) -> None:
    arrivals = steady(4, every_s=0.05, output=output)
    singly, *others = [
        run_replay(replay(fleet(), arrivals, stream_every=every)).requests for every in (1, 8, 1000)
    ]
    for other in others:
        for field in ("first_token_s", "tpot_s", "attained"):
            expected = [getattr(served, field) for served in singly]
            assert [getattr(served, field) for served in other] == pytest.approx(expected)


def test_a_tiny_load_is_served_in_time_as_a_whole() -> None:
    result = run_replay(replay(fleet(2, 2), steady(50, every_s=1.0, output=20)))
    assert [served.attained for served in result.requests] == [True] * 50


def test_prompts_shorter_than_what_they_tell_engines_are_served() -> None:
    arrivals = [Arrival(at=n * 1.0, prompt=1 + n % 4, output=7) for n in range(8)]
    result = run_replay(replay(fleet(), arrivals))
    assert all(served.attained for served in result.requests)
    assert [served.tpot_s for served in result.requests] == pytest.approx([0.01] * 8)


def test_twice_the_load_that_a_prefill_engine_can_do_is_half_served() -> None:
    # A prompt takes 0.5 s, and two come in that time. The other engine always has something to
    # decode, so no request runs whole there.
    arrivals = steady(60, every_s=0.25, prompt=500, output=40)
    result = run_replay(replay(fleet(), arrivals, ttft_s=1.02))
    attained = [served for served in result.requests if served.attained]
    assert 28 <= len(attained) <= 34
    refused = [served for served in result.requests if not served.attained]
    assert {(served.terminal, served.code) for served in refused} == {
        (Terminal.REFUSED, "projected_ttft")
    }


def test_a_request_is_judged_by_the_target_it_is_to_be_judged_by() -> None:
    arrivals = [Arrival(at=0.0, prompt=700, output=5)]
    assert run_replay(replay(fleet(), arrivals)).requests[0].attained
    late = run_replay(replay(fleet(), arrivals, ttft_s=0.5)).requests[0]
    assert late.terminal is Terminal.COMPLETED
    assert not late.attained


def test_answers_slower_than_the_target_do_not_attain() -> None:
    config = fleet(serving={"admission": "open"})
    truth = {spec.iid: profile(step=0.06) for spec in config.engines}
    (served,) = run_replay(replay(config, steady(1, every_s=1.0), truth=truth)).requests
    assert served.terminal is Terminal.COMPLETED
    assert served.tpot_s == pytest.approx(0.06)
    assert not served.attained


def test_what_clients_ask_for() -> None:
    exact = Arrival(at=0.0, prompt=1, output=10)
    assert cap_of(exact, 1.0) == 10
    assert cap_of(exact, 2.5) == 25
    assert cap_of(attrs.evolve(exact, cap=64), 2.5) == 64
    assert cap_of(attrs.evolve(exact, cap=4), 1.0) == 10


def test_clients_that_allow_more_get_what_the_trace_says() -> None:
    (served,) = run_replay(replay(fleet(), steady(1, every_s=1.0, output=9), generosity=4)).requests
    assert served.tpot_s == pytest.approx(0.01)
    assert served.attained


def test_the_same_replay_gives_the_same_result_on_any_number_of_processes() -> None:
    arrivals = steady(40, every_s=0.1, prompt=180, output=12)
    replays = [replay(fleet(1, 2), arrivals, seed=seed) for seed in (1, 2)]
    here = [attrs.evolve(result, real_s=0.0) for result in run_replays(replays)]
    there = [attrs.evolve(result, real_s=0.0) for result in run_replays(replays, jobs=2)]
    assert here == there
    assert [result.seed for result in here] == [1, 2]


def test_it_tells_how_far_it_is() -> None:
    told: list[int] = []
    run_replay(replay(fleet(), steady(3, every_s=1.0), sample_s=0.9), progress=told.append)
    assert told == sorted(told)
    assert told[0] == 0
    assert told[-1] == 3


def test_no_arrivals_are_a_result_as_well() -> None:
    result = run_replay(replay(fleet(), []))
    assert result.requests == ()
    assert result.samples[0].at == 0.0
