from collections.abc import Collection, Sequence
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from narwhal.model import Role
from narwhal.placement import Candidate, Choice, Why, choose, eligible

P, D = Role.PREFILL, Role.DECODE

CANDIDATES = st.lists(
    st.builds(
        Candidate,
        iid=st.text("abc", min_size=1, max_size=3),
        role=st.sampled_from(Role),
        load=st.integers(0, 3),
        available=st.booleans(),
        doubtful=st.booleans(),
        seats=st.integers(0, 2),
    ),
    max_size=6,
    unique_by=lambda c: c.iid,
)


def pick(
    candidates: Sequence[Candidate], role: Role | None = D, exclude: Collection[str] = ()
) -> Choice | None:
    return choose(eligible(candidates, role=role, exclude=exclude))


def settled(
    candidates: Sequence[Candidate], role: Role | None = D, exclude: Collection[str] = ()
) -> Choice:
    choice = pick(candidates, role, exclude)
    assert choice is not None
    return choice


def test_least_loaded_then_iid() -> None:
    assert settled([Candidate("b", D, 1), Candidate("a", D, 2)]).why is Why.LEAST_LOADED
    tie = settled([Candidate("b", D, 1), Candidate("a", D, 1)])
    assert (tie.iid, tie.why, tie.runner_up) == ("a", Why.TIE_BY_IID, "b")


def test_filters_come_in_the_specified_order() -> None:
    fleet = [
        Candidate("a", P, 0),
        Candidate("b", D, 0, available=False),
        Candidate("c", D, 5),
        Candidate("d", D, 9),
    ]
    assert settled(fleet).iid == "c"
    assert settled(fleet, exclude={"c"}).iid == "d"
    assert settled(fleet, exclude={"c", "d"}).iid == "c", "an exclusion never leaves nothing"
    assert settled(fleet[:2]).iid == "b", "nor does a quarantine"
    assert pick(fleet[:1]) is None, "but a role does"
    assert settled(fleet[:1], role=None).iid == "a"


def test_a_doubtful_engine_is_the_last_resort() -> None:
    idle = Candidate("a", D, 0, doubtful=True)
    assert settled([idle, Candidate("b", D, 50)]).iid == "b"
    assert settled([idle]).why is Why.LAST_RESORT
    assert pick([idle, Candidate("b", D, 50, seats=0)]) is None, "a trusted one is worth a wait"


@given(CANDIDATES, st.sampled_from([P, D, None]), st.sets(st.text("abc", max_size=3)))
def test_a_choice_is_free_fitting_and_best(
    candidates: list[Candidate], role: Role | None, exclude: set[str]
) -> None:
    choice = pick(candidates, role, exclude)
    fitting = [c for c in candidates if role in (None, c.role)]
    if choice is None:
        assert not fitting or any(c.seats == 0 for c in fitting)
        return
    chosen = next(c for c in candidates if c.iid == choice.iid)
    assert chosen in fitting
    assert chosen.seats > 0
    better = [
        c
        for c in fitting
        if (c.load, c.iid) < (chosen.load, chosen.iid)
        and c.seats > 0
        and (c.available, not c.doubtful) >= (chosen.available, not chosen.doubtful)
        and (c.iid not in exclude or chosen.iid in exclude)
        and c.available
    ]
    assert not better or chosen.doubtful <= better[0].doubtful


@given(CANDIDATES, st.randoms(use_true_random=False))
def test_the_order_of_the_candidates_does_not_matter(
    candidates: list[Candidate], rng: Random
) -> None:
    shuffled = candidates[:]
    rng.shuffle(shuffled)
    assert pick(candidates) == pick(shuffled)
