"""Which limit ends a request, and when, against a small model that only adds and compares."""

from __future__ import annotations

from math import inf
from typing import Any

import attrs
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from narwhal.model import Limit, Phase, Terminal
from narwhal.net import ByteStream

from stub_fleet import Play, good
from worlds import World, fleet_config, play

# Times in seconds. Engines take whole hundredths; each limit is off by an amount of its own, so
# that no two things ever happen at the same moment.
TIMES = st.integers(0, 120).map(lambda n: n / 100)


def limit(offset: float) -> st.SearchStrategy[float]:
    """Mostly one that will not fire, or no case would come far."""
    tight = st.integers(1, 150)
    return (st.just(10_000) | st.just(10_000) | tight).map(lambda n: n / 100 + offset)


@attrs.frozen(kw_only=True)
class Case:
    """How long everything takes, and how long it may take."""

    # What engines do
    tokenize: float
    connect_prefill: float
    prefill: float
    connect_decode: float
    first: float
    gaps: list[float]
    # What they may
    request_s: float
    tokenize_s: float
    prefill_s: float
    handoff_s: float
    lease_s: float
    first_s: float
    gap_s: float
    connect_s: float
    whole: bool
    stream: bool

    def config(self) -> Any:
        return fleet_config(
            prefill=0 if self.whole else 1,
            request_timeout_s=self.request_s,
            prefill_timeout_s=self.prefill_s,
            handoff_timeout_s=self.handoff_s,
            engine={
                "tokenize_timeout_s": self.tokenize_s,
                "first_token_timeout_s": self.first_s,
                "decode_read_timeout_s": self.gap_s,
                "connect_timeout_s": self.connect_s,
                "kv_lease_s": self.lease_s,
            },
        )


CASES = st.builds(
    Case,
    tokenize=TIMES,
    connect_prefill=TIMES,
    prefill=TIMES,
    connect_decode=TIMES,
    first=TIMES,
    gaps=st.lists(TIMES, max_size=4),
    request_s=limit(0.0001) | st.integers(1, 500).map(lambda n: n / 100 + 0.0001),
    tokenize_s=limit(0.0002),
    prefill_s=limit(0.0004),
    handoff_s=st.just(0.0) | limit(0.0008),
    lease_s=limit(0.0016),
    first_s=limit(0.0032),
    gap_s=st.just(0.0) | limit(0.0064),
    connect_s=limit(0.00005),
    whole=st.booleans(),
    stream=st.booleans(),
)


def predict(case: Case) -> tuple[Limit | None, float, bool]:
    """The limit that ends the request, when, and whether counting tokens ran into its own."""
    now = min(case.tokenize, case.tokenize_s)
    fell_back = case.tokenize > case.tokenize_s and case.tokenize_s < case.request_s
    ended, now = _legs(case, now)
    if case.request_s < now:
        return Limit.REQUEST, case.request_s, fell_back
    return ended, now, fell_back


def _legs(case: Case, now: float) -> tuple[Limit | None, float]:
    begun = now
    if not case.whole:
        connect = case.connect_s if case.connect_prefill > case.connect_s else inf
        done = case.connect_prefill + case.prefill
        ended, now = _first_of(
            begun, {Limit.CONNECT: connect, Limit.PREFILL: case.prefill_s, None: done}
        )
        if ended is not None:
            return ended, now
    limits: dict[Limit | None, float] = {Limit.FIRST_TOKEN: case.first_s}
    if case.connect_decode > case.connect_s:
        limits[Limit.CONNECT] = case.connect_s
    if case.whole:
        limits[Limit.PREFILL] = case.prefill_s
    else:
        expires = min(begun + (case.handoff_s or inf), now + case.lease_s) - now
        if expires <= case.connect_decode:
            limits[Limit.HANDOFF] = max(expires, 0.0)
        elif case.lease_s < case.connect_decode + case.first:
            limits[Limit.HANDOFF] = case.lease_s  # too late to be trusted
    ended, now = _first_of(now, limits | {None: case.connect_decode + case.first})
    if ended is not None:
        return ended, now
    for gap in case.gaps:
        if case.gap_s and gap > case.gap_s:
            return Limit.READ_GAP, now + case.gap_s
        now += gap
    return None, now


def _first_of(begun: float, after: dict[Limit | None, float]) -> tuple[Limit | None, float]:
    ended = min(after, key=lambda limit: after[limit])
    return ended, begun + after[ended]


async def observe(world: World, case: Case) -> Any:
    delays = {9100: case.connect_prefill, 9200: case.connect_decode}
    connect = world.network.connect

    async def late(host: str, port: int) -> ByteStream:
        await trio.sleep(delays[port])
        return await connect(host, port)

    for client in world.router.core.engines.values():
        client.pools.data._connect = late

    async def script(play_: Play) -> None:
        if play_.leg == "tokenize":
            await play_.wait(case.tokenize)
            await good(play_)
        elif play_.leg == "prefill":
            await play_.wait(case.prefill)
            await play_.prefill_answer()
        elif play_.leg in ("decode", "whole"):
            await play_.hdr()
            await play_.wait(case.first)
            await play_.tokens(1)
            for n, gap in enumerate(case.gaps):
                await play_.wait(gap)
                await play_.tokens(1, first=n + 1)
            await play_.finish(1 + len(case.gaps))
        else:
            await good(play_)

    world.script(script)
    ask = {"model": "m", "prompt": "x", "stream": case.stream}
    answer = await world.post(ask)
    assert answer.seconds == pytest.approx(world.row.request_s, abs=1e-9)
    if world.row.terminal is not Terminal.COMPLETED:
        assert answer.error["narwhal"]["limit"] == world.row.limit
    return world.row


@settings(deadline=None, max_examples=300)
@given(case=CASES)
def test_the_limit_that_fires_is_the_earliest(case: Case) -> None:
    ended, seconds, fell_back = predict(case)

    async def body(world: World) -> None:
        row = await observe(world, case)
        assert row.limit is ended
        assert row.request_s == pytest.approx(seconds, abs=1e-9)
        fired = [Limit.TOKENIZE] * fell_back + [ended] * (ended is not None)
        assert list(row.limits_fired) == fired
        terminals = {
            None: Terminal.COMPLETED,
            Limit.REQUEST: Terminal.EXPIRED,
            Limit.HANDOFF: Terminal.EXPIRED,
        }
        assert row.terminal is terminals.get(ended, Terminal.FAILED)
        await world.settle(3.0)

    play(body, case.config(), lease=case.lease_s)


@settings(deadline=None, max_examples=100)
@given(
    served=st.integers(1, 300).map(lambda n: n / 100),
    queue_s=st.integers(1, 150).map(lambda n: n / 100 + 0.0002),
    request_s=st.integers(1, 300).map(lambda n: n / 100 + 0.0001),
    after=st.integers(0, 100).map(lambda n: n / 100 + 0.00003),
)
def test_the_queue_s_limit_or_the_request_s(
    served: float, queue_s: float, request_s: float, after: float
) -> None:
    async def body(world: World) -> None:
        async def script(play_: Play) -> None:
            if play_.leg == "decode":
                await play_.hdr()
                await play_.tokens(1)
                await play_.wait(served if play_.body.get("user") else 0.0)
                await play_.finish(1)
            else:
                await good(play_)

        world.script(script)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(world.post, {"model": "m", "prompt": "x", "user": "first"})
            await trio.sleep(after)
            await world.post({"model": "m", "prompt": "x"})
        second = max(world.rows, key=lambda row: row.arrival)
        wait = max(min(served, request_s) - after, 0.0)
        ends = {None: wait, Limit.QUEUE: queue_s, Limit.REQUEST: request_s}
        ended = min(ends, key=lambda limit: ends[limit])
        assert second.limit is ended
        assert second.request_s == pytest.approx(ends[ended], abs=1e-9)
        assert second.spent.get(Phase.QUEUE, 0.0) == pytest.approx(ends[ended], abs=1e-9)

    config = fleet_config(
        max_connections=1,
        queue_capacity=1,
        queue_timeout_s=queue_s,
        prefill_concurrency=1,
        decode_concurrency=1,
        request_timeout_s=request_s,
        engine={"tokenize": False},
    )
    play(body, config)
