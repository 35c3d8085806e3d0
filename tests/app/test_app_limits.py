"""Every limit, by name: when it fires, what the client is told, what the engines see."""

from __future__ import annotations

import pytest
import trio

from narwhal.model import Limit, Phase, Terminal
from narwhal.net import ByteStream
from narwhal.net.pool import IDLE_EXPIRY

from stub_fleet import Play, Script, good
from worlds import World, fleet_config, play

ASK = {"model": "m", "prompt": "hello", "max_tokens": 20}
STREAM = ASK | {"stream": True}


def hang(leg: str) -> Script:
    async def script(play_: Play) -> None:
        if play_.leg == leg:
            await play_.hang()
        await good(play_)

    return script


def test_prefill() -> None:
    async def body(world: World) -> None:
        world.script(hang("prefill"))
        answer = await world.post(ASK)
        assert (answer.status, answer.error["code"]) == (504, "prefill")
        assert "within 6 s (serving.prefill_timeout_s)" in answer.error["message"]
        assert "on p0" in answer.error["message"]
        assert answer.seconds == pytest.approx(6, abs=0.01)
        assert world.row.limit is Limit.PREFILL
        assert world.spent(Phase.PREFILL) == pytest.approx(6, abs=0.01)
        await world.settle(0.05)
        assert world.engine("p0").aborted["prefill"] == 1

    play(body, fleet_config(prefill_timeout_s=6.0))


@pytest.mark.parametrize("commit", ["before_decode", "first_token"])
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("after", ["nothing", "head", "role", "comment"])
def test_first_token(commit: str, stream: bool, after: str) -> None:
    async def body(world: World) -> None:
        async def script(play_: Play) -> None:
            if play_.leg != "decode":
                await good(play_)
                return
            if after != "nothing":
                await play_.hdr()
            if after == "role":
                choice = {"index": 0, "delta": {"role": "assistant", "content": ""}}
                await play_.event({"id": "x", "choices": [choice]})
            if after == "comment":
                await play_.chunk(b": ping\n\n")
            await play_.hang()

        world.script(script)
        path = "/v1/chat/completions" if after == "role" else "/v1/completions"
        ask = {"model": "m", "stream": stream, "max_tokens": 3}
        ask |= (
            {"messages": [{"role": "user", "content": "hi"}]} if "chat" in path else {"prompt": "x"}
        )
        answer = await world.post(ask, path)
        assert answer.seconds == pytest.approx(2.5, abs=0.01)
        assert answer.error["code"] == "first_token"
        assert answer.error["narwhal"]["limit"] == "first_token"
        assert "engine.first_token_timeout_s" in answer.error["message"]
        if stream and commit == "before_decode":
            assert (answer.status, answer.complete, answer.done) == (200, False, False)
        else:
            assert (answer.status, answer.complete) == (504, True)
        await world.settle(0.05)
        assert world.engine("d0").aborted["decode"] == 1

    play(body, fleet_config(stream_commit=commit))


@pytest.mark.parametrize("stream", [True, False])
def test_read_gap(stream: bool) -> None:
    async def body(world: World) -> None:
        async def script(play_: Play) -> None:
            if play_.leg != "decode":
                await good(play_)
                return
            await play_.hdr()
            await play_.tokens(5, every=4.9)
            for _ in range(3):
                await play_.wait(4.9)
                await play_.chunk(b": still here\n\n")
            await play_.send(b"7\r\ndata: {\r\n")
            await play_.hang()

        world.script(script)
        answer = await world.post(ASK | {"stream": stream})
        assert answer.error["code"] == "read_gap"
        assert answer.seconds == pytest.approx(8 * 4.9 + 5, abs=0.01)
        assert answer.status == (200 if stream else 504)
        if stream:
            assert answer.text.split() == [f"t{n}" for n in range(5)]
            assert not answer.complete
            assert not answer.done

    play(body, fleet_config(engine={"decode_read_timeout_s": 5.0, "first_token_timeout_s": 6.0}))


def test_without_a_gap_limit_the_request_deadline_bounds_the_stream() -> None:
    async def body(world: World) -> None:
        async def script(play_: Play) -> None:
            if play_.leg == "decode":
                await play_.hdr()
                await play_.tokens(1)
                await play_.hang()
            await good(play_)

        world.script(script)
        answer = await world.post(STREAM)
        assert answer.seconds == pytest.approx(600, abs=0.1)
        assert answer.error["code"] == "expired"
        assert world.row.terminal is Terminal.EXPIRED
        assert world.row.limit is Limit.REQUEST

    play(body, fleet_config(engine={"decode_read_timeout_s": 0}))


def test_no_hidden_timeout_caps_a_slow_stream() -> None:
    async def body(world: World) -> None:
        async def script(play_: Play) -> None:
            if play_.leg == "decode":
                await play_.hdr()
                await play_.tokens(1)
                await play_.tokens(44, first=1, every=20)
                await play_.finish(45)
            else:
                await good(play_)

        world.script(script)
        answer = await world.post(STREAM | {"max_tokens": 45})
        assert answer.done
        assert answer.seconds == pytest.approx(880, abs=1)

    engine = {"decode_read_timeout_s": 30.0}
    play(body, fleet_config(request_timeout_s=1200.0, engine=engine))


@pytest.mark.parametrize("stream", [True, False])
def test_the_whole_deadline_holds_although_no_read_is_slow(stream: bool) -> None:
    async def body(world: World) -> None:
        async def script(play_: Play) -> None:
            if play_.leg == "decode":
                await play_.hdr()
                await play_.tokens(10_000, every=0.5)
            await good(play_)

        world.script(script)
        answer = await world.post(ASK | {"stream": stream})
        assert answer.seconds == pytest.approx(5, abs=0.01)
        if stream:
            assert answer.error["code"] == "expired"
            assert not answer.complete
        else:
            assert (answer.status, answer.error["code"]) == (504, "request_expired")

    play(body, fleet_config(request_timeout_s=5.0))


def test_a_client_that_does_not_read_is_closed_at_the_deadline_and_no_sooner() -> None:
    async def body(world: World) -> None:
        async def script(play_: Play) -> None:
            if play_.leg == "decode":
                await play_.hdr()
                for n in range(10_000):
                    await play_.event(play_.token(n, text="x" * 1000))
            await good(play_)

        world.script(script)
        client = await world.connect()
        await client.ask(STREAM)
        await trio.sleep(599)
        assert not world.rows
        await trio.sleep(1.01)
        assert world.row.terminal is Terminal.EXPIRED
        assert world.row.limit is Limit.REQUEST, "the gap limit does not run while writing"
        await world.settle(0.05)
        assert world.engine("d0").aborted["decode"] == 1
        assert world.server.connections == 0
        client.close()

    play(body, fleet_config(engine={"decode_read_timeout_s": 5.0}))


def test_queue() -> None:
    async def body(world: World) -> None:
        world.script(hang("decode"))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(world.post, ASK)
            await trio.sleep(0.1)
            answer = await world.post(ASK)
            assert (answer.status, answer.error["code"]) == (504, "queue_expired")
            assert answer.seconds == pytest.approx(2, abs=0.01)
            assert "serving.queue_timeout_s" in answer.error["message"]
        assert [row.terminal for row in world.rows] == [Terminal.EXPIRED, Terminal.FAILED]
        assert len(world.stubs.legs("prefill")) == 1

    config = fleet_config(
        max_connections=1,
        queue_capacity=1,
        queue_timeout_s=2.0,
        prefill_concurrency=1,
        decode_concurrency=1,
        engine={"first_token_timeout_s": 10.0},
    )
    play(body, config)


def test_tokenize_falls_back_to_the_estimate() -> None:
    async def body(world: World) -> None:
        world.script(hang("tokenize"))
        answer = await world.post(ASK | {"prompt": "x" * 380})
        assert answer.status == 200
        assert answer.seconds == pytest.approx(2, abs=0.01)
        assert world.row.tokenize_fallback
        assert world.row.limits_fired == (Limit.TOKENIZE,)
        assert world.spent(Phase.TOKENIZE) == pytest.approx(2, abs=0.01)

    play(body)


def test_one_hung_tokenizer_is_not_asked_again_and_again() -> None:
    async def body(world: World) -> None:
        world.script(hang("tokenize"), "d0")
        seconds = [(await world.post(ASK)).seconds for _ in range(20)]
        assert sum(second > 1 for second in seconds) == 1

    play(body, fleet_config(decode=2))


def test_connect_is_a_limit_of_its_own() -> None:
    async def body(world: World) -> None:
        connect = world.network.connect

        async def never(host: str, port: int) -> ByteStream:
            if port == 9200:
                await trio.sleep_forever()
            return await connect(host, port)

        world.router.core.engines["d0"].pools.data._connect = never
        answer = await world.post(ASK)
        assert (answer.status, answer.error["narwhal"]["limit"]) == (504, "connect")
        assert "engine.connect_timeout_s" in answer.error["message"]
        assert answer.seconds == pytest.approx(1, abs=0.01)
        assert len(world.stubs.legs("release")) == 0

    play(body, fleet_config(engine={"connect_timeout_s": 1.0, "tokenize": False}))


def test_an_exhausted_pool_is_nobody_elses_fault() -> None:
    async def body(world: World) -> None:
        pool = world.router.core.engines["d0"].pools.data
        pool.limit = 1
        world.script(hang("decode"))
        async with trio.open_nursery() as nursery:
            first = await world.connect()
            await first.ask(ASK)
            await trio.sleep(0.1)
            answer = await world.post(ASK)
            assert (answer.status, answer.error["code"]) == (503, "pool_exhausted")
            assert "engine.pool_timeout_s" in answer.error["message"]
            assert len(world.rows[0].attempts) == 1, "never retried"
            assert not world.router.core.roster.trust.doubtful(
                "d0", Phase.DECODE, trio.current_time()
            )
            first.close()
            nursery.cancel_scope.cancel(reason="test")

    engine = {"first_token_timeout_s": 60.0, "pool_timeout_s": 1.0, "tokenize": False}
    play(body, fleet_config(max_attempts=3, engine=engine))


@pytest.mark.parametrize("cap", [0.0, 5.0])
def test_a_handoff_is_not_used_past_its_age(cap: float) -> None:
    async def body(world: World) -> None:
        async def script(play_: Play) -> None:
            if play_.leg == "decode":
                await play_.hdr()
                await play_.tokens(1)
                await play_.tokens(1, first=1, every=100)
                await play_.finish(2)
            else:
                await good(play_)

        world.script(script)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(world.post, ASK)
            await trio.sleep(0.1)
            answer = await world.post(ASK)
            limit = cap or 30.0
            assert answer.seconds == pytest.approx(limit, abs=0.01)
            assert (answer.status, answer.error["code"]) == (504, "handoff_expired")
            setting = "serving.handoff_timeout_s" if cap else "engine.kv_lease_s"
            assert setting in answer.error["message"]
        assert len(world.stubs.legs("decode")) == 1

    engine = {"decode_read_timeout_s": 0}
    play(body, fleet_config(decode_concurrency=1, handoff_timeout_s=cap, engine=engine))


@pytest.mark.parametrize("stream", [True, False])
def test_a_first_token_after_the_lease_is_not_trusted(stream: bool) -> None:
    """The decoder has the request in time, and pulls the KV cache when it has room for it."""

    async def body(world: World) -> None:
        async def script(play_: Play) -> None:
            if play_.leg == "decode":
                await play_.hdr()
                await play_.wait(3.0)
                await play_.tokens(1)
                await play_.finish(1)
            else:
                await good(play_)

        world.script(script)
        answer = await world.post(ASK | {"stream": stream})
        assert answer.seconds == pytest.approx(2.0, abs=0.01)
        assert answer.error["code"] == "handoff_expired"
        assert "engine.kv_lease_s" in answer.error["message"]
        assert answer.error["narwhal"]["limit"] == Limit.HANDOFF
        assert not world.router.core.roster.trust.doubtful("d0", Phase.DECODE, trio.current_time())

    engine = {"first_token_timeout_s": 60.0, "kv_lease_s": 2.0}
    play(body, fleet_config(engine=engine), lease=2.0)


@pytest.mark.parametrize("fresh", [False, True])
@pytest.mark.parametrize("limit", [Limit.HANDOFF, Limit.FIRST_TOKEN])
def test_a_decoder_that_does_not_read_its_request_is_given_up_at_the_nearest_limit(
    limit: Limit, fresh: bool
) -> None:
    """Half of it is written, on a connection that was there or on one that had to be opened."""
    by_cap = limit is Limit.HANDOFF

    async def body(world: World) -> None:
        decoder = world.engine("d0")
        decoder.reads_again_after_s = 100.0
        await world.post(ASK)
        connect = world.network.connect

        async def unread(host: str, port: int) -> ByteStream:
            return await connect(host, 9999 if port == 9200 else port)

        if fresh:
            world.router.core.engines["d0"].pools.data.close_expired()
            await trio.sleep(IDLE_EXPIRY + 1)
            world.network.listen("127.0.0.1", 9999)
            world.router.core.engines["d0"].pools.data._connect = unread
        answer = await world.post(ASK | {"prompt": "x" * 1_000_000})
        assert answer.seconds == pytest.approx(2.0, abs=0.01)
        assert answer.error["code"] == ("handoff_expired" if by_cap else "first_token")
        assert answer.error["narwhal"]["limit"] == limit
        assert ("serving.handoff_timeout_s" if by_cap else "first_token") in answer.error["message"]
        doubtful = world.router.core.roster.trust.doubtful("d0", Phase.DECODE, trio.current_time())
        assert doubtful is not by_cap
        assert len(world.stubs.legs("decode")) == 1
        decoder.reads_again_after_s = 0.0
        await world.settle(200)

    engine = {"first_token_timeout_s": 60.0 if by_cap else 2.0, "tokenize": False}
    cap = 2.0 if by_cap else 20.0
    play(body, fleet_config(handoff_timeout_s=cap, max_attempts=1, engine=engine))


def test_a_slow_connection_cannot_age_a_handoff_past_its_cap() -> None:
    async def body(world: World) -> None:
        connect = world.network.connect

        async def late(host: str, port: int) -> ByteStream:
            if port == 9200:
                # Longer than the cap, in a way that no scope can cut short.
                with trio.CancelScope(shield=True, deadline=trio.current_time() + 3):
                    await trio.sleep_forever()
            return await connect(host, port)

        world.router.core.engines["d0"].pools.data._connect = late
        answer = await world.post(ASK)
        assert answer.error["code"] == "handoff_expired"
        assert not world.stubs.legs("decode")
        await world.settle(5)  # the release leg meets the same slow network

    engine = {"first_token_timeout_s": 60.0, "tokenize": False}
    play(body, fleet_config(handoff_timeout_s=2.0, engine=engine))


def test_deadlines_do_not_restart_with_a_retry() -> None:
    async def body(world: World) -> None:
        world.script(hang("prefill"))
        answer = await world.post(ASK)
        assert answer.error["code"] == "request_expired"
        assert answer.seconds == pytest.approx(10, abs=0.01)
        assert len(world.row.attempts) == 2
        assert world.router.core.credits.available == 9

    play(
        body, fleet_config(prefill=2, max_attempts=3, request_timeout_s=10.0, prefill_timeout_s=6.0)
    )
