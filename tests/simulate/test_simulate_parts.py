"""The parts of a world, one at a time."""

from __future__ import annotations

import itertools

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from narwhal.net import MemoryNetwork
from narwhal.simulate.responses import ResponseParser, Unreadable
from narwhal.simulate.trace import Trace
from narwhal.simulate.unruly import CutStream
from narwhal.testing import run_seeded

WHOLE = (
    b"HTTP/1.1 100 Continue\r\n\r\n"
    b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX: Y\r\n\r\nhello"
    b"HTTP/1.1 429 X\r\ncontent-length: 0\r\n\r\n"
    b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ncontent-type: text/event-stream\r\n\r\n"
    b"3\r\nabc\r\n10\r\n0123456789abcdef\r\n0\r\n\r\n"
    b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf"
)


@given(cuts=st.lists(st.integers(0, len(WHOLE)), max_size=12))
def test_responses_are_the_same_however_they_are_cut(cuts: list[int]) -> None:
    parser = ResponseParser()
    places = [0, *sorted(cuts), len(WHOLE)]
    for start, end in itertools.pairwise(places):
        parser.feed(WHOLE[start:end])
    found = [(r.status, bytes(r.body), r.complete) for r in parser.responses]
    assert found == [
        (200, b"hello", True),
        (429, b"", True),
        (200, b"abc0123456789abcdef", True),
        (200, b"half", False),
    ]
    assert parser.answered == 3
    assert [r.is_stream for r in parser.responses] == [False, False, True, False]


@pytest.mark.parametrize(
    ("wire", "complaint"),
    [
        (b"HTTP/2 200 OK\r\n\r\n", "begins with"),
        (b"HTTP/1.1 200 OK\r\n\r\n", "nothing of its length"),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\nab\r\n", "followed by"),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n0\r\nx: y\r\n", "trailer"),
    ],
)
def test_odd_responses_are_not_taken(wire: bytes, complaint: str) -> None:
    with pytest.raises(Unreadable, match=complaint):
        ResponseParser().feed(wire)


@given(
    writes=st.lists(st.binary(min_size=1, max_size=50), min_size=1, max_size=8),
    after=st.integers(0, 120),
    reset=st.booleans(),
)
def test_a_connection_breaks_off_after_just_so_many_bytes(
    writes: list[bytes], after: int, reset: bool
) -> None:
    async def main() -> None:
        network = MemoryNetwork(buffer_bytes=64)
        client, server = network.pair()
        stream = CutStream(server, after, reset=reset)
        got = b""

        async def read() -> None:
            nonlocal got
            try:
                while data := await client.receive_some():
                    got += data
            except trio.BrokenResourceError:
                pass

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            try:
                for number, write in enumerate(writes):
                    if number % 2:
                        await stream.send_all(write)
                    else:
                        sent = stream.send_nowait(write)
                        await stream.send_all(write[sent:])
            except trio.ClosedResourceError:
                pass
            await trio.testing.wait_all_tasks_blocked()
            stream.close()
        whole = b"".join(writes)
        assert got == whole[:after]
        client.close()
        assert network.open_streams == 0

    run_seeded(main)


def test_a_trace_tells_of_somebody_or_else_of_the_end() -> None:
    async def main() -> None:
        trace = Trace()
        for n in range(10):
            trace.add("step", client=f"c{n}", n=n)
            await trio.sleep(1)
        assert [event.fields["n"] for event in trace.last(3)] == [7, 8, 9]
        assert [event.fields["n"] for event in trace.last(3, about=["c4"])] == [4]
        assert [event.fields["n"] for event in trace.last(2, about=["x"], until=5.5)] == [4, 5]
        assert trace.events[3].line() == b'{"t":3.0,"event":"step","client":"c3","n":3}'

    run_seeded(main)
