"""Prices of a request on the engines of a fleet, from profiles and resident work."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from narwhal.config import FleetConfig
from narwhal.fleet import UNPLACED, Claim, Ledger, Orphans
from narwhal.model import Phase, TtftScope
from narwhal.profiles import DecodeCurve, HandoffCurve, PrefillCurve, Profile
from narwhal.router.prices import Prices
from narwhal.testing import fleet_config

CONFIG = fleet_config(prefill=2, decode=2)
TO_FIRST_TOKEN = attrs.evolve(
    CONFIG, slo=attrs.evolve(CONFIG.slo, ttft_scope=TtftScope.FIRST_TOKEN)
)
P, D = ("p0", "p1"), ("d0", "d1")
SMALL = st.floats(0.0, 0.01)
PROFILES = st.builds(
    Profile,
    prefill=st.builds(PrefillCurve, a=st.floats(0, 1e-6), b=SMALL, c=SMALL),
    decode=st.builds(DecodeCurve, t0=SMALL, tr=SMALL, tk=st.floats(1e-9, 1e-5)),
    handoff=st.none() | st.builds(HandoffCurve, base_s=SMALL, token_s=SMALL),
    kv_capacity_tokens=st.none() | st.integers(1, 20_000),
)
TOKENS = st.integers(1, 20_000)


class Stage:
    """A fleet with work on it, at time 0."""

    def __init__(self, config: FleetConfig, profiles: dict[str, Profile]) -> None:
        self.ledger, self.orphans = Ledger(profiles), Orphans()
        self.prices = Prices(config, self.ledger, self.orphans, profiles)

    def resident(self, iid: str, phase: Phase, prompt: int, output: int = 0) -> Claim:
        life: Any = SimpleNamespace(prompt_tokens=prompt, output_tokens=output)
        claim = self.prices.claim(iid, phase, life)
        self.ledger.reserve(iid, phase, claim, 0.0)
        return claim

    def pinned(self, iid: str, tokens: int, until: float = 9.0) -> None:
        self.orphans.add(iid, tokens, until=until, now=0.0)


@st.composite
def stages(draw: st.DrawFn) -> Stage:
    profiles = {iid: draw(PROFILES) for iid in (*P, *D)}
    stage = Stage(draw(st.sampled_from([CONFIG, TO_FIRST_TOKEN])), profiles)
    for iid in draw(st.lists(st.sampled_from(P), max_size=3)):
        stage.resident(iid, Phase.PREFILL, draw(TOKENS))
    for iid in draw(st.lists(st.sampled_from((*D, UNPLACED)), max_size=3)):
        stage.resident(iid, Phase.DECODE, draw(TOKENS), draw(TOKENS))
    for iid in draw(st.lists(st.sampled_from((*P, *D)), max_size=3)):
        stage.pinned(iid, draw(TOKENS))
    return stage


@given(stages(), TOKENS, st.integers(0, 9000), st.floats(0.0, 9.0), st.booleans())
def test_a_longer_prompt_costs_no_less_anywhere(
    stage: Stage, prompt: int, more: int, line_s: float, whole: bool
) -> None:
    prices, output = stage.prices, 100
    for iid in P if not whole else D:
        short, long = (
            prices.whole_paths([iid], tokens, output, 0.0)[0]
            if whole
            else prices.prefill_paths([iid], tokens, 0.0, decoders=D, line_s=line_s)[0]
            for tokens in (prompt, prompt + more)
        )
        assert short.price_s <= long.price_s
        assert short.alone_s <= long.alone_s
    for short_, long_ in zip(
        prices.decode_paths(D, prompt, output, now=0.0),
        prices.decode_paths(D, prompt + more, output, now=0.0),
        strict=True,
    ):
        assert short_.interval_s <= long_.interval_s
        assert short_.alone_s <= long_.alone_s
        assert (short_.kv_tokens + more, short_.own_tokens + more) == (
            long_.kv_tokens,
            long_.own_tokens,
        )


@given(stages(), TOKENS, TOKENS, st.floats(0.0, 9.0), st.floats(0.0, 9.0))
def test_more_work_ahead_costs_no_less_anywhere(
    stage: Stage, prompt: int, added: int, line_s: float, longer: float
) -> None:
    def costs(line: float) -> list[float]:
        prefills = stage.prices.prefill_paths(P, prompt, 0.0, decoders=D, line_s=line)
        decodes = stage.prices.decode_paths(D, prompt, 100, now=0.0)
        numbers = [path.price_s for path in prefills] + [path.interval_s for path in decodes]
        return numbers + [path.kv_tokens for path in decodes]

    before = costs(line_s)
    assert all(a <= b + 1e-9 for a, b in zip(before, costs(line_s + longer), strict=True))
    stage.resident("p0", Phase.PREFILL, added)
    stage.resident("d0", Phase.DECODE, added, 10)
    stage.pinned("p1", added)
    stage.pinned("d1", added)
    assert all(a <= b + 1e-9 for a, b in zip(before, costs(line_s), strict=True))


@given(stages(), TOKENS, st.floats(0.0, 9.0))
def test_the_order_of_engines_makes_no_difference(stage: Stage, prompt: int, line_s: float) -> None:
    prices = stage.prices

    def paths(*, backwards: bool) -> list[object]:
        step = -1 if backwards else 1
        prefills = prices.prefill_paths(P[::step], prompt, 0.0, decoders=D[::step], line_s=line_s)
        decodes = prices.decode_paths(D[::step], prompt, 100, now=0.0)
        return [*prefills[::step], *decodes[::step]]

    assert paths(backwards=False) == paths(backwards=True)


def plain(capacity: int | None = None) -> Profile:
    return Profile(
        prefill=PrefillCurve(a=0.0, b=0.001, c=0.0),
        decode=DecodeCurve(t0=0.01, tr=0.001, tk=1e-6),
        kv_capacity_tokens=capacity,
    )


def test_orphans_hold_a_decoder_s_memory_and_keep_a_prompt_out_of_their_producer() -> None:
    stage = Stage(CONFIG, {iid: plain(1000) for iid in (*P, *D)})
    for iid in ("p0", "d0"):
        stage.pinned(iid, 600, until=9.0)

    def prices(now: float) -> tuple[list[float], list[int]]:
        prefills = stage.prices.prefill_paths(P, 500, now, decoders=D)
        decodes = stage.prices.decode_paths(D, 500, 100, now=now)
        return [path.ahead_s for path in prefills], [path.kv_tokens for path in decodes]

    assert prices(2.0) == ([7.0, 0.0], [1200, 600])
    assert prices(9.0) == ([0.0, 0.0], [600, 600])
    small = stage.prices.prefill_paths(["p0"], 400, 2.0, decoders=D)
    assert small[0].ahead_s == 0.0, "it fits beside them"


def test_decodes_to_come_are_shared_out_and_none_is_beside_itself() -> None:
    stage = Stage(CONFIG, {iid: plain() for iid in (*P, *D)})
    own = stage.resident(UNPLACED, Phase.DECODE, 100, 50)
    stage.resident(UNPLACED, Phase.DECODE, 300, 0)
    newcomer, placed = (
        stage.prices.decode_paths(D, 100, 50, now=0.0, expected=expected)[0]
        for expected in (None, own)
    )
    assert newcomer.interval_s == pytest.approx(0.01 + 0.001 * 2 + 1e-6 * (125 + 425 / 2))
    assert newcomer.kv_tokens == 150 + math.ceil(450 / 2)
    assert placed.interval_s == pytest.approx(0.01 + 0.001 * 1.5 + 1e-6 * (125 + 300 / 2))
    assert placed.kv_tokens == 150 + 150


def test_only_an_engine_on_which_nothing_decodes_is_priced_for_both_phases() -> None:
    stage = Stage(TO_FIRST_TOKEN, {iid: plain() for iid in (*P, *D)})
    stage.resident("d0", Phase.DECODE, 10, 10)
    stage.resident("d1", Phase.PREFILL, 100)
    busy, free = stage.prices.whole_paths(D, 50, 10, 0.0)
    assert (busy.measured, free.measured) == (False, True)
    assert free.price_s == pytest.approx(0.1 + 0.05), "the first token is the prefill's own"
    assert free.decode is not None
    assert free.decode.iid == "d1"
