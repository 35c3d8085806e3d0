"""What a connection in memory goes through: bandwidth, segments, a network that vanishes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock, assert_checkpoints

from narwhal.net import Link, MemoryNetwork, MemoryStream

Body = Callable[[MemoryStream, MemoryStream], Awaitable[None]]


def on_link(link: Link, body: Body, *, buffer_bytes: int = 65536) -> None:
    async def main() -> None:
        network = MemoryNetwork(buffer_bytes=buffer_bytes)
        one, two = network.pair(link=link)
        await body(one, two)
        one.close()
        two.close()
        assert network.open_streams == 0

    trio.run(main, clock=MockClock(autojump_threshold=0))


def test_bandwidth_is_shared_by_what_is_written_one_after_the_other() -> None:
    async def body(one: MemoryStream, two: MemoryStream) -> None:
        start = trio.current_time()
        await one.send_all(b"x" * 1000)
        await one.send_all(b"y" * 500)
        assert await two.receive_some() == b"x" * 1000
        assert trio.current_time() - start == pytest.approx(1.25)
        assert await two.receive_some() == b"y" * 500
        assert trio.current_time() - start == pytest.approx(1.75)
        await two.send_all(b"z")  # the other direction has a bandwidth of its own
        assert await one.receive_some() == b"z"
        assert trio.current_time() - start == pytest.approx(2.001)

    on_link(Link(delay_s=0.25, bytes_per_s=1000), body)


@given(
    writes=st.lists(st.binary(min_size=1, max_size=60), min_size=1, max_size=6),
    segment=st.integers(1, 40),
)
def test_segments_carry_the_same_bytes_in_order(writes: list[bytes], segment: int) -> None:
    async def body(one: MemoryStream, two: MemoryStream) -> None:
        for write in writes:
            await one.send_all(write)
        one.send_eof()
        got, sizes = b"", []
        while data := await two.receive_some():
            got += data
            sizes.append(len(data))
        assert got == b"".join(writes)
        assert max(sizes) <= segment

    on_link(Link(bytes_per_s=100, segment_bytes=segment), body)


def test_an_end_of_file_comes_after_the_bytes_before_it() -> None:
    async def body(one: MemoryStream, two: MemoryStream) -> None:
        await one.send_all(b"x" * 100)
        one.close()
        assert await two.receive_some() == b"x" * 100
        assert await two.receive_some() == b""
        assert trio.current_time() == pytest.approx(1.0)

    on_link(Link(bytes_per_s=100), body)


def test_a_writer_waits_for_a_reader_whatever_the_bandwidth() -> None:
    async def body(one: MemoryStream, two: MemoryStream) -> None:
        with trio.move_on_after(1000) as scope:
            await one.send_all(b"x" * 150)
        assert scope.cancelled_caught
        assert await two.receive_some() == b"x" * 100

    on_link(Link(bytes_per_s=1000), body, buffer_bytes=100)


def test_a_severed_connection_tells_nobody() -> None:
    async def body(one: MemoryStream, two: MemoryStream) -> None:
        await one.send_all(b"on its way")
        one.sever(give_up_s=60)
        await one.send_all(b"lost")
        two.close(reset=True)
        with trio.move_on_after(59) as scope:
            await one.receive_some()
        assert scope.cancelled_caught
        await one.send_all(b"lost as well")
        with pytest.raises(trio.BrokenResourceError):
            await one.receive_some()
        assert trio.current_time() == pytest.approx(60)

    on_link(Link(), body)


def test_what_is_on_its_way_when_the_network_vanishes_arrives() -> None:
    async def body(one: MemoryStream, two: MemoryStream) -> None:
        await one.send_all(b"on its way")
        two.sever()
        with assert_checkpoints():
            assert await two.receive_some() == b"on its way"
        assert two.receive_nowait() is None
        one.send_eof()
        with trio.move_on_after(3600) as scope:
            await two.receive_some()
        assert scope.cancelled_caught

    on_link(Link(delay_s=0.1), body)
