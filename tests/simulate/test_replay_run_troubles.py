"""Replays in which engines are in trouble, and what samples show of it."""

from __future__ import annotations

import pytest
from replay_fleets import fleet, profile, replay, steady

from narwhal.model import Terminal
from narwhal.simulate.incidents import Incident, IncidentKind
from narwhal.simulate.replay.replay import Replay
from narwhal.simulate.replay.run import run_replay

IN_SERVICE = 2


def incident(kind: IncidentKind, *, engine: str = "d0", seconds: float = 5.0) -> Incident:
    return Incident(at=10.0, engine=engine, kind=kind, seconds=seconds)


def test_samples_are_taken_at_regular_times() -> None:
    result = run_replay(replay(fleet(), steady(4, every_s=1.0), sample_s=0.5))
    assert [sample.at for sample in result.samples] == [n * 0.5 for n in range(7)]
    assert {(sample.prefill, sample.decode) for sample in result.samples} == {(1, 1)}
    assert result.samples[0].prefill_load is None, "nothing has been decided yet"
    assert result.moves == ()


def test_samples_count_who_waits() -> None:
    config = fleet(
        serving={
            "admission": "open",
            "max_connections": 1,
            "queue_capacity": 10,
            "queue_timeout_s": 60.0,
            "prefill_concurrency": 8,
            "decode_concurrency": 8,
            "handoff_timeout_s": 20.0,
        }
    )
    arrivals = steady(3, every_s=0.0, prompt=2000)
    result = run_replay(replay(config, arrivals, sample_s=1.0))
    assert [sample.queue for sample in result.samples] == [0, 2, 2, 1, 1, 0, 0]


def test_an_engine_that_restarts_is_out_of_service_for_a_while() -> None:
    serving = {"admission": "open", "max_attempts": 3, "handoff_timeout_s": 20.0}
    config = fleet(1, IN_SERVICE, serving=serving)
    arrivals = steady(80, every_s=0.5)
    result = run_replay(
        replay(config, arrivals, incidents=(incident(IncidentKind.RESTART, seconds=10.0),))
    )
    decoders = [sample.decode for sample in result.samples]
    assert decoders[0] == IN_SERVICE
    assert min(decoders[10:20]) == IN_SERVICE - 1
    completed = [served.terminal is Terminal.COMPLETED for served in result.requests]
    assert sum(completed) >= 78


def test_a_slow_engine_is_slow() -> None:
    config = fleet(serving={"admission": "open"})
    result = run_replay(
        replay(
            config,
            steady(30, every_s=1.0),
            incidents=(incident(IncidentKind.SLOW, engine="p0"),),
        )
    )
    slow = [place for place, served in enumerate(result.requests) if not served.attained]
    assert slow
    assert set(slow) <= set(range(10, 25))


@pytest.mark.parametrize("kind", [IncidentKind.BUSY, IncidentKind.HANG])
def test_an_engine_that_answers_no_leg_fails_some_and_is_well_again(kind: IncidentKind) -> None:
    config = fleet(serving={"admission": "open"})
    result = run_replay(replay(config, steady(60, every_s=1.0), incidents=(incident(kind),)))
    ends = [served.terminal for served in result.requests]
    assert set(ends[:10]) == {Terminal.COMPLETED}
    assert Terminal.FAILED in ends
    assert ends[-1] is Terminal.COMPLETED


def test_an_incident_is_of_an_engine_that_exists() -> None:
    wrong = incident(IncidentKind.DIE, engine="d7")
    with pytest.raises(ValueError, match="there is no engine d7; the fleet has p0, d0"):
        replay(fleet(), [], incidents=(wrong,))


def test_nothing_can_vanish() -> None:
    with pytest.raises(ValueError, match="choose another kind than `vanish`"):
        replay(fleet(), [], incidents=(incident(IncidentKind.VANISH),))


def test_every_engine_needs_a_profile() -> None:
    with pytest.raises(ValueError, match="truth: there is no profile for engine d0; add one"):
        Replay(config=fleet(), truth={"p0": profile()}, arrivals=())
    with pytest.raises(ValueError, match="believed: there is no profile for engine p0; add one"):
        replay(fleet(), [], believed={"d0": profile()})


def test_arrivals_come_in_the_order_of_time() -> None:
    first, second = steady(2, every_s=1.5)
    with pytest.raises(ValueError, match=r"one at 0 s comes after one at 1\.5 s; sort them"):
        replay(fleet(), [second, first])
