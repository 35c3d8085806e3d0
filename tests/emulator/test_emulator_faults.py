"""Each fault as a client sees it, byte by byte and second by second."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
import trio
from emulator_kit import (
    CHAT,
    COMPLETIONS,
    PREFILL_LEG,
    Answer,
    ask_on,
    completion,
    run_world,
    settings,
)

from narwhal.emulator import Fault, FaultPhase, Leg, parse_fault
from narwhal.emulator import faults as f

if TYPE_CHECKING:
    from collections.abc import Callable

    from emulator_kit import World


def seen(world: World) -> tuple[int, int, int]:
    stats = world.fleet.engines[0].stats
    done, failed, aborted = (stats.count(e, Leg.WHOLE) for e in ("done", "failed", "aborted"))
    return done, failed, aborted


def stream(fault: str, check: Callable[[World, Answer, float], None], **body: Any) -> None:
    """Ask for a stream of four tokens under a fault, and look at what came."""

    async def test(world: World) -> None:
        began = trio.current_time()
        answer = await world.complete(fault=fault, stream=True, **body)
        check(world, answer, trio.current_time() - began)
        await trio.sleep(0.001)
        assert world.fleet.idle

    run_world(test)


def whole(fault: str, check: Callable[[World, Answer, float], None], **body: Any) -> None:
    """The same without a stream."""

    async def test(world: World) -> None:
        began = trio.current_time()
        answer = await world.complete(fault=fault, **body)
        check(world, answer, trio.current_time() - began)
        await trio.sleep(0.001)
        assert world.fleet.idle

    run_world(test)


# Status


def test_status() -> None:
    def check(world: World, answer: Answer, took: float) -> None:
        assert (answer.status, answer.end, took) == (503, "complete", 0.0)
        assert answer.headers["retry-after"] == "2"
        assert answer.json["error"]["code"] == 503
        assert seen(world) == (0, 1, 0)
        assert world.fleet.engines[0].stats.tokens == 0

    stream("status(503,null,2)", check)
    whole("status(503,null,2)", check)


def test_status_with_a_body_of_ones_own() -> None:
    def check(_world: World, answer: Answer, _took: float) -> None:
        assert (answer.status, answer.json) == (400, {"error": {"message": "a, b)"}})

    whole('status(400,{"error":{"message":"a, b)"}})', check)

    def text(_world: World, answer: Answer, _took: float) -> None:
        assert answer.body == b"<html>"
        assert answer.headers["content-type"] == "text/html"

    whole('header(content-type,text/html);status(502,"<html>")', text)


# Time


def test_wait_comes_before_the_whole_answer() -> None:
    def check(_world: World, answer: Answer, took: float) -> None:
        assert answer.done
        assert took == pytest.approx(2.0 + 0.005 + 0.03)

    stream("wait(2)", check)


def test_hang_lasts_until_the_client_leaves() -> None:
    async def test(world: World) -> None:
        for body in ({"stream": True}, {}):
            with trio.move_on_after(1000) as scope:
                await world.complete(fault="hang", **body)
            assert scope.cancelled_caught
        await trio.sleep(0.001)
        assert seen(world) == (0, 0, 2)
        assert world.fleet.idle

    run_world(test)


def test_headers_first_and_then_nothing() -> None:
    async def test(world: World) -> None:
        client = await world.connect()
        answer = Answer()
        headers = {"x-emulator-fault": "hdr;hang"}
        await ask_on(client, COMPLETIONS, completion(stream=True), headers=headers)
        with trio.move_on_after(50):
            await client.receive(answer)
        assert (answer.status, answer.body, answer.end) == (200, b"", "open")
        client.stream.close()

    run_world(test)


def test_a_stall_after_some_tokens() -> None:
    async def test(world: World) -> None:
        client = await world.connect()
        answer = Answer()
        headers = {"x-emulator-fault": "stall(2)"}
        await ask_on(client, COMPLETIONS, completion(stream=True), headers=headers)
        with trio.move_on_after(50):
            await client.receive(answer)
        assert (len(answer.chunks), answer.end) == (2, "open")
        client.stream.close()
        await trio.sleep(0.001)
        assert seen(world) == (0, 0, 1)

    run_world(test)


def test_a_role_chunk_and_then_nothing() -> None:
    async def test(world: World) -> None:
        client = await world.connect()
        answer = Answer()
        body = {"messages": [{"role": "user", "content": "x"}], "stream": True}
        headers = {"x-emulator-fault": "tokens(0);hang"}
        await ask_on(client, CHAT, body, headers=headers)
        with trio.move_on_after(50):
            await client.receive(answer)
        (role,) = answer.chunks
        assert role["choices"][0]["delta"] == {"role": "assistant", "content": ""}
        client.stream.close()

    run_world(test)


def test_a_slow_pace_between_tokens() -> None:
    def check(_world: World, answer: Answer, _took: float) -> None:
        times = [at for at, _ in answer.reads[:4]]
        assert all(two - one == pytest.approx(20.0) for one, two in pairwise(times))
        assert answer.done

    stream("pace(20)", check)


def test_a_slow_drip_of_bytes() -> None:
    def check(_world: World, answer: Answer, took: float) -> None:
        assert took == pytest.approx(len(answer.body) / 100, rel=0.05)
        assert max(len(data) for _, data in answer.reads) <= 5
        assert answer.done

    stream("drip(100)", check)


# How it ends


@pytest.mark.parametrize(
    ("fault", "end", "events"),
    [
        ("tokens(2);fin", "closed", 2),
        ("tokens(2);rst", "reset", 2),
        ("drop(2)", "reset", 2),
        ("tokens(2);end", "complete", 2),
        ("nodone", "complete", 4),
    ],
)
def test_streams_that_end_without_done(fault: str, end: str, events: int) -> None:
    def check(_world: World, answer: Answer, _took: float) -> None:
        assert (answer.status, answer.end, answer.done) == (200, end, False)
        assert len(answer.chunks) == events
        assert answer.body.endswith(b"\n\n")

    stream(fault, check)


def test_a_cut_in_the_middle_of_an_event() -> None:
    def check(_world: World, answer: Answer, _took: float) -> None:
        assert (answer.end, len(answer.chunks)) == ("closed", 2)
        assert not answer.body.endswith(b"\n\n")

    stream("tokens(2);cut", check)


def test_a_cut_in_the_middle_of_a_body() -> None:
    def check(_world: World, answer: Answer, _took: float) -> None:
        assert (answer.status, answer.end) == (200, "closed")
        assert len(answer.body) == int(answer.headers["content-length"]) // 2

    whole("cut", check)


@pytest.mark.parametrize(("fault", "end"), [("fin", "closed"), ("rst", "reset")])
def test_no_answer_at_all(fault: str, end: str) -> None:
    def check(world: World, answer: Answer, _took: float) -> None:
        assert (answer.status, answer.end) == (None, end)
        assert seen(world) == (0, 1, 0)

    stream(fault, check)
    whole(fault, check)


def test_headers_and_then_a_reset() -> None:
    def check(_world: World, answer: Answer, took: float) -> None:
        assert (answer.status, answer.end, took) == (200, "reset", 0.25)

    stream("hdr;wait(0.25);rst", check)
    whole("hdr;wait(0.25);rst", check)


def test_done_without_a_finish_reason_and_the_reverse() -> None:
    def check(_world: World, answer: Answer, _took: float) -> None:
        reasons = [chunk["choices"][0]["finish_reason"] for chunk in answer.chunks]
        assert (reasons, answer.done) == ([None] * 4, True)

    stream("nofinish", check)

    def reverse(_world: World, answer: Answer, _took: float) -> None:
        assert answer.chunks[-1]["choices"][0]["finish_reason"] == "length"
        assert not answer.done

    stream("nodone", reverse)


def test_what_comes_after_done() -> None:
    def check(_world: World, answer: Answer, took: float) -> None:
        assert answer.body.endswith(b"data: [DONE]\n\n: more\n\n")
        assert answer.end == "complete"
        at, _ = answer.reads[-1]
        assert took - at == pytest.approx(2.5)

    stream(r'tail(": more\n\n");late(2.5)', check)


def test_no_usage() -> None:
    def check(_world: World, answer: Answer, _took: float) -> None:
        assert answer.done
        assert all(chunk["choices"] for chunk in answer.chunks)

    stream("nousage", check, stream_options={"include_usage": True})

    def without(_world: World, answer: Answer, _took: float) -> None:
        assert "usage" not in answer.json

    whole("nousage", without)


def test_an_error_in_the_stream() -> None:
    def check(_world: World, answer: Answer, _took: float) -> None:
        assert answer.chunks[-1]["error"]["message"] == "boom"
        assert (len(answer.chunks), answer.done, answer.end) == (3, True, "complete")

    stream("tokens(2);error(boom)", check)

    def status(_world: World, answer: Answer, _took: float) -> None:
        assert (answer.status, answer.json["error"]["message"]) == (500, "boom")

    whole("error(boom)", status)


# What is in it


def test_an_event_that_is_not_json() -> None:
    def check(_world: World, answer: Answer, _took: float) -> None:
        assert answer.done
        with pytest.raises(ValueError, match="Unterminated"):
            _ = answer.chunks

    stream("tokens(1);malformed", check)

    def half(_world: World, answer: Answer, _took: float) -> None:
        assert (answer.status, answer.end) == (200, "complete")
        with pytest.raises(ValueError, match="line 1"):
            _ = answer.json

    whole("malformed", half)


def test_a_huge_event() -> None:
    def check(_world: World, answer: Answer, _took: float) -> None:
        sizes = [len(chunk["choices"][0]["text"]) for chunk in answer.chunks]
        assert sizes == [4, 1_000_000, 4, 4]
        assert answer.done

    stream("tokens(1);huge(1000000)", check)

    def big(_world: World, answer: Answer, _took: float) -> None:
        assert len(answer.text) == 1_000_000

    whole("huge(1000000)", big)


def test_bytes_of_ones_own() -> None:
    def check(_world: World, answer: Answer, _took: float) -> None:
        assert answer.body.startswith(b": a comment\n\ndata: {")
        assert answer.done

    stream('send(": a comment\\n\\n")', check)


def test_another_content_type() -> None:
    def check(_world: World, answer: Answer, _took: float) -> None:
        assert (answer.status, answer.headers["content-type"]) == (200, "text/html")

    stream("header(content-type,text/html)", check)
    whole("header(content-type,text/html)", check)


# How it is written


def body_of(fault: str) -> tuple[bytes, list[bytes]]:
    bodies: list[Answer] = []

    async def test(world: World) -> None:
        body = completion(prompt="x out=unicode", max_tokens=40, stream=True)
        headers = {"x-emulator-fault": fault, "x-request-id": "same"}
        bodies.append(await world.ask(COMPLETIONS, body, headers=headers))

    run_world(test)
    return bodies[0].body, [data for _, data in bodies[0].reads]


def test_however_it_is_cut_into_writes_the_bytes_are_the_same() -> None:
    plain, _ = body_of("header(x-nothing,1)")
    for fault, count in (("onewrite", 1), ("bytewise(0.01)", len(plain))):
        body, reads = body_of(fault)
        assert body == plain
        assert len(reads) == count
    for at in range(1, len(plain), 997):
        body, reads = body_of(f"split({at})")
        assert body == plain
        assert [len(data) for data in reads] == [at, len(plain) - at]
    assert any(len(character.encode()) == 4 for character in plain.decode())


# Handoffs


def test_a_prefill_without_a_descriptor_keeps_nothing() -> None:
    async def test(world: World) -> None:
        answer = await world.complete(
            fault="prefill:nokv", max_tokens=1, kv_transfer_params=PREFILL_LEG
        )
        assert (answer.status, answer.json["kv_transfer_params"]) == (200, None)
        assert world.fleet.idle

    run_world(test)


def test_an_altered_descriptor() -> None:
    async def test(world: World) -> None:
        leg: dict[str, Any] = {"max_tokens": 1, "kv_transfer_params": PREFILL_LEG}
        fault = 'kv(remote_request_id);kv(remote_port,"x");kv(tp_size,null)'
        handoff = (await world.complete(fault=fault, **leg)).json["kv_transfer_params"]
        assert "remote_request_id" not in handoff
        assert handoff["remote_port"] == "x"
        assert handoff["tp_size"] is None
        assert len(world.fleet.engines[0].core.handles) == 1

    run_world(test)


def test_a_decoder_fetches_before_it_fails_unless_told_not_to() -> None:
    async def test(world: World) -> None:
        p = world.fleet["p"].core
        for fault, left in (("hdr;wait(1);rst", 0), ("status(503)", 0), ("nopull;status(503)", 1)):
            handoff = await world.prefill()
            await world.complete(1, fault=fault, stream=True, kv_transfer_params=handoff)
            assert len(p.handles) == left

    run_world(test, settings("p"), settings("d"))


# Before the body


def test_an_answer_before_the_body_was_read() -> None:
    async def test(world: World) -> None:
        client = await world.connect()
        headers = {"x-emulator-fault": "early;status(413)", "content-length": "1000000"}
        await client.send("POST", COMPLETIONS, b"{" + b" " * 999_999, headers=headers)
        answer = await client.receive()
        client.stream.close()
        assert answer.status == 413
        assert not world.fleet.engines[0].stats.requests

    run_world(test)


def test_a_body_that_nobody_reads_makes_the_client_wait() -> None:
    async def test(world: World) -> None:
        client = await world.connect()
        headers = {"x-emulator-fault": "unread(30)", "content-type": "application/json"}
        raw = b'{"prompt": "x", "max_tokens": 1' + b" " * 1_000_000 + b"}"
        began = trio.current_time()
        await client.send("POST", COMPLETIONS, raw, headers=headers)
        assert trio.current_time() - began == pytest.approx(30.0)
        assert (await client.receive()).status == 200
        client.stream.close()

    run_world(test)


# Connections


def test_idle_connections_are_closed_after_a_while() -> None:
    async def test(world: World) -> None:
        client = await world.connect()
        for pause in (4.9, 4.9, 5.1):
            await ask_on(client, "/health")
            assert (await client.receive()).end == "complete"
            await trio.sleep(pause)
        assert client.stream.receive_nowait() == b""
        client.stream.close()

    run_world(test)


@pytest.mark.parametrize(("how", "end"), [("fin", "closed"), ("rst", "reset")])
def test_a_reused_connection_closed_when_the_next_request_arrives(how: str, end: str) -> None:
    async def test(world: World) -> None:
        world.fleet.engines[0].faults.set([parse_fault(f"onreuse;{how}*1")])
        client = await world.connect()
        await ask_on(client, COMPLETIONS, completion())
        assert (await client.receive()).status == 200
        await ask_on(client, COMPLETIONS, completion())
        answer = await client.receive()
        assert (answer.status, answer.end) == (None, end)
        client.stream.close()
        assert (await world.complete()).status == 200
        assert (await world.complete(fault=f"onreuse;{how}")).status == 200

    run_world(test)


def test_death_is_no_answer_and_then_no_connection() -> None:
    async def test(world: World) -> None:
        answer = await world.complete(fault="tokens(1);die", stream=True)
        assert (answer.end, len(answer.chunks)) == ("closed", 1)
        await trio.sleep(0.2)
        with pytest.raises(OSError, match="refused"):
            await world.connect()

    run_world(test)


# Where faults come from


def test_a_prompt_word_reaches_the_leg_it_is_for() -> None:
    async def test(world: World) -> None:
        prompt = "some words fault=decode:tokens(1);rst and more"
        handoff = await world.prefill(prompt=prompt)
        answer = await world.complete(prompt=prompt, stream=True, kv_transfer_params=handoff)
        assert (answer.end, len(answer.chunks)) == ("reset", 1)
        counted = await world.ask("/tokenize", {"prompt": "x fault=tokenize:status(418)"})
        assert counted.status == 418
        assert (await world.ask("/tokenize", {"prompt": "x fault=rst"})).status == 200
        assert (await world.ask("/tokenize", {"prompt": "x fault=explode"})).status == 400
        messages = [
            {"role": "system", "content": "fault=whole:status(418)"},
            {"role": "user", "content": [{"type": "text", "text": "x"}]},
        ]
        assert (await world.ask(CHAT, {"messages": messages})).status == 418

    run_world(test)


def test_python_objects_on_an_engine() -> None:
    async def test(world: World) -> None:
        fault = Fault([f.Tokens(2), f.Send(b"data: mine\n\n"), f.Fin()], FaultPhase.WHOLE, count=1)
        world.fleet.engines[0].faults.set([fault])
        answer = await world.complete(stream=True)
        assert answer.data[2] == b"mine"
        assert (await world.complete(stream=True)).done

    run_world(test)


@pytest.mark.parametrize(
    ("path", "body", "phase"),
    [
        ("/health", None, "health"),
        ("/version", None, "version"),
        ("/metrics", None, "metrics"),
        ("/v1/models", None, "models"),
        ("/tokenize", {"prompt": "x"}, "tokenize"),
    ],
)
def test_faults_of_the_other_routes(path: str, body: object, phase: str) -> None:
    async def test(world: World) -> None:
        faults = world.fleet.engines[0].faults
        faults.set([parse_fault("status(500)")])
        assert (await world.ask(path, body)).status == 200
        for how, status in (("status(503)", 503), ("rst", None), ("wait(3)", 200)):
            faults.set([parse_fault(f"{phase}:{how}")])
            assert (await world.ask(path, body)).status == status
            faults.set([])
        header = {"x-emulator-fault": f"{phase}:status(418)"}
        assert (await world.ask(path, body, headers=header)).status == 418

    run_world(test)
