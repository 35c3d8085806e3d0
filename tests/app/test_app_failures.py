"""Engines that fail, in every way and phase: what is retried, and what the client is told."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import trio

from narwhal.model import Phase, Terminal
from narwhal.net import ByteStream

from stub_fleet import Play, Script, good
from worlds import World, fleet_config, play

ASK = {"model": "m", "prompt": "hello", "max_tokens": 4}
STREAM = ASK | {"stream": True}
ENGINE_400 = {
    "error": {
        "message": "This model's maximum context length is 4096 tokens.",
        "type": "BadRequestError",
        "param": "input_tokens",
        "code": 400,
    }
}
Fault = Callable[[Play], Any]


def failing(leg: str, fault: Fault, *, times: int = 10**6, engine: str | None = None) -> Script:
    """Healthy, but for the first `times` legs of one kind (on one engine)."""
    left = [times]

    async def script(play_: Play) -> None:
        if play_.leg == leg and left[0] and engine in (None, play_.engine.name):
            left[0] -= 1
            result = fault(play_)
            if result is not None:
                await result
        else:
            await good(play_)

    return script


async def cut_before_token(play_: Play) -> None:
    await play_.hdr()
    await play_.wait(0.2)
    play_.rst()


async def error_before_token(play_: Play) -> None:
    await play_.hdr()
    await play_.event({"error": {"message": "Internal server error", "code": 500}})
    await play_.finish()


TRANSIENT: dict[str, Fault] = {
    "rst": lambda p: p.rst(),
    "fin": lambda p: p.fin(),
    "408": lambda p: p.status(408, {"error": {"message": "x"}}),
    "429": lambda p: p.status(429, {"error": {"message": "x"}}),
    "500": lambda p: p.status(500, {"error": {"message": "x"}}),
    "502": lambda p: p.status(502, b"<html>"),
    "503": lambda p: p.status(503, {"error": {"message": "busy"}}),
    "504": lambda p: p.status(504, b""),
    "garbage": lambda p: p.send(b"not http at all\r\n\r\n"),
    "half a head": lambda p: p.send(b"HTTP/1.1 200 OK\r\ncontent-"),
}
DECODE_ONLY: dict[str, Fault] = {
    "rst after head": cut_before_token,
    "error event": error_before_token,
    "empty stream": lambda p: p.status(200, b""),
}


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("leg", "fault"),
    [("prefill", f) for f in TRANSIENT] + [("decode", f) for f in (*TRANSIENT, *DECODE_ONLY)],
)
def test_a_transient_failure_before_output_is_made_good(leg: str, fault: str, stream: bool) -> None:
    async def body(world: World) -> None:
        how = (TRANSIENT | DECODE_ONLY)[fault]
        first = {"prefill": "p0", "decode": "d0"}[leg]

        async def half(play_: Play) -> None:
            await failing(leg, how, engine=first)(play_)
            if fault == "half a head":
                play_.fin()

        world.script(half, first)
        answer = await world.post(ASK | {"stream": stream})
        assert answer.status == 200, answer.body
        assert answer.text == " t0 t1 t2 t3"
        assert answer.complete
        assert [a.result for a in world.row.attempts] == ["failed", "completed"]
        used = [getattr(a, leg) for a in world.row.attempts]
        assert used == [first, first.replace("0", "1")], "the failed engine is avoided"
        assert world.router.core.credits.available == pytest.approx(9.1)
        await trio.sleep(1.5)
        staged = world.stubs.left_staged
        assert staged == 0, "a handoff that no decoder took was released"

    play(body, fleet_config(prefill=2, decode=2, max_attempts=2))


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("leg", ["prefill", "decode"])
def test_an_engines_400_is_the_clients_to_read(leg: str, stream: bool) -> None:
    async def body(world: World) -> None:
        world.script(failing(leg, lambda p: p.status(400, ENGINE_400)))
        answer = await world.post(ASK | {"stream": stream})
        if stream and leg == "decode":
            assert answer.status == 200  # committed before decode, as specified
        else:
            assert answer.status == 400
            assert answer.headers["content-type"] == "application/json"
        error = answer.error
        assert error.pop("narwhal")["attempts"] == 1
        assert error == ENGINE_400["error"]
        assert len(world.row.attempts) == 1, "a deterministic 4xx is not retried"
        assert world.row.terminal is Terminal.INVALID
        if leg == "prefill":
            assert not world.stubs.legs("decode")
        now = trio.current_time()
        assert not world.router.core.roster.trust.doubtful("p0", Phase.PREFILL, now)
        assert not world.router.core.roster.trust.doubtful("d0", Phase.DECODE, now)

    play(body, fleet_config(max_attempts=3))


@pytest.mark.parametrize("status", [400, 429, 503, 500])
def test_held_back_headers_keep_the_status_of_an_early_decode_failure(status: int) -> None:
    async def body(world: World) -> None:
        fail = failing("decode", lambda p: p.status(status, ENGINE_400))
        world.script(fail)
        streamed = await world.post(STREAM)
        plain = await world.post(ASK)
        assert streamed.status == plain.status == {400: 400, 500: 502}.get(status, 503)
        assert streamed.headers["content-type"] == "application/json"
        assert streamed.error["code"] == plain.error["code"]

    play(body, fleet_config(stream_commit="first_token"))


@pytest.mark.parametrize("leg", ["prefill", "decode"])
@pytest.mark.parametrize("status", [401, 403, 404, 405])
def test_a_refused_key_is_the_operators_affair(leg: str, status: int) -> None:
    async def body(world: World) -> None:
        world.script(failing(leg, lambda p: p.status(status, {"error": {"message": "key k3y"}})))
        answer = await world.post(ASK)
        assert (answer.status, answer.error["code"]) == (502, "engine_status")
        assert b"k3y" not in answer.body
        assert len(world.row.attempts) == 1

    play(body, fleet_config(max_attempts=3))


@pytest.mark.parametrize("leg", ["prefill", "decode"])
def test_a_busy_fleet_says_when_to_come_back(leg: str) -> None:
    async def body(world: World) -> None:
        world.script(failing(leg, lambda p: p.status(503, b"{}", Retry_After=7)))
        answer = await world.post(ASK)
        assert (answer.status, answer.error["code"]) == (503, "engine_busy")
        assert answer.headers["retry-after"] == "7"
        assert answer.error["type"] == "overloaded"

    play(body)


END: dict[str, Fault] = {
    "fin without the end": lambda p: p.fin(),
    "cut": lambda p: p.cut(),
    "rst": lambda p: p.rst(),
    "no [DONE]": lambda p: p.send(b"0\r\n\r\n"),
    "error event": error_before_token,
}


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("end", END)
def test_a_stream_that_breaks_off_never_looks_complete(end: str, stream: bool) -> None:
    async def body(world: World) -> None:
        async def broken(play_: Play) -> None:
            if play_.leg != "decode":
                await good(play_)
                return
            await play_.hdr()
            await play_.tokens(3)
            if end == "error event":
                await play_.event({"error": {"message": "Internal server error", "code": 500}})
                await play_.finish()
                return
            await play_.wait(0.1)
            result = END[end](play_)
            if result is not None:
                await result

        world.script(broken)
        answer = await world.post(ASK | {"stream": stream})
        if stream:
            assert answer.status == 200
            assert answer.text == " t0 t1 t2"
            assert not answer.complete
            assert not answer.done
            assert len(world.row.attempts) == 1, "no retry after visible output"
            assert isinstance(answer.error["code"], str)
        else:
            assert answer.status == 502
            assert len(world.row.attempts) == 3
        assert world.rows[0].terminal is Terminal.FAILED

    play(body, fleet_config(prefill=3, decode=3, max_attempts=3))


def test_done_without_a_finish_reason_is_a_whole_answer() -> None:
    async def body(world: World) -> None:
        answer = await world.post(STREAM)
        assert answer.done
        assert world.row.terminal is Terminal.COMPLETED

    play(body)


def test_only_unsent_output_is_retried_and_nothing_is_said_twice() -> None:
    async def body(world: World) -> None:
        async def late(play_: Play) -> None:
            if play_.leg == "decode" and play_.engine.name == "d0":
                await play_.hdr()
                await play_.event({"id": "x", "choices": [], "note": "metadata of d0"})
                play_.rst()
            await good(play_)

        world.script(late)
        answer = await world.post(STREAM)
        assert answer.done
        assert b"metadata of d0" not in answer.body
        assert answer.text == " t0 t1 t2 t3"

    play(body, fleet_config(prefill=2, decode=2, max_attempts=2))


def test_a_decoder_that_accepted_is_not_followed_by_another_with_the_same_handle() -> None:
    async def body(world: World) -> None:
        world.script(failing("decode", cut_before_token, engine="d0"))
        answer = await world.post(STREAM)
        assert answer.done
        assert len(world.stubs.legs("prefill")) == 2
        assert max(world.stubs.uses.values()) == 1
        assert not world.stubs.legs("release")

    play(body, fleet_config(prefill=2, decode=2, max_attempts=2))


@pytest.mark.parametrize("require", [True, False])
@pytest.mark.parametrize("params", [None, "absent"])
def test_a_prefill_without_a_handoff(require: bool, params: str | None) -> None:
    async def body(world: World) -> None:
        async def script(play_: Play) -> None:
            if play_.leg == "prefill":
                answer = play_.prefill_body(None)
                if params == "absent":
                    del answer["kv_transfer_params"]
                await play_.status(200, answer)
            else:
                await good(play_)

        world.script(script)
        answer = await world.post(ASK)
        if require:
            assert (answer.status, answer.error["code"]) == (502, "handoff_incomplete")
            assert not world.stubs.legs("decode") + world.stubs.legs("whole")
        else:
            assert answer.text == " t0 t1 t2 t3"
            assert len(world.stubs.legs("whole", "d0")) == 1
        page = (await world.get("/metrics")).body.decode()
        assert "narwhal_handoff_missing_total 1.0" in page

    play(body, fleet_config(engine={"require_handoff": require}))


@pytest.mark.parametrize(
    "change",
    [
        {"remote_block_ids": []},
        {"remote_block_ids": [[]]},
        {"remote_block_ids": None},
        {"remote_request_id": None},
        {"remote_engine_id": ""},
        {"remote_port": "5600"},
        {"remote_host": None},
        {"do_remote_prefill": False},
    ],
)
def test_an_incomplete_handoff_never_reaches_a_decoder(change: dict[str, Any]) -> None:
    async def body(world: World) -> None:
        async def script(play_: Play) -> None:
            if play_.leg == "prefill":
                await play_.prefill_answer(**change)
            else:
                await good(play_)

        world.script(script)
        answer = await world.post(ASK)
        assert (answer.status, answer.error["code"]) == (502, "handoff_incomplete")
        assert {seen.leg for seen in world.stubs.seen} == {"tokenize", "prefill"}

    play(body, fleet_config(engine={"require_handoff": False}))


def test_a_dead_decode_engine_costs_only_the_streams_it_was_in_the_middle_of() -> None:
    async def body(world: World) -> None:
        async def slow(play_: Play) -> None:
            if play_.leg == "decode":
                await play_.hdr()
                await play_.tokens(10, every=0.05)
                await play_.finish(10)
            else:
                await good(play_)

        world.script(slow)
        answers: list[Any] = []

        async def one() -> None:
            answers.append(await world.post(STREAM | {"max_tokens": 10}))

        async with trio.open_nursery() as nursery:
            for n in range(80):
                nursery.start_soon(one)
                if n == 10:
                    in_the_middle = world.engine("d0").inflight
                    world.kill("d0")
                if n == 70:
                    await world.start_engine("d0")
                await trio.sleep(0.1)
        bad = [a for a in answers if not a.done]
        assert len(bad) == in_the_middle
        assert all(a.events[-1]["error"]["code"] for a in bad)

    play(body, fleet_config(prefill=2, decode=2, max_attempts=2))


def test_a_hung_prefill_engine_costs_one_slow_request() -> None:
    async def body(world: World) -> None:
        world.script(failing("prefill", lambda p: p.hang()), "p0")
        seconds: list[float] = []

        async def one() -> None:
            answer = await world.post(STREAM)
            assert answer.done
            seconds.append(answer.seconds)

        async with trio.open_nursery() as nursery:
            for _ in range(200):
                nursery.start_soon(one)
                await trio.sleep(0.1)
        # One at first, then a trial after 1 s, after 2 s, ... as long as it goes on hanging.
        assert sum(s > 1 for s in seconds) <= 4

    play(body, fleet_config(prefill=2, decode=2, max_attempts=2, prefill_timeout_s=6.0))


def test_backpressure_and_client_errors_shut_nobody_out() -> None:
    async def body(world: World) -> None:
        world.script(failing("decode", lambda p: p.status(400, ENGINE_400), times=20))
        for _ in range(20):
            assert (await world.post(ASK)).status == 400
        assert (await world.post(ASK)).seconds < 0.01
        world.script(failing("decode", lambda p: p.status(503, b"{}"), times=20))
        for _ in range(20):
            assert (await world.post(ASK)).status == 503
        good_one = await world.post(ASK)
        assert good_one.status == 200
        assert good_one.seconds < 0.01

    play(body)


def test_retries_stop_when_the_credits_are_gone() -> None:
    async def body(world: World) -> None:
        world.script(failing("decode", lambda p: p.status(500, b"{}")))
        for _ in range(5):
            assert (await world.post(ASK)).status == 502
        assert [len(row.attempts) for row in world.rows] == [2, 2, 2, 1, 1]
        assert world.router.core.credits.available == 0

    play(body, fleet_config(max_attempts=2, retry_budget=3))


def test_a_cancelled_backoff_gives_its_credit_back() -> None:
    async def body(world: World) -> None:
        world.script(failing("prefill", lambda p: p.status(503, b"{}", Retry_After=5)))
        client = await world.connect()
        await client.ask(ASK)
        await trio.sleep(1)
        assert world.router.core.credits.available == 9
        client.close()
        await trio.sleep(0.1)
        assert world.router.core.credits.available == 10
        assert len(world.stubs.legs("prefill")) == 1

    play(body, fleet_config(max_attempts=2))


@pytest.mark.parametrize("when", ["idle", "on request"])
@pytest.mark.parametrize("size", [10, 1_000_000])
def test_keep_alive_races_are_invisible(when: str, size: int) -> None:
    async def body(world: World) -> None:
        async def closes(play_: Play) -> None:
            await good(play_)
            if when == "idle":
                world.nursery.start_soon(close_later, play_.stream)

        async def close_later(stream: ByteStream) -> None:
            await trio.sleep(5.0)
            stream.close()

        world.script(closes, "p0")
        world.engine("p0").resets_reused = when == "on request"
        for n in range(50):
            answer = await world.post(ASK | {"prompt": "x" * size})
            assert answer.status == 200
            await trio.sleep(5.0 + (n % 5 - 2) * 0.01 if when == "idle" else 0.5)
        assert all(len(row.attempts) == 1 for row in world.rows)
        assert world.router.core.credits.available == 10
        assert not world.router.core.roster.trust.failures("p0", Phase.PREFILL)

    play(body, fleet_config(engine={"tokenize": False}))


def test_engine_addresses_and_exception_texts_never_reach_a_client() -> None:
    async def body(world: World) -> None:
        world.kill("d0")
        answer = await world.post(ASK)
        assert answer.status == 502
        text = json.dumps(answer.json)
        assert "127.0.0.1" not in text
        assert "9200" not in text
        assert "Errno" not in text

    play(body)
