"""A router inside a Trio program, and the requests of that program."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from narwhal import ConfigError, Limit, RequestFailed, Route, Terminal, open_router
from narwhal.net import MemoryNetwork

from stub_fleet import Play, Script, StubFleet, good
from worlds import World, fleet_config, play

PROMPT = {"model": "m", "prompt": "hello", "max_tokens": 4}
CHAT = {"model": "m", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}
LONG = PROMPT | {"max_tokens": 50}


def decoding(play_it: Callable[[Play], Awaitable[None]]) -> Script:
    """A healthy engine but for its decode legs."""

    async def script(play_: Play) -> None:
        await (play_it if play_.leg == "decode" else good)(play_)

    return script


@decoding
async def slow(play_: Play) -> None:
    await play_.hdr()
    await play_.tokens(50, every=0.1)
    await play_.finish(50)


@decoding
async def breaks_off(play_: Play) -> None:
    await play_.hdr()
    await play_.tokens(2)
    await play_.wait(0.1)
    play_.rst()


def text(event: dict[str, Any]) -> str:
    choice = event["choices"][0]
    return str(choice["text"] if "text" in choice else choice["delta"]["content"])


async def read(world: World, request: dict[str, Any], **more: Any) -> list[str]:
    async with world.router.stream(request, **more) as events:
        return [text(event) async for event in events if event["choices"]]


# Requests of the application's own


@pytest.mark.parametrize("request_", [PROMPT, CHAT])
def test_a_stream_is_an_iterator_of_decoded_events(request_: dict[str, Any]) -> None:
    async def body(world: World) -> None:
        assert await read(world, request_) == [" t0", " t1", " t2", " t3"]
        route = Route.CHAT if "messages" in request_ else Route.COMPLETIONS
        assert (world.row.route, world.row.terminal) == (route, Terminal.COMPLETED)
        assert world.row.completion_tokens == 4

    play(body)


def test_a_whole_answer_is_what_a_client_would_get() -> None:
    async def body(world: World) -> None:
        for request, path in ((PROMPT, "/v1/completions"), (CHAT, "/v1/chat/completions")):
            own = await world.router.complete(request)
            assert own == (await world.post(request, path)).json

    play(body)


def test_the_route_can_be_said() -> None:
    async def body(world: World) -> None:
        with pytest.raises(RequestFailed, match="'messages' is missing"):
            await world.router.complete(PROMPT, route=Route.CHAT)

    play(body)


def test_usage_is_for_those_who_ask() -> None:
    async def body(world: World) -> None:
        for options in ({}, {"stream_options": {"include_usage": True}}):
            async with world.router.stream(PROMPT | options) as events:
                last = [event async for event in events][-1]
            assert ("usage" in last) is bool(options)

    play(body)


@pytest.mark.parametrize("payload", [b'{"choices": [', b'"\xff\xfe"', b"[1]", b"7", b"[" * 5000])
def test_an_event_that_cannot_be_read_fails_the_request(payload: bytes) -> None:
    """After the first token events are passed on as they are: nobody has looked at them yet."""

    async def body(world: World) -> None:
        async def script(play_: Play) -> None:
            if play_.leg != "decode":
                await good(play_)
                return
            await play_.hdr()
            await play_.tokens(2)
            await play_.wait(0.1)
            await play_.chunk(b"data: %b\n\n" % payload)
            await play_.tokens(2, first=2, every=0.1)
            await play_.finish(4)

        world.script(script)
        with pytest.raises(RequestFailed, match="not JSON") as caught:
            await read(world, PROMPT)
        assert (caught.value.status, caught.value.code) == (502, "stream_malformed")
        assert (world.row.terminal, world.row.code) == (Terminal.FAILED, "stream_malformed")

    play(body)


def test_a_callers_deadline_ends_the_request_on_the_engine() -> None:
    async def body(world: World) -> None:
        world.script(slow)
        began = trio.current_time()
        with pytest.raises(trio.TooSlowError), trio.fail_after(1.05):
            await read(world, LONG)
        assert trio.current_time() - began == pytest.approx(1.05)
        # It is over when the block has been left, not a moment later.
        assert world.router.core.ledger.total == 0
        assert (world.row.terminal, world.row.code) == (Terminal.CANCELLED, "cancelled")
        await trio.sleep(0.01)
        (seen,) = world.stubs.legs("decode")
        assert seen.aborted_at == pytest.approx(began + 1.05)

    play(body)


@pytest.mark.parametrize("waits_for", ["prefill", "decode", "tokenize"])
def test_a_callers_cancel_is_heard_in_every_phase(waits_for: str) -> None:
    async def body(world: World) -> None:
        async def hangs(play_: Play) -> None:
            await (play_.hang() if play_.leg == waits_for else good(play_))

        world.script(hangs)
        with trio.move_on_after(0.5) as scope:
            await world.router.complete(PROMPT)
        assert scope.cancelled_caught
        assert world.row.terminal is Terminal.CANCELLED
        assert world.router.core.ledger.total == 0
        await trio.sleep(0.01)
        assert sum(stub.aborted[waits_for] for stub in world.stubs.engines.values()) == 1

    play(body)


@pytest.mark.parametrize("how", ["break", "exception"])
def test_leaving_the_block_early_ends_the_request_on_the_engine(how: str) -> None:
    async def body(world: World) -> None:
        world.script(slow)

        async def leave() -> None:
            async with world.router.stream(LONG) as events:
                async for _ in events:
                    if how == "break":
                        break
                    raise LookupError("found what I was looking for")

        if how == "break":
            await leave()
        else:
            with pytest.raises(LookupError, match="looking for"):
                await leave()
        left = trio.current_time()
        assert world.router.core.ledger.total == 0
        assert world.row.code == "cancelled"
        await trio.sleep(0.01)
        assert world.stubs.legs("decode")[0].aborted_at == pytest.approx(left)

    play(body)


def test_an_exception_of_the_routers_block_comes_out_as_it_was_raised() -> None:
    async def main() -> None:
        config, network = fleet_config(), MemoryNetwork()
        error = LookupError("mine")
        with pytest.raises(LookupError) as caught:
            async with open_router(config, environ={}, connect=network.connect):
                raise error
        assert caught.value is error
        with trio.move_on_after(1) as scope:
            async with open_router(config, environ={}, connect=network.connect):
                await trio.sleep_forever()
        assert scope.cancelled_caught

    trio.run(main, clock=MockClock(autojump_threshold=0))


def test_what_cannot_be_served_is_said_on_entry() -> None:
    async def main() -> None:
        manager = open_router(fleet_config(admission="predictive"), environ={})
        with pytest.raises(ConfigError, match=r'set serving\.admission to "open"'):
            await manager.__aenter__()

    trio.run(main)


ENGINE_SAYS = {"error": {"message": "too long", "type": "BadRequestError", "code": 400}}


def test_a_failure_carries_the_outcome() -> None:
    async def body(world: World) -> None:
        world.script(decoding(lambda play_: play_.status(400, ENGINE_SAYS)))
        with pytest.raises(RequestFailed) as failed:
            await world.router.complete(PROMPT)
        assert (failed.value.code, failed.value.status) == ("engine_rejected", 400)
        assert failed.value.outcome.terminal is Terminal.INVALID
        assert json.loads(failed.value.outcome.passthrough or b"") == ENGINE_SAYS
        world.script(decoding(lambda play_: play_.hang()))
        with pytest.raises(RequestFailed) as failed:
            await read(world, PROMPT)
        assert failed.value.outcome.limit is Limit.FIRST_TOKEN
        assert "engine.first_token_timeout_s" in str(failed.value)

    play(body)


def test_a_stream_that_breaks_off_gives_what_there_was_and_then_raises() -> None:
    async def body(world: World) -> None:
        world.script(breaks_off)
        seen = []
        with pytest.raises(RequestFailed) as failed:
            async with world.router.stream(PROMPT) as events:
                async for event in events:
                    seen.append(text(event))  # noqa: PERF401 - what came before it raised counts
        assert seen == [" t0", " t1"]
        assert failed.value.code == "engine_closed"

    play(body)


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (PROMPT | {"model": "other"}, "model_not_found"),
        (PROMPT | {"n": 2}, "invalid_request"),
        (PROMPT | {"user": object()}, "invalid_request"),
        ({}, "invalid_request"),
    ],
)
def test_a_bad_request_fails_as_over_http(request_: dict[str, Any], code: str) -> None:
    async def body(world: World) -> None:
        with pytest.raises(RequestFailed) as failed:
            await world.router.complete(request_)
        assert failed.value.code == code
        assert not world.stubs.seen

    play(body)


def test_who_does_not_take_events_holds_the_engine_back() -> None:
    async def body(world: World) -> None:
        sent = [0]

        @decoding
        async def flood(play_: Play) -> None:
            await play_.hdr()
            for n in range(5000):
                await play_.event(play_.token(n, text="x" * 1000))
                sent[0] += 1
            await play_.finish(5000)

        world.script(flood)
        async with world.router.stream(PROMPT) as events:
            await anext(events)
            await trio.sleep(100)
            assert sent[0] < 1000, "what the buffers on the way hold, and no more"
            assert sum([1 async for _ in events]) == 5000 - 1

    play(body)


def test_two_streams_at_once_do_not_wait_for_each_other() -> None:
    async def body(world: World) -> None:
        world.script(slow)
        router = world.router
        async with router.stream(LONG) as first, router.stream(LONG) as second:
            pairs = [
                (text(await anext(first)), text(await anext(second)))  # by turns
                for _ in range(50)
            ]
            assert pairs == [(f" t{n}", f" t{n}") for n in range(50)]
            with pytest.raises(StopAsyncIteration):
                await anext(first)
            with pytest.raises(StopAsyncIteration):
                await anext(second)
        assert trio.current_time() == pytest.approx(5.0, abs=0.1)
        assert [row.terminal for row in world.rows] == [Terminal.COMPLETED] * 2

    play(body)


@pytest.mark.parametrize(("grace", "last"), [(10.0, "completed"), (1.0, "shutdown")])
def test_drain_gives_grace_and_then_ends(grace: float, last: str) -> None:
    async def body(world: World) -> None:
        world.script(slow)
        ends: list[tuple[str, int]] = []

        async def ask() -> None:
            code = "completed"
            try:
                await read(world, LONG)
            except RequestFailed as failed:
                code = failed.code
            ends.append((code, round(trio.current_time())))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await trio.sleep(1)
            world.router.stop_admitting()
            nursery.start_soon(ask)
            assert await world.router.drain(grace) is (last == "completed")
        assert ends == [("draining", 1), (last, 5 if last == "completed" else 2)]
        assert world.router.not_ready() == ["the router is shutting down"]

    play(body)


def test_leaving_the_routers_block_ends_what_runs_elsewhere() -> None:
    async def main() -> None:
        config, network = fleet_config(), MemoryNetwork()
        stubs = StubFleet(network)
        codes: list[str] = []
        async with trio.open_nursery() as nursery:
            for spec in config.engines:
                stub = stubs.add(spec.iid, spec.port)
                stub.script = slow
                await nursery.start(stub.run)
            async with open_router(config, environ={}, connect=network.connect) as router:

                async def ask() -> None:
                    try:
                        await router.complete(LONG)
                    except RequestFailed as failed:
                        codes.append(failed.code)

                nursery.start_soon(ask)
                await trio.sleep(1)
            await trio.sleep(0.01)
            assert codes == ["shutdown"]
            assert stubs.inflight == 0
            nursery.cancel_scope.cancel(reason="the test is over")

    trio.run(main, clock=MockClock(autojump_threshold=0))
