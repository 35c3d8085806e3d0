"""Defects that seeded chaos found, each as small as it can be made, so that none comes back."""

from __future__ import annotations

import json
import logging
import random
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from narwhal.app import open_router
from narwhal.config import FleetConfig
from narwhal.engine import Correlation
from narwhal.model import FailureClass, Phase, Terminal
from narwhal.net import ByteStream, MemoryNetwork, Server
from narwhal.router.releases import HeldHandoff
from narwhal.telemetry import JournalFile
from narwhal.testing import AtStep
from narwhal.wire.handoff import parse_handoff

from stub_fleet import Play, StubFleet, good
from worlds import Client, World, fleet_config, open_world, play

ASK = {"model": "m", "prompt": "hello", "max_tokens": 4}
STREAM = ASK | {"stream": True}


def events(play_: Play, first: int, last: int, *, size: int = 1000) -> bytes:
    """Events of `size` bytes and more, as one piece of body."""
    tokens = (play_.token(n, text="x" * size) for n in range(first, last))
    return b"".join(b"data: %b\n\n" % json.dumps(token).encode() for token in tokens)


@pytest.mark.parametrize("stream", [True, False])
def test_a_body_that_ends_a_packet_after_done_releases_nothing(stream: bool) -> None:
    async def body(world: World) -> None:
        async def late_end(play_: Play) -> None:
            if play_.leg != "decode":
                await good(play_)
                return
            await play_.hdr()
            await play_.tokens(4)
            await play_.usage(4)
            await play_.event(b"[DONE]")
            await play_.wait(0.01)
            await play_.send(b"0\r\n\r\n")

        world.script(late_end)
        assert (await world.post(ASK | {"stream": stream})).status == 200
        await world.settle()
        assert not world.stubs.legs("release"), "the decoder had the handoff, and used it"
        assert world.router.telemetry.totals().kv_released == 0

    play(body, fleet_config(decode=2))


def test_a_first_token_at_the_prefill_deadline_is_not_said_twice() -> None:
    clock = MockClock(autojump_threshold=0)

    async def main() -> None:
        config = fleet_config(prefill=0, decode=2, max_attempts=2, prefill_timeout_s=1.0)
        async with open_world(config) as world:

            async def just_in_time(play_: Play) -> None:
                if play_.leg != "whole":
                    await good(play_)
                    return
                await play_.hdr()
                await play_.wait(0.9)
                await play_.event(play_.token(0))
                clock.jump(0.2)  # the deadline passes while the router has yet to read the token
                await play_.wait(0.1)
                await play_.tokens(3, first=1)
                await play_.finish(4)

            world.script(just_in_time)
            answer = await world.post(STREAM)
            assert answer.text.count("t0") == 1, "output was repeated"
            assert len(world.row.attempts) == 1, "a retry after visible output"

    trio.run(main, clock=clock)


def test_an_engine_that_runs_both_phases_keeps_its_decode_concurrency() -> None:
    async def body(world: World) -> None:
        async def slow(play_: Play) -> None:
            if play_.leg == "whole":
                await play_.hdr()
                await play_.tokens(4, every=0.2)
                await play_.finish(4)
            else:
                await good(play_)

        world.script(slow)
        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(world.post, ASK)
        assert world.engine("d0").most_inflight <= 2

    play(body, fleet_config(prefill=0, decode=1, prefill_concurrency=8, decode_concurrency=2))


def test_a_leg_does_not_wait_for_a_full_engine_while_a_trusted_one_is_idle() -> None:
    async def body(world: World) -> None:
        async def script(play_: Play) -> None:
            who = play_.body.get("user")
            if play_.leg == "decode" and who == "long":
                await play_.hdr()
                await play_.tokens(100, every=1.0)
                await play_.finish(100)
            elif play_.leg == "decode" and who == "busy":
                await play_.status(503, b"{}")
            else:
                await good(play_)

        world.script(script)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(world.post, ASK | {"user": "long"})
            await trio.sleep(0.1)
            assert (await world.post(ASK | {"user": "busy"})).status == 503
            # One second later d1 is trusted again, and has a free seat.
            answer = await world.post(ASK)
            assert answer.status == 200
            assert answer.seconds <= 1.1
            nursery.cancel_scope.cancel(reason="seen enough")

    play(body, fleet_config(decode=2, decode_concurrency=1))


@pytest.mark.parametrize("stream", [True, False])
def test_an_answer_that_nobody_reads_to_its_end_is_no_failure_of_the_application(
    stream: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def body(world: World) -> None:
        world.script(long_tail)
        client = await world.connect()
        await client.ask(ASK | {"stream": stream})
        await trio.sleep(602)
        client.close()
        assert world.row.terminal is Terminal.EXPIRED
        assert world.row.status == 200, "that is what the client was sent"
        errors = [record.getMessage() for record in caplog.records]
        assert not errors

    with caplog.at_level(logging.ERROR):
        play(body)


async def long_tail(play_: Play) -> None:
    """What fits the client's buffer, and a second later, in one piece, more than that."""
    if play_.leg != "decode":
        await good(play_)
        return
    await play_.hdr()
    for n in range(50):
        await play_.chunk(events(play_, n, n + 1))
        await play_.wait(0.01)
    await play_.wait(1)
    await play_.chunk(events(play_, 50, 80) + b"data: [DONE]\n\n")
    await play_.send(b"0\r\n\r\n")


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_while_the_last_bytes_are_written_did_not_get_its_answer(
    stream: bool,
) -> None:
    async def body(world: World) -> None:
        world.script(long_tail)
        client = await world.connect()
        await client.ask(ASK | {"stream": stream})
        await trio.sleep(5)
        assert not world.rows, "the router is writing"
        client.close()
        await trio.sleep(0.1)
        assert world.row.terminal is Terminal.CANCELLED

    play(body)


def test_tokens_of_a_stream_that_breaks_off_are_counted() -> None:
    async def body(world: World) -> None:
        async def cut(play_: Play) -> None:
            if play_.leg == "decode":
                await play_.hdr()
                await play_.tokens(40, every=0.01)
                await play_.wait(0.01)
                play_.rst()
            await good(play_)

        world.script(cut)
        answer = await world.post(STREAM)
        assert len(answer.text.split()) == 40
        assert world.row.completion_tokens == 40

    play(body)


def test_a_retry_that_waits_for_a_seat_in_vain_gives_its_credit_back() -> None:
    async def body(world: World) -> None:
        async def script(play_: Play) -> None:
            if play_.leg == "prefill" and play_.body.get("user") == "long":
                await play_.hang()
            elif play_.leg == "prefill":
                await play_.wait(0.1)
                await play_.status(500, b"{}")
            else:
                await good(play_)

        world.script(script)
        second, first = await world.connect(), await world.connect()
        await second.ask(ASK)
        await trio.sleep(0.05)
        await first.ask(ASK | {"user": "long"})  # takes the seat that the failure frees
        await trio.sleep(3)
        assert world.router.core.credits.available == 9
        assert len(world.stubs.legs("prefill")) == 2, "the retry waits"
        second.close()
        await trio.sleep(0.1)
        assert world.router.core.credits.available == 10
        first.close()

    play(body, fleet_config(max_attempts=2, prefill_concurrency=1))


def test_an_answer_that_comes_slowly_does_not_lengthen_the_lease() -> None:
    async def body(world: World) -> None:
        left: list[float] = []

        async def script(play_: Play) -> None:
            who = play_.body.get("user")
            if play_.leg == "prefill" and who == "slow":
                params = play_.engine.fleet.stage(play_.engine.name)
                raw = json.dumps(play_.prefill_body(params)).encode()
                head = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(raw)
                await play_.send(head + raw[:50])
                await play_.wait(10)
                await play_.send(raw[50:])
            elif play_.leg == "decode":
                await play_.hdr()
                await play_.tokens(36 if who == "long" else 2, every=1.0)
                await play_.finish(2)
            else:
                await good(play_)

        pull = world.stubs.pull

        def timed_pull(params: dict[str, Any], leg: str) -> None:
            handle = f"{params['remote_engine_id']}/{params['remote_block_ids'][0][0]}"
            if leg == "decode":
                left.append(world.stubs.staged[handle] - trio.current_time())
            pull(params, leg)

        world.script(script)
        world.stubs.pull = timed_pull  # type: ignore[method-assign]  # listen in
        async with trio.open_nursery() as nursery:
            nursery.start_soon(world.post, ASK | {"user": "long"})
            await trio.sleep(0.1)
            await world.post(ASK | {"user": "slow"})
        assert min(left) > 0, "a decoder was sent a handoff whose lease had ended"

    play(body, fleet_config(decode_concurrency=1), lease=30.0)


@pytest.mark.parametrize("block", ["stream", "router"])
def test_an_exception_in_a_cancelled_block_is_not_lost(block: str) -> None:
    async def main() -> None:
        async with open_world() as world:
            opened = (
                world.router.stream(ASK)
                if block == "stream"
                else open_router(fleet_config(), environ={}, connect=world.network.connect)
            )
            with pytest.raises(ValueError, match="mine"), trio.CancelScope() as scope:
                async with opened:
                    scope.cancel(reason="test")
                    raise ValueError("mine")

    trio.run(main, clock=MockClock(autojump_threshold=0))


def test_a_client_that_leaves_as_it_is_admitted_reaches_no_engine() -> None:
    async def body(world: World) -> None:
        leaving: list[Client] = []

        async def script(play_: Play) -> None:
            if play_.leg != "decode":
                await good(play_)
                return
            await play_.hdr()
            await play_.tokens(1)
            await play_.wait(1)
            await play_.finish(1)
            leaving.pop().close()

        world.script(script)
        # Whether the seat or the news comes first is the scheduler's choice: try both.
        for _ in range(20):
            first, second = await world.connect(), await world.connect()
            await first.ask(ASK)
            await trio.sleep(0.1)
            await second.ask(ASK | {"user": "gone"})
            leaving.append(second)
            assert (await first.answer()).status == 200
            first.close()
            await trio.sleep(0.1)
        seen = [leg for leg in world.stubs.legs("prefill") if leg.body.get("user") == "gone"]
        assert not seen

    config = fleet_config(
        max_connections=1,
        queue_capacity=2,
        queue_timeout_s=60.0,
        prefill_concurrency=4,
        decode_concurrency=4,
        engine={"tokenize": False},
    )
    play(body, config)


def test_a_release_leg_is_not_the_trial_of_a_doubtful_engine() -> None:
    async def body(world: World) -> None:
        core = world.router.core
        core.roster.trust.failed("d0", Phase.DECODE, FailureClass.STREAM, trio.current_time())
        await trio.sleep(1.5)
        assert not core.roster.trust.doubtful("d0", Phase.DECODE, trio.current_time())
        held = HeldHandoff(
            handoff=parse_handoff(json.dumps(world.stubs.stage("p0")).encode()),
            producer="p0",
            tokens=1,
            lease_ends=trio.current_time() + 30,
            correlation=Correlation("release"),
        )
        core.releases.abandon(held, avoid="d1")
        await trio.sleep(0.1)
        assert len(world.stubs.legs("release", "d0")) == 1
        assert not core.roster.trust.doubtful("d0", Phase.DECODE, trio.current_time())

    play(body, fleet_config(decode=2))


def test_a_producer_is_not_asked_to_release_what_it_holds_itself() -> None:
    """It would answer as if it had, and hold it until the lease ends."""

    async def body(world: World) -> None:
        held = HeldHandoff(
            handoff=parse_handoff(json.dumps(world.stubs.stage("d0")).encode()),
            producer="d0",
            tokens=7,
            lease_ends=trio.current_time() + 30,
            correlation=Correlation("release"),
        )
        world.router.core.releases.abandon(held, avoid=None)
        await trio.sleep(0.1)
        assert not world.stubs.legs("release")
        assert world.router.telemetry.totals().kv_orphaned == 1
        assert world.router.core.orphans.tokens("d0", trio.current_time()) == 7

    play(body, fleet_config(decode=1))


def test_waiting_for_our_own_connections_is_not_held_against_the_engine() -> None:
    async def body(world: World) -> None:
        world.router.core.engines["d0"].pools.data.limit = 1

        async def slow(play_: Play) -> None:
            if play_.leg == "decode":
                await play_.hdr()
                await play_.tokens(10, every=1.0)
                await play_.finish(10)
            else:
                await good(play_)

        world.script(slow)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(world.post, ASK)
            await trio.sleep(0.1)
            await world.post(ASK)
            assert not world.router.core.roster.trust.doubtful(
                "d0", Phase.DECODE, trio.current_time()
            )

    play(body)


def test_a_handoff_that_reached_its_cap_says_so() -> None:
    async def body(world: World) -> None:
        async def script(play_: Play) -> None:
            if play_.leg == "prefill":
                await play_.wait(20)
                await play_.prefill_answer()
            elif play_.leg == "decode":
                await play_.hdr()
                await play_.tokens(60, every=1.0)
                await play_.finish(60)
            else:
                await good(play_)

        world.script(script)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(world.post, ASK)
            await trio.sleep(0.1)
            answer = await world.post(ASK)
            assert answer.error["code"] == "handoff_expired"
            assert answer.seconds == pytest.approx(35)
            assert "35 s old (serving.handoff_timeout_s)" in answer.error["message"]
            nursery.cancel_scope.cancel(reason="seen enough")

    play(body, fleet_config(decode_concurrency=1, handoff_timeout_s=35.0))


def test_the_journal_knows_of_requests_that_end_after_the_router(tmp_path: Path) -> None:
    async def fills_the_buffer(play_: Play) -> None:
        if play_.leg != "decode":
            await good(play_)
            return
        await play_.hdr()
        await play_.chunk(events(play_, 0, 1, size=450))
        await play_.hang()

    async def main() -> None:
        journal = JournalFile(tmp_path / "journal")
        journal.open()
        # The event fits, and the error that says that the router shuts down does not.
        network, config = MemoryNetwork(buffer_bytes=1000), fleet_config()
        stubs = StubFleet(network)
        async with trio.open_nursery() as nursery:
            for spec in config.engines:
                engine = stubs.add(spec.iid, spec.port)
                engine.script = fills_the_buffer
                await nursery.start(engine.run)
            async with open_router(
                config,
                environ={},
                connect=network.connect,
                rng=random.Random(0),
                wall_clock=trio.current_time,
                journal_file=journal,
            ) as router:
                server = Server(router.app)
                await nursery.start(server.serve, [network.listen("router", 8000)])
                client = Client(await network.connect("router", 8000))
                await client.ask(STREAM)
                await trio.sleep(1)
            await trio.sleep(2)
            client.close()
            nursery.cancel_scope.cancel(reason="seen enough")
        assert router.telemetry.totals().received == 1
        assert (tmp_path / "journal").read_bytes().count(b'"event":"request"') == 1

    trio.run(main, clock=MockClock(autojump_threshold=0))


def test_a_leg_does_not_wait_for_a_full_engine_after_a_quarantine_has_ended() -> None:
    async def body(world: World) -> None:
        async def script(play_: Play) -> None:
            who = play_.body.get("user")
            if play_.leg == "decode" and who == "long":
                await play_.hdr()
                await play_.tokens(100, every=1.0)
                await play_.finish(100)
            elif play_.leg == "decode" and who == "fails":
                await play_.status(500, b"{}")
            else:
                await good(play_)

        world.script(script)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(world.post, ASK | {"user": "long"})
            await trio.sleep(0.1)
            assert (await world.post(ASK | {"user": "fails"})).status == 502
            answer = await world.post(ASK)
            assert answer.status == 200
            assert answer.seconds <= 5.1
            nursery.cancel_scope.cancel(reason="seen enough")

    quarantine = {"failure_quarantine_s": 5.0}
    play(body, fleet_config(decode=2, decode_concurrency=1, recovery=quarantine))


def test_an_event_without_a_token_is_not_counted_once_the_engine_has_counted() -> None:
    async def body(world: World) -> None:
        async def script(play_: Play) -> None:
            if play_.leg != "decode":
                await good(play_)
                return
            await play_.hdr()
            await play_.tokens(3, every=0.01)
            await play_.wait(0.01)
            await play_.event({"choices": [{"index": 0, "text": "", "finish_reason": "stop"}]})
            await play_.wait(0.01)
            await play_.finish(3)

        world.script(script)
        await world.post(STREAM)
        assert world.row.completion_tokens == 3
        page = (await world.get("/metrics")).body
        assert b'narwhal_tokens_total{kind="completion"} 3.0' in page

    play(body)


@pytest.mark.parametrize("end", ["client", "deadline"])
def test_a_handoff_sent_to_a_decoder_that_never_reads_is_released_or_counted(end: str) -> None:
    async def body(world: World) -> None:
        async def deaf(stream: ByteStream) -> None:
            await trio.sleep_forever()

        world.engine("d0")._serve = deaf  # type: ignore[method-assign]  # a process that hangs
        client = await world.connect()
        await client.ask(ASK)
        await trio.sleep(1 if end == "client" else 2.1)
        client.close()
        await world.settle()
        assert world.row.terminal is (Terminal.CANCELLED if end == "client" else Terminal.EXPIRED)
        assert world.stubs.left_staged <= world.router.telemetry.totals().kv_orphaned

    play(body, fleet_config(decode=2, request_timeout_s=2.0, engine={"tokenize": False}))


def test_a_connection_accepted_as_the_server_drains_is_no_crash() -> None:
    async def main() -> None:
        async with open_world() as world:
            client = await world.connect()
            await trio.lowlevel.checkpoint()  # accepted, perhaps, and not being served yet
            await world.server.drain(0)
            client.close()

    # Which of the tasks is first is the scheduler's choice: try both.
    for _ in range(20):
        trio.run(main, clock=MockClock(autojump_threshold=0))


def test_a_client_that_does_not_read_a_page_is_cut_sooner_or_later() -> None:
    async def body(world: World) -> None:
        client = await world.connect()

        async def ask() -> None:
            for _ in range(20):
                await client.stream.send_all(b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await trio.sleep(3600)
            nursery.cancel_scope.cancel(reason="seen enough")
        assert world.server.connections == 0

    play(body)


def test_a_request_whose_client_has_gone_already_sends_nothing() -> None:
    async def body(world: World) -> None:
        await world.post(ASK)  # leaves connections in the pools
        seen = len(world.stubs.seen)
        client = await world.connect()
        await client.ask(ASK)
        client.close()
        await world.settle()
        assert len(world.rows) == 2
        assert world.rows[1].terminal is Terminal.CANCELLED
        assert not [leg.leg for leg in world.stubs.seen[seen:]]

    play(body)


def test_a_routers_block_that_is_cancelled_at_any_step_leaves_nothing() -> None:
    at_step = AtStep()

    async def cancelled(step: int, config: FleetConfig, network: MemoryNetwork) -> bool:
        with trio.CancelScope() as scope:
            at_step.arm(step, lambda: scope.cancel(reason="test"))
            async with open_router(config, environ={}, connect=network.connect) as router:
                await router.complete(ASK)
        return not at_step.disarm()

    async def main() -> None:
        network, config = MemoryNetwork(), fleet_config()
        stubs = StubFleet(network)
        async with trio.open_nursery() as nursery:
            for spec in config.engines:
                await nursery.start(stubs.add(spec.iid, spec.port).run)
            step = 1
            while await cancelled(step, config, network):
                await trio.sleep(5)
                step += 1
            assert step > 20
            await trio.sleep(5)
            assert network.open_streams == 0
            nursery.cancel_scope.cancel(reason="seen enough")

    trio.run(main, clock=MockClock(autojump_threshold=0), instruments=[at_step])


@pytest.mark.parametrize("offered", [("write", "abort"), ("write",)])
def test_a_server_with_some_of_the_extensions_loses_no_output(offered: tuple[str, ...]) -> None:
    async def body(world: World) -> None:
        async def app(scope: Any, receive: Any, send: Any) -> None:
            names = {f"narwhal.{name}" for name in offered}
            scope["extensions"] = {k: v for k, v in scope["extensions"].items() if k in names}
            await world.router.app(scope, receive, send)

        async def slow(play_: Play) -> None:
            if play_.leg == "decode":
                await play_.hdr()
                await play_.tokens(4, every=0.1)
                await play_.finish(4)
            else:
                await good(play_)

        world.server.app = app
        world.script(slow)
        answer = await world.post(STREAM)
        assert answer.text == " t0 t1 t2 t3"
        assert answer.done

    play(body)


def test_legs_that_wait_for_places_cost_no_more_the_more_they_are() -> None:
    async def body(world: World) -> None:
        core = world.router.core
        picks, pick = 0, core.pick

        def counted(*args: Any, **more: Any) -> Any:
            nonlocal picks
            picks += 1
            return pick(*args, **more)

        async def slow(play_: Play) -> None:
            if play_.leg == "decode":
                await play_.hdr()
                await play_.tokens(2, every=0.5)
                await play_.finish(2)
            else:
                await good(play_)

        core.pick = counted  # type: ignore[method-assign]  # listen in
        world.script(slow)
        async with trio.open_nursery() as nursery:
            for _ in range(200):
                nursery.start_soon(world.post, ASK)
        assert picks < 200 * 20

    config = fleet_config(
        decode=2,
        prefill_concurrency=2,
        decode_concurrency=2,
        max_connections=1000,
        engine={"kv_lease_s": 500.0},
    )
    play(body, config)


def test_an_admitted_request_always_finds_a_connection() -> None:
    async def body(world: World) -> None:
        async def open_end(play_: Play) -> None:
            if play_.leg != "decode":
                await good(play_)
                return
            await play_.hdr()
            await play_.tokens(4)
            await play_.usage(4)
            await play_.event(b"[DONE]")
            await play_.hang()

        world.script(open_end)
        for _ in range(3):
            assert (await world.post(ASK)).status == 200

    play(body, fleet_config(max_connections=1, engine={"pool_timeout_s": 0.5}))


def test_orphans_that_nobody_asks_about_do_not_pile_up() -> None:
    async def body(world: World) -> None:
        async def strands(play_: Play) -> None:
            if play_.leg == "release":
                await play_.status(503, b"{}")
            elif play_.leg == "decode":
                await play_.status(400, b"{}")
            else:
                await good(play_)

        world.script(strands)
        for _ in range(300):
            await world.post(ASK)
            await trio.sleep(1.0)
        orphans = world.router.core.orphans._by_engine["p0"]
        assert world.router.telemetry.totals().kv_orphaned > 100
        assert len(orphans) < 50, "leases are 3 s long"

    play(body, fleet_config(engine={"kv_lease_s": 3.0}), lease=3.0)


def test_an_errand_that_fails_as_nobody_foresaw_is_logged_and_no_more(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def body(world: World) -> None:
        async def defect() -> None:
            raise RuntimeError("a defect")

        assert world.router.core.errands.start_nowait(defect)
        await trio.sleep(0.1)
        assert (await world.post(ASK)).status == 200
        assert "a defect" in caplog.text

    play(body)


def test_a_length_that_is_no_number_of_bytes_is_the_clients_fault() -> None:
    async def body(world: World) -> None:
        sent: list[Any] = []

        async def send(message: Any) -> None:
            sent.append(message)

        async def receive() -> Any:
            await trio.sleep_forever()

        scope = {
            "type": "http",
            "method": "POST",
            "path": "/v1/completions",
            "headers": [(b"content-length", b"9" * 5000)],
        }
        await world.router.app(scope, receive, send)
        assert sent[0]["status"] == 413
        assert world.row.terminal is Terminal.INVALID

    play(body)
