"""A preflight ends whatever engines do, and leaves nothing behind when it is ended."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from preflight_stage import ENGINE, check, found, pinned

from narwhal.preflight import Gate, Options
from narwhal.testing import fleet_config

PHASES = ("health", "models", "version", "metrics", "tokenize", "prefill", "decode", "whole", "any")
ILLS = (
    "hang",
    "hdr;hang",
    "drip(1)",
    "bytewise(1)",
    "rst",
    "fin",
    "cut",
    "die",
    "wait(60)",
    "unread(60)",
    "malformed;hang",
    "tokens(1);hang",
    "huge(2000000)",
    'send("garbage");hang',
    "status(200,{})",
    'status(200,"[")',
    "status(500)",
    "status(429)",
    "status(204)",
    "nodone",
    "nousage",
    "late(60)",
)
# All time-outs of one engine's questions, one after the other, and its handoffs: less than this.
LONGEST_S = 120.0


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("ill", ILLS)
def test_one_ill_engine_cannot_hold_it_up(phase: str, ill: str) -> None:
    report = check(
        fleet_config(engine=ENGINE),
        faults={"d0": f"{phase}:{ill}"},
        options=Options(lease_wait_s=1),
        left=True,
    )
    assert report.seconds < LONGEST_S
    assert {each.gate for each in report.findings} == set(Gate)


@given(after=st.floats(0.0, 12.0))
@settings(max_examples=60, deadline=None)
def test_a_cancel_at_any_moment_leaves_no_engine_with_anything(after: float) -> None:
    report = check(cancel_after=max(after, 1e-3), options=Options(lease_wait_s=20))
    assert report.findings


def test_a_slow_handoff_is_cut_by_the_limit_for_it() -> None:
    report = check(
        pinned(engine={**ENGINE, "first_token_timeout_s": 1.0}),
        faults={"d0": "decode:wait(30)"},
        options=Options(lease_wait_s=0.1),
    )
    (consumed,) = found(report, Gate.CONSUME)
    assert "no answer within 1 s (engine.first_token_timeout_s)" in consumed.seen
    assert report.seconds < 10
