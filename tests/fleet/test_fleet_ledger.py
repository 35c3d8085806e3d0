import pytest

from narwhal.fleet import Claim, Ledger, Orphans
from narwhal.model import Phase


def test_a_second_release_is_a_defect_and_changes_nothing() -> None:
    ledger = Ledger(["a"])
    reservation = ledger.reserve("a", Phase.DECODE, Claim(prompt_tokens=7), 0.0)
    reservation.release(1.0)
    with pytest.raises(AssertionError, match="released twice"):
        reservation.release(1.0)
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
