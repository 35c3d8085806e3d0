"""The states of engines: one table, and nothing beside it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from narwhal.fleet import (
    OPERATORS,
    TAKES_WORK,
    TO_BE_PROVED,
    TRANSITIONS,
    EngineState,
    Event,
    Standings,
)

S, E = EngineState, Event
STATES, EVENTS = st.sampled_from(list(S)), st.sampled_from(list(E))


def test_every_state_has_its_row_and_can_be_left_and_reached() -> None:
    assert set(TRANSITIONS) == set(S)
    assert all(TRANSITIONS.values())
    reached = {target for row in TRANSITIONS.values() for target in row.values()}
    assert reached == set(S)
    assert {event for row in TRANSITIONS.values() for event in row} == set(E)


def test_from_every_state_an_engine_can_come_back() -> None:
    for start in S:
        seen, todo = {start}, [start]
        while todo:
            for target in TRANSITIONS[todo.pop()].values():
                if target not in seen:
                    seen.add(target)
                    todo.append(target)
        assert S.SERVING in seen, start


@pytest.mark.parametrize("state", sorted(TO_BE_PROVED))
def test_an_engine_in_doubt_comes_back_by_generating_alone(state: EngineState) -> None:
    ways = {event for event, target in TRANSITIONS[state].items() if target in TAKES_WORK}
    assert ways == {E.VERIFIED}


@pytest.mark.parametrize("state", sorted(OPERATORS))
def test_what_an_operator_asked_for_is_ended_by_nothing_that_engines_do(
    state: EngineState,
) -> None:
    of_engines = {E.FAILED, E.SUSPECTED, E.LOST, E.EVICTED, E.RESTARTED, E.VERIFIED, E.DISPROVED}
    assert not of_engines & set(TRANSITIONS[state])


def test_a_quarantine_ends_by_itself_and_a_further_failure_prolongs_it() -> None:
    standings = Standings(["a", "b"], quarantine_s=5.0)
    change = standings.happened("a", E.FAILED, 10.0, "a leg failed")
    assert change is not None
    assert (change.source, change.target, change.reason) == (
        S.SERVING,
        S.QUARANTINED,
        "a leg failed",
    )
    assert standings.next_expiry() == 15.0
    assert standings.happened("a", E.FAILED, 12.0, "another") is None
    assert standings.next_expiry() == 17.0
    assert standings.expire(16.9) == []
    (change,) = standings.expire(17.0)
    assert (change.iid, change.target) == ("a", S.SERVING)
    assert standings.next_expiry() == float("inf")
    assert standings.state("b") is S.SERVING


def test_without_a_quarantine_a_failure_alone_changes_nothing() -> None:
    standings = Standings(["a"])
    assert standings.happened("a", E.FAILED, 1.0, "a leg failed") is None
    assert standings.state("a") is S.SERVING


def test_a_restored_state_is_as_if_it_had_come_about() -> None:
    standings = Standings(["a"], quarantine_s=5.0)
    standings.restore("a", S.QUARANTINED, 100.0, "as before")
    assert standings.reason("a") == "as before"
    assert len(standings.expire(105.0)) == 1
    standings.restore("a", S.DRAINED, 200.0, "as before")
    assert standings.next_expiry() == float("inf")
    assert standings.happened("a", E.LOST, 201.0, "gone") is None


@given(STATES, EVENTS)
def test_an_event_leads_where_the_table_says_or_nowhere(state: EngineState, event: Event) -> None:
    standings = Standings(["a"], quarantine_s=5.0)
    standings.restore("a", state, 0.0, "")
    change = standings.happened("a", event, 1.0, "because")
    target = TRANSITIONS[state].get(event)
    assert standings.state("a") is (target or state)
    if change is not None:
        assert (change.source, change.event, change.target) == (state, event, target)
        assert (standings.since("a"), standings.reason("a")) == (1.0, "because")


class Life(RuleBasedStateMachine):
    """Two engines, each followed by its own column of the table."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.standings = Standings(["a", "b"], quarantine_s=3.0)
        self.model = {"a": S.SERVING, "b": S.SERVING}
        self.until = {"a": 0.0, "b": 0.0}
        self.changes = 0

    @rule(iid=st.sampled_from(["a", "b"]), event=EVENTS)
    def happens(self, iid: str, event: Event) -> None:
        before = self.model[iid]
        change = self.standings.happened(iid, event, self.now, "x")
        after = TRANSITIONS[before].get(event, before)
        if event is E.FAILED and after is S.QUARANTINED:
            self.until[iid] = self.now + 3.0
        self.model[iid] = after
        # A quarantine that is prolonged is no change of state.
        assert (change is not None) == (event in TRANSITIONS[before] and before != after)

    @rule(seconds=st.floats(0.0, 5.0))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        over = {
            iid
            for iid, state in self.model.items()
            if state is S.QUARANTINED and self.now >= self.until[iid]
        }
        assert {change.iid for change in self.standings.expire(self.now)} == over
        for iid in over:
            self.model[iid] = S.SERVING

    @invariant()
    def they_agree(self) -> None:
        assert {iid: self.standings.state(iid) for iid in self.model} == self.model


TestLife = Life.TestCase
