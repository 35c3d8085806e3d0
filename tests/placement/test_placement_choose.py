from collections.abc import Collection, Sequence
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from narwhal.placement import Candidate, Choice, Why, choose, eligible

CANDIDATES = st.lists(
    st.builds(
        Candidate,
        iid=st.text("abc", min_size=1, max_size=3),
        cost=st.integers(0, 3),
        available=st.booleans(),
        doubtful=st.booleans(),
        seats=st.integers(0, 2),
        meets=st.booleans(),
    ),
    max_size=6,
    unique_by=lambda c: c.iid,
)


def pick(candidates: Sequence[Candidate], exclude: Collection[str] = ()) -> Choice | None:
    return choose(eligible(candidates, exclude=exclude))


def settled(candidates: Sequence[Candidate], exclude: Collection[str] = ()) -> Choice:
    choice = pick(candidates, exclude)
    assert choice is not None
    return choice


def test_least_cost_then_iid() -> None:
    assert settled([Candidate("b", 1), Candidate("a", 2)]).why is Why.LEAST_COST
    tie = settled([Candidate("b", 1), Candidate("a", 1)])
    assert (tie.iid, tie.why, tie.runner_up) == ("a", Why.TIE_BY_IID, "b")


def test_filters_come_in_the_specified_order() -> None:
    fleet = [Candidate("b", 0, available=False), Candidate("c", 5), Candidate("d", 9)]
    assert settled(fleet).iid == "c"
    assert settled(fleet, exclude={"c"}).iid == "d"
    assert settled(fleet, exclude={"c", "d"}).iid == "c", "an exclusion never leaves nothing"
    assert settled(fleet[:1]).iid == "b", "nor does a quarantine"
    assert pick([]) is None


def test_a_doubtful_engine_is_the_last_resort() -> None:
    idle = Candidate("a", 0, doubtful=True)
    assert settled([idle, Candidate("b", 50)]).iid == "b"
    assert settled([idle]).why is Why.LAST_RESORT
    assert pick([idle, Candidate("b", 50, seats=0)]) is None, "a trusted one is worth a wait"


def test_a_projection_that_meets_the_target_comes_before_a_lower_cost() -> None:
    fleet = [Candidate("a", 1, meets=False), Candidate("b", 5), Candidate("c", 7)]
    assert settled(fleet) == Choice("b", Why.LEAST_COST, "c")
    none = [Candidate("a", 3, meets=False), Candidate("b", 2, meets=False)]
    assert settled(none) == Choice("b", Why.UNSERVED, "a")
    assert settled(none[:1]).why is Why.UNSERVED


@given(CANDIDATES, st.sets(st.text("abc", max_size=3)))
def test_a_choice_is_free_and_best(candidates: list[Candidate], exclude: set[str]) -> None:
    choice = pick(candidates, exclude)
    if choice is None:
        assert not candidates or any(c.seats == 0 for c in candidates)
        return
    chosen = next(c for c in candidates if c.iid == choice.iid)
    assert chosen.seats > 0
    better = [
        c
        for c in candidates
        if (c.cost, c.iid) < (chosen.cost, chosen.iid)
        and c.seats > 0
        and (c.available, not c.doubtful) >= (chosen.available, not chosen.doubtful)
        and (c.iid not in exclude or chosen.iid in exclude)
        and c.available
        and (c.meets or not chosen.meets)
    ]
    assert not better or chosen.doubtful <= better[0].doubtful


@given(CANDIDATES, st.randoms(use_true_random=False))
def test_the_order_of_the_candidates_does_not_matter(
    candidates: list[Candidate], rng: Random
) -> None:
    shuffled = candidates[:]
    rng.shuffle(shuffled)
    assert pick(candidates) == pick(shuffled)
