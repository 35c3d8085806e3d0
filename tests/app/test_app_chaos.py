"""Whole worlds in which everything goes wrong, each from a seed.

A seed that fails is replayed by `pytest tests/app/test_app_chaos.py -k "seed[N]"`, to the step;
more of them are tried by `python tests/support/chaos.py FIRST LAST`.
"""

from __future__ import annotations

from collections import Counter

import pytest
from chaos import run_seed

from narwhal.model import Limit, Terminal


@pytest.mark.parametrize("seed", range(140))
def test_seed(seed: int) -> None:
    run_seed(seed)


def test_a_seed_says_all() -> None:
    def story(seed: int) -> list[object]:
        return [
            (row.request_id, row.terminal, row.code, row.arrival, row.spent, row.attempts)
            for row in run_seed(seed).rows
        ]

    assert story(5) == story(5)


def test_the_worlds_are_not_peaceful() -> None:
    """Chaos that meets no trouble would pass whatever is broken."""
    terminals: Counter[Terminal] = Counter()
    limits: Counter[Limit] = Counter()
    retries = 0
    for seed in range(1000, 1040):
        rows = run_seed(seed).rows
        terminals.update(row.terminal for row in rows)
        limits.update(limit for row in rows for limit in row.limits_fired)
        retries += sum(len(row.attempts) > 1 for row in rows)
    assert set(terminals) == set(Terminal) - {Terminal.REFUSED}
    assert {Limit.REQUEST, Limit.PREFILL, Limit.HANDOFF, Limit.FIRST_TOKEN} <= set(limits)
    assert {Limit.QUEUE, Limit.READ_GAP, Limit.CONNECT, Limit.TOKENIZE} <= set(limits)
    assert retries > 20
