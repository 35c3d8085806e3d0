from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from narwhal.fleet import Ledger, Orphans, Reservation
from narwhal.model import Phase

LEGS = st.tuples(
    st.sampled_from(["a", "b"]), st.sampled_from(Ledger.PHASES), st.integers(0, 10_000)
)


@given(st.lists(LEGS, max_size=40), st.randoms(use_true_random=False))
def test_it_is_the_sum_of_what_is_out(legs: list[tuple[str, Phase, int]], rng: Random) -> None:
    ledger = Ledger(["a", "b"])
    out: list[Reservation] = []
    for iid, phase, tokens in legs:
        out.append(ledger.reserve(iid, phase, tokens))
        if rng.random() < 0.4:
            out.pop(rng.randrange(len(out))).release()
        for engine in "ab":
            for each in Ledger.PHASES:
                mine = [r for r in out if (r.iid, r.phase) == (engine, each)]
                assert ledger.residents(engine, each) == len(mine)
                assert ledger.tokens(engine, each) == sum(r.tokens for r in mine)
        assert ledger.total == len(out)
    for reservation in out:
        reservation.release()
    assert ledger.total == 0


def test_a_second_release_is_a_defect_and_changes_nothing() -> None:
    ledger = Ledger(["a"])
    reservation = ledger.reserve("a", Phase.DECODE, 7)
    reservation.release()
    with pytest.raises(AssertionError, match="released twice"):
        reservation.release()
    assert ledger.residents("a", Phase.DECODE) == 0


def test_orphans_count_until_their_leases_end() -> None:
    orphans = Orphans()
    orphans.add("a", 100, until=30.0, now=0.0)
    orphans.add("a", 50, until=20.0, now=0.0)
    assert [orphans.tokens("a", now) for now in (0.0, 19.9, 20.0, 29.9, 30.0)] == [
        150,
        150,
        100,
        100,
        0,
    ]
    assert orphans.tokens("b", 0.0) == 0


def test_a_restarted_engine_pins_nothing() -> None:
    orphans = Orphans()
    orphans.add("a", 100, until=30.0, now=0.0)
    orphans.forget("a")
    assert orphans.tokens("a", 1.0) == 0
