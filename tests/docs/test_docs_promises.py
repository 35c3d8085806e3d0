"""What the pages promise of requests, played: how each ends, and what becomes of its handoff."""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio
from docs_pages import DOCS, table

from stub_fleet import Play, Script, good
from worlds import World, fleet_config, play

CANCELLATION = (DOCS / "cancellation.md").read_text(encoding="utf-8")
ASK = {"model": "m", "prompt": "hello", "max_tokens": 4}
STREAM = ASK | {"stream": True}
Scene = Callable[[World], Awaitable[None]]


def on(leg: str, act: Callable[[Play], Any], *, engine: str | None = None) -> Script:
    """A healthy engine but for one kind of leg."""

    async def script(play_: Play) -> None:
        if play_.leg != leg or engine not in (None, play_.engine.name):
            await good(play_)
            return
        result = act(play_)
        if result is not None:
            await result

    return script


async def endless(play_: Play) -> None:
    await play_.hdr()
    await play_.tokens(10**6, every=0.5)


async def flood(play_: Play) -> None:
    await play_.hdr()
    for n in range(10**4):
        await play_.event(play_.token(n, text="x" * 1000))


# How requests end


async def completes(world: World) -> None:
    assert (await world.post(STREAM)).done


async def is_not_what_the_api_takes(world: World) -> None:
    assert (await world.post(ASK | {"n": 2})).status == 400


async def finds_the_router_full(world: World) -> None:
    world.script(on("decode", endless))
    clients = [await world.connect() for _ in range(2)]
    for client in clients:
        await client.ask(ASK)
        await trio.sleep(0.1)
    assert (await world.post(ASK)).status == 429
    for client in clients:
        client.close()
        await trio.sleep(0.1)


async def comes_while_the_router_stops(world: World) -> None:
    world.router.stop_admitting()
    answer = await world.post(ASK)
    assert (answer.status, answer.headers["connection"]) == (503, "close")


async def is_left_by_its_client(world: World) -> None:
    world.script(on("decode", endless))
    client = await world.connect()
    await client.ask(STREAM)
    await trio.sleep(1)
    client.stream.send_eof()
    await trio.sleep(0.1)
    client.close()


async def comes_too_slowly(world: World) -> None:
    client = await world.connect()
    head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 1000\r\n\r\n"
    await client.stream.send_all(head)
    assert (await client.answer()).status == 408
    client.close()
    await trio.sleep(0.1)


async def is_left_by_its_application(world: World) -> None:
    world.script(on("decode", endless))
    with trio.move_on_after(1):
        await world.router.complete(ASK)


async def outlasts_its_deadline(world: World) -> None:
    world.script(on("decode", endless))
    answer = await world.post(ASK)
    assert (answer.status, round(answer.seconds)) == (504, 600)


async def outlasts_its_deadline_as_a_stream(world: World) -> None:
    world.script(on("decode", endless))
    cut(await world.post(STREAM), "expired")


async def is_not_read(world: World) -> None:
    world.script(on("decode", flood))
    client = await world.connect()
    await client.ask(STREAM)
    await trio.sleep(600.1)
    assert world.server.connections == 0
    client.close()


async def waits_too_long(world: World) -> None:
    world.script(on("decode", endless))
    first = await world.connect()
    await first.ask(ASK)
    await trio.sleep(0.1)
    assert (await world.post(ASK)).status == 504
    first.close()
    await trio.sleep(0.1)


async def has_a_handoff_that_grows_old(world: World) -> None:
    world.router.core.engines["d0"].pools.data._connect = never_connects
    answer = await world.post(ASK)
    assert (answer.status, answer.error["narwhal"]["limit"]) == (504, "handoff")


async def never_connects(host: str, port: int) -> Any:
    await trio.sleep_forever()


async def has_a_leg_that_fails(world: World) -> None:
    world.script(on("decode", lambda play_: play_.rst()))
    assert (await world.post(ASK)).status == 502
    cut(await world.post(STREAM), "engine_closed")


async def is_refused_by_an_engine(world: World) -> None:
    says = {"error": {"message": "too long", "code": 400}}
    world.script(on("decode", lambda play_: play_.status(400, says)))
    assert (await world.post(ASK)).error["message"] == "too long"
    cut(await world.post(STREAM), 400)


async def outlasts_the_grace(world: World) -> None:
    world.script(on("decode", endless))
    async with trio.open_nursery() as nursery:

        async def ask() -> None:
            cut(await world.post(STREAM), "shutdown")

        nursery.start_soon(ask)
        await trio.sleep(1)
        assert not await world.router.drain(2.0)


def cut(answer: Any, code: object) -> None:
    """An event and a cut."""
    assert answer.status == 200
    assert answer.error["code"] == code
    assert not answer.done
    assert not answer.complete


ONE_SEAT = {
    "max_connections": 1,
    "queue_capacity": 1,
    "queue_timeout_s": 700.0,
    "prefill_concurrency": 1,
    "decode_concurrency": 1,
}
ENDS: dict[str, tuple[Scene, dict[str, Any]]] = {
    "It completes.": (completes, {}),
    "It is not what the API takes.": (is_not_what_the_api_takes, {}),
    "The router holds as many requests as it may.": (finds_the_router_full, ONE_SEAT),
    "The router is shutting down when it comes": (comes_while_the_router_stops, {}),
    "The client closes its connection, or only its sending half.": (is_left_by_its_client, {}),
    "The client sends its body too slowly": (comes_too_slowly, {}),
    "An embedding application cancels": (is_left_by_its_application, {}),
    "`serving.request_timeout_s` passes.": (outlasts_its_deadline, {}),
    "`serving.request_timeout_s` passes": (outlasts_its_deadline_as_a_stream, {}),
    "The client does not read.": (is_not_read, {}),
    "Its wait in the queue is over.": (waits_too_long, ONE_SEAT | {"queue_timeout_s": 2.0}),
    "Its handoff grows too old": (has_a_handoff_that_grows_old, {"handoff_timeout_s": 1.0}),
    "A leg fails or outlasts its limit": (has_a_leg_that_fails, {}),
    "An engine answers 4xx.": (is_refused_by_an_engine, {}),
    "The router was told to stop": (outlasts_the_grace, {}),
}


def row_of(what: str) -> list[str]:
    rows = [row for row in table(CANCELLATION, "## What ends a request") if row[0].startswith(what)]
    assert len(rows) == 1, what
    return rows[0]


@pytest.mark.parametrize("what", ENDS)
def test_a_request_ends_as_the_page_says(what: str) -> None:
    scene, serving = ENDS[what]
    says = row_of(what)[3]
    if says == "the same":  # as in the row above
        says = row_of("`serving.request_timeout_s` passes")[3]

    async def body(world: World) -> None:
        await scene(world)
        row = world.rows[0]  # the first to end, where a scene needs several
        assert f"`{row.terminal}`" in says
        assert row.code is None or f"`{row.code}`" in says or "code" in says or "others" in says

    play(body, fleet_config(engine={"tokenize": False}, **serving))


def test_every_end_on_the_page_is_played_or_a_process_s() -> None:
    rows = [row[0] for row in table(CANCELLATION, "## What ends a request")]
    played_rows = {row for row in rows for what in ENDS if row.startswith(what)}
    assert set(rows) - played_rows == {"A second signal.", "The process is killed."}


# What becomes of the handoff


async def refuse(play_: Play) -> None:
    await play_.status(503, b"{}")


async def drop(play_: Play) -> None:
    play_.rst()


async def answer_then_drop(play_: Play) -> None:
    await play_.hdr()
    await play_.wait(0.1)
    play_.rst()


async def leave_while_it_waits(world: World) -> None:
    client = await world.connect()
    await client.ask(ASK)
    await trio.sleep(0.5)
    client.close()


async def just_ask(world: World) -> None:
    await world.post(ASK)


HANDOFFS: dict[str, list[tuple[Callable[[Play], Any], Scene]]] = {
    "with a decoder that refused": [(refuse, just_ask)],
    "with a decoder that dropped": [(drop, just_ask), (Play.hang, just_ask)],
    "with a decode request that was written": [(Play.hang, leave_while_it_waits)],
    "after a decoder answered 200": [(answer_then_drop, just_ask), (endless, leave_while_it_waits)],
}


@pytest.mark.parametrize(
    ("when", "case"),
    [(when, case) for when, cases in HANDOFFS.items() for case in range(len(cases))],
)
def test_a_handoff_is_released_when_the_page_says_so(when: str, case: int) -> None:
    act, scene = HANDOFFS[when][case]
    rows = table(CANCELLATION, "## KV cache between the legs")
    (says,) = (row[1] for row in rows if row[0].startswith(when))

    async def body(world: World) -> None:
        world.script(on("decode", act, engine="d0"))
        await scene(world)
        left = trio.current_time()
        await world.settle()
        released = world.stubs.legs("release")
        assert len(released) == (0 if says.startswith("nothing") else 1)
        assert [leg.engine for leg in released] in ([], ["d1"]), "another decoder"
        assert all(leg.at - left < 1.0 for leg in released)
        assert world.stubs.left_staged == 0
        totals = world.router.telemetry.totals()
        assert (totals.kv_released, totals.kv_orphaned) == (len(released), 0)

    play(body, fleet_config(decode=2))


def test_a_handoff_without_a_decode_request_is_released() -> None:
    rows = table(CANCELLATION, "## KV cache between the legs")
    assert rows[0][0].startswith("before a decode request was written")
    assert rows[0][1] == "a release leg"

    async def body(world: World) -> None:
        world.router.core.engines["d0"].pools.data._connect = never_connects
        await leave_while_it_waits(world)
        await world.settle()
        assert [leg.engine for leg in world.stubs.legs("release")] == ["d1"]

    play(body, fleet_config(decode=2))


# The ends of streams


@pytest.mark.parametrize("first", [True, False])
def test_what_is_malformed_passes_after_the_first_token_only(first: bool) -> None:
    malformed = b'data: {"error" is not JSON\n\n'

    async def body(world: World) -> None:
        async def script(play_: Play) -> None:
            await play_.hdr()
            if not first:
                await play_.tokens(1)
            await play_.chunk(malformed)
            await play_.tokens(1)
            await play_.finish()

        world.script(on("decode", script))
        answer = await world.post(STREAM)
        if first:
            cut(answer, "stream_malformed")
        else:
            assert answer.done
            assert malformed in answer.body

    play(body)


@pytest.mark.parametrize("stream", [True, False])
def test_the_engine_s_done_is_what_counts(stream: bool) -> None:
    async def body(world: World) -> None:
        async def no_done(play_: Play) -> None:
            await play_.hdr()
            await play_.event(play_.token(0, finish_reason="stop"))
            await play_.send(b"0\r\n\r\n")

        assert (await world.post(ASK | {"stream": stream})).status == 200  # no finish_reason
        world.script(on("decode", no_done))
        answer = await world.post(ASK | {"stream": stream})
        if stream:
            cut(answer, "stream_cut")
        else:
            assert (answer.status, answer.error["code"]) == (502, "stream_cut")

    play(body)


def test_the_commit_comes_before_decode_or_with_the_first_token() -> None:
    async def body(world: World) -> None:
        async def late(play_: Play) -> None:
            await play_.wait(2)
            await play_.hdr()
            await play_.tokens(1)
            await play_.finish()

        world.script(on("decode", late))
        client = await world.connect()
        await client.ask(STREAM)
        await client.head()
        early = world.config.serving.stream_commit == "before_decode"
        assert round(trio.current_time() - client.started) == (0 if early else 2)
        await trio.sleep(5)
        client.close()

    play(body, fleet_config(stream_commit="before_decode"))
    play(body, fleet_config(stream_commit="first_token"))


def test_the_error_event_on_the_page_is_a_real_one() -> None:
    page = (DOCS / "http-api.md").read_text(encoding="utf-8")
    shown = re.search(r"^data: (\{.*)\{\.\.\.\}\}\}$", page, re.MULTILINE)
    assert shown is not None

    async def body(world: World) -> None:
        async def silent(play_: Play) -> None:
            await play_.hdr()
            await play_.tokens(1)
            await play_.hang()

        world.script(on("decode", silent))
        answer = await world.post(STREAM)
        last = answer.body.split(b"\n\n")[-2].decode()
        assert last.startswith(f"data: {shown[1]}")
        assert json.loads(last[6:])["error"]["narwhal"]["attempts"] == 1

    play(body)


def test_an_error_inside_a_stream_that_is_a_4xx_is_the_engine_s_word() -> None:
    async def body(world: World) -> None:
        async def says_no(play_: Play) -> None:
            await play_.hdr()
            await play_.event({"error": {"message": "no", "type": "t", "code": 400}})
            await play_.finish()

        world.script(on("decode", says_no))
        answer = await world.post(ASK)
        assert (answer.status, answer.error["message"]) == (400, "no")
        assert world.row.code == "engine_rejected"

    play(body)
