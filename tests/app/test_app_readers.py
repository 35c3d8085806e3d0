"""Clients that stop reading: what ends their requests, and how late that can be."""

from __future__ import annotations

from math import inf

import attrs
import h11
import pytest
import trio
from hypothesis import example, given, settings
from hypothesis import strategies as st

from narwhal.model import Limit, Terminal
from narwhal.router.life import RESPOND_BOUND_S

from arithmetic_cases import NEVER, apart, hundredths, now_and_then
from stub_fleet import Play, good
from worlds import Client, World, fleet_config, play

EXACTLY = 1e-9
# Two connections, and one read of the router's; it passes on whole events only.
BUFFERS = 3 * 65_536


@attrs.frozen(kw_only=True)
class Reader:
    """A stream, and a client that does not read for a while."""

    size: int
    """Bytes of a token."""
    every: float
    count: int
    stops: float
    resumes: float
    request_s: float
    gap_s: float
    """Never less than the engine takes for a token."""
    stream: bool

    @property
    def engine_s(self) -> float:
        """What the engine takes, if it never has to wait."""
        return self.every * self.count


@st.composite
def readers(draw: st.DrawFn) -> Reader:
    every = draw(hundredths(1, 50))
    stops = draw(now_and_then(inf, hundredths(0, 500), 3) | hundredths(0, 100))
    return Reader(
        size=draw(st.sampled_from([10, 10_000, 60_000, 200_000])),
        every=every,
        count=draw(st.integers(1, 20)),
        stops=stops,
        resumes=stops + draw(now_and_then(inf, hundredths(1, 800), 2)),
        request_s=draw(now_and_then(NEVER, hundredths(1, 1000), 2)) + apart(2),
        gap_s=every + apart(17),
        stream=draw(st.booleans()),
    )


async def read(client: Client, reader: Reader, got: bytearray) -> bool:
    """Add to what the client `got`; whether the answer ended as one should."""
    start = trio.current_time()
    while True:
        if reader.stops <= trio.current_time() - start < reader.resumes:
            await trio.sleep_until(start + min(reader.resumes, 10 * NEVER))
        try:
            event = await client.next_event()
        except h11.RemoteProtocolError:
            return False
        if isinstance(event, h11.Data):
            got += bytes(event.data)
        elif not isinstance(event, h11.Response):
            return isinstance(event, h11.EndOfMessage)


@settings(deadline=None, max_examples=120)
@given(reader=readers(), schedule=st.integers(0, 2**32))
def test_no_limit_but_the_requests_own_covers_a_client_that_does_not_read(
    reader: Reader, schedule: int
) -> None:
    got = bytearray()

    async def body(world: World) -> None:
        async def script(leg: Play) -> None:
            if leg.leg != "decode":
                await good(leg)
                return
            await leg.hdr()
            for n in range(1, reader.count + 1):
                await leg.wait(reader.every)
                await leg.event(leg.token(0, text="x" * reader.size))
                held = n * reader.size - len(got)
                most = BUFFERS + 2 * reader.size
                assert held <= most or not reader.stream, "the engine is held back too"
            await leg.finish()

        world.script(script)
        client = await world.connect()
        await client.ask({"model": "m", "prompt": "x", "stream": reader.stream})
        whole = await read(client, reader, got)
        client.close()
        row = world.row
        assert row.limit in (None, Limit.REQUEST)
        if row.terminal is Terminal.COMPLETED:
            assert row.request_s < reader.request_s
            assert whole
            assert got.count(b"x") >= reader.size * reader.count
        else:
            assert (row.terminal, row.limit) == (Terminal.EXPIRED, Limit.REQUEST)
            late = row.request_s - reader.request_s
            assert -EXACTLY <= late <= RESPOND_BOUND_S + EXACTLY
            assert got[-6:] != b"[DONE]"
        if reader.stops > row.request_s:
            end = min(reader.engine_s, reader.request_s)
            assert row.request_s == pytest.approx(end, abs=EXACTLY), "it read all the time"

    config = fleet_config(
        request_timeout_s=reader.request_s,
        engine={
            "tokenize": False,
            "first_token_timeout_s": NEVER,
            "decode_read_timeout_s": reader.gap_s,
            "kv_lease_s": NEVER,
        },
    )
    play(body, config, lease=NEVER, schedule=schedule)


# What a connection in memory holds, less about what a response head and an event take.
FULL = 65_536 - 600


@settings(deadline=None, max_examples=60)
@given(size=st.integers(FULL - 500, FULL + 700), schedule=st.integers(0, 2**32))
@example(size=FULL, schedule=0)
def test_an_error_that_nobody_takes_is_waited_for_as_long_as_the_grace(
    size: int, schedule: int
) -> None:
    """The connection holds the token, and then has no room for the error."""

    async def body(world: World) -> None:
        async def script(leg: Play) -> None:
            if leg.leg != "decode":
                await good(leg)
                return
            await leg.hdr()
            await leg.event(leg.token(0, text="x" * size))
            await leg.hang()

        world.script(script)
        client = await world.connect()
        await client.ask({"model": "m", "prompt": "x", "stream": True})
        await trio.sleep(5.0 + RESPOND_BOUND_S / 2)
        retained = world.router.core.retained
        await trio.sleep(RESPOND_BOUND_S / 2 + EXACTLY)
        row = world.row
        assert (row.terminal, row.limit) == (Terminal.EXPIRED, Limit.REQUEST)
        late = row.request_s - 5.0
        assert min(late, RESPOND_BOUND_S - late) == pytest.approx(0.0, abs=EXACTLY)
        assert retained == (late > EXACTLY), "what is still being written is still held"
        ends.append(late > EXACTLY)
        assert world.server.connections == 0
        client.close()

    ends: list[bool] = []
    engine = {"decode_read_timeout_s": 0, "tokenize": False}
    play(body, fleet_config(request_timeout_s=5.0, engine=engine), schedule=schedule)
    if size == FULL:
        assert ends == [True]
