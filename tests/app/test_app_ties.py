"""Two things in one moment: the limit is heard first, and of two limits the one around the other.

Trio looks at the deadlines that have passed before it lets any task go on, so this holds for
whatever order it lets them go on in. Times are powers of two and their sums, which are exact.
"""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from narwhal.model import Limit, Terminal

from arithmetic_cases import LEG, PLAIN, SCRIPT, WIDE
from arithmetic_model import Model, Wallet
from arithmetic_stage import check

BUSY = attrs.evolve(SCRIPT, prefill=attrs.evolve(LEG, end="503", retry_after=1))
BUSY_FIRST: dict[str, Any] = {"scripts": (BUSY, SCRIPT, SCRIPT)}


@pytest.mark.parametrize("schedule", range(8))
@pytest.mark.parametrize(
    ("settings", "around", "ended", "at"),
    [
        pytest.param({"tokenize_s": 1.0}, {}, None, 5.0, id="count"),
        pytest.param({"queue_s": 1.0}, {"seat_at": 2.0}, Limit.QUEUE, 2.0, id="seat"),
        pytest.param({"prefill_s": 1.0}, {}, Limit.PREFILL, 2.0, id="prefill's answer"),
        pytest.param({"connect_s": 0.5}, {}, Limit.CONNECT, 1.5, id="connection"),
        pytest.param({"handoff_s": 1.5}, {}, Limit.HANDOFF, 2.5, id="handoff dispatched"),
        pytest.param({"handoff_s": 2.0}, {"decode_at": 3.0}, Limit.HANDOFF, 3.0, id="place"),
        pytest.param({"lease_s": 1.0, "handoff_s": 0.0}, {}, Limit.HANDOFF, 3.0, id="lease"),
        pytest.param({"first_s": 1.0}, {}, Limit.FIRST_TOKEN, 3.0, id="first token"),
        pytest.param({"gap_s": 1.0}, {}, Limit.READ_GAP, 4.0, id="token"),
        pytest.param({"request_s": 5.0}, {}, Limit.REQUEST, 5.0, id="end"),
        pytest.param({"request_s": 3.0}, {}, Limit.REQUEST, 3.0, id="first token, deadline"),
        pytest.param(
            {"request_s": 2.0, "prefill_s": 1.0}, {}, Limit.REQUEST, 2.0, id="deadline and prefill"
        ),
        pytest.param(
            {"request_s": 2.0, "queue_s": 1.0},
            {"seat_at": 9.0},
            Limit.REQUEST,
            2.0,
            id="deadline and queue",
        ),
        pytest.param(
            {"prefill": 0, "prefill_s": 1.0, "first_s": 1.0},
            {},
            Limit.PREFILL,
            2.0,
            id="prefill around first token",
        ),
        pytest.param(
            {"handoff_s": 1.25, "first_s": 0.25}, {}, Limit.HANDOFF, 2.25, id="handoff around"
        ),
        pytest.param(
            {"max_attempts": 2, "request_s": 3.0}, BUSY_FIRST, None, 2.0, id="back-off, deadline"
        ),
    ],
)
def test_the_limit_is_heard_first(
    settings: dict[str, Any],
    around: dict[str, Any],
    ended: Limit | None,
    at: float,
    schedule: int,
) -> None:
    limits, request = attrs.evolve(WIDE, **settings), attrs.evolve(PLAIN, **around)
    told = Model(limits, request, Wallet(limits, 0)).predict()
    assert (told.limit, told.end) == (ended, at)
    # An answer that is sent as its connection is closed may be lost, and with it the handoff.
    check(limits, [request], schedule=schedule, released=False)


def test_a_back_off_that_would_end_with_the_deadline_is_not_begun() -> None:
    limits = attrs.evolve(WIDE, max_attempts=2, request_s=3.0)
    request = attrs.evolve(PLAIN, **BUSY_FIRST)
    wallet = Wallet(limits, 0)
    told = Model(limits, request, wallet).predict()
    assert (told.terminal, told.code, len(told.tried)) == (Terminal.FAILED, "engine_busy", 1)
    assert wallet.left == 4
    told = Model(attrs.evolve(limits, request_s=3.5), request, wallet).predict()
    assert (told.terminal, len(told.tried), told.end) == (Terminal.EXPIRED, 2, 3.5)
