"""Handoffs, right ones and each kind of wrong one, as measured on a real pair."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import trio
from emulator_kit import CHAT, COMPLETIONS, ask_on, completion, run_world, settings

from narwhal.emulator import EmulatedFleet, Leg, TimeModel, text_of

if TYPE_CHECKING:
    from emulator_kit import Answer, World

PAIR = (settings("p"), settings("d"))
LONG = text_of(40)  # three blocks of 16 with the token that begins a text


async def decode(world: World, handoff: dict[str, Any], **body: Any) -> Answer:
    return await world.complete(1, kv_transfer_params=handoff, **body)


def own(page: bytes, name: str, labels: str = "") -> float:
    for line in page.decode().splitlines():
        if line.startswith(f"vllm:{name}{{") and labels in line:
            return float(line.rsplit(" ", 1)[1])
    raise AssertionError(name)


def test_two_legs_give_what_one_engine_gives() -> None:
    async def test(world: World) -> None:
        p, d = world.fleet.engines
        for prompt in (LONG, "short", [5, 6, 7], "x out=unicode"):
            alone = await world.complete(0, prompt=prompt, max_tokens=24, return_token_ids=True)
            handoff = await world.prefill(0, prompt=prompt)
            assert len(p.core.handles) == 1
            answer = await decode(
                world, handoff, prompt=prompt, max_tokens=24, return_token_ids=True
            )
            assert answer.json["kv_transfer_params"] is None
            assert answer.json["choices"] == alone.json["choices"]
            assert answer.json["usage"] == alone.json["usage"]
            assert world.fleet.idle
        assert (p.core.released, p.core.late_notifications) == (4, 0)
        assert (p.stats.count("done", Leg.PREFILL), d.connector.transfers) == (4, 4)

    run_world(test, *PAIR)


def test_the_prefills_token_is_produced_again() -> None:
    async def test(world: World) -> None:
        one = await world.complete(0, max_tokens=1, kv_transfer_params={"do_remote_decode": True})
        answer = await decode(world, one.json["kv_transfer_params"])
        first = one.json["choices"][0]["text"]
        assert answer.json["choices"][0]["text"].startswith(first)

    run_world(test, *PAIR)


def test_the_proof_that_kv_moved() -> None:
    async def test(world: World) -> None:
        await decode(world, await world.prefill(0, prompt=LONG), prompt=LONG)
        page = (await world.ask("/metrics", engine=1)).body
        assert own(page, "nixl_bytes_transferred_count") == 1
        assert own(page, "nixl_bytes_transferred_sum") > 0
        assert own(page, "prompt_tokens_by_source_total", "external_kv_transfer") == 41
        assert own(page, "prompt_tokens_by_source_total", "local_compute") == 0
        assert own(page, "external_prefix_cache_hits_total") == 41

    run_world(test, *PAIR)


def test_a_decode_takes_no_prefill_time() -> None:
    async def test(world: World) -> None:
        handoff = await world.prefill(0, prompt=LONG)
        began = trio.current_time()
        await decode(world, handoff, prompt=LONG, max_tokens=1)
        assert trio.current_time() - began == pytest.approx(0.01)

    run_world(test, *PAIR)


def test_a_pull_takes_what_the_model_says_and_nothing_if_it_is_there_already() -> None:
    time = TimeModel(prefill=(0, 0, 0), decode=(0.5, 0, 0), handoff=(2.0, 0.25))

    async def test(world: World) -> None:
        for seconds in (2.0 + 0.25 * 16, 2.0):  # the second time its own cache has the prompt
            handoff = await world.prefill(0, prompt=list(range(100, 116)))
            begun = trio.current_time()
            await decode(world, handoff, prompt=list(range(100, 116)), max_tokens=1)
            assert trio.current_time() - begun == pytest.approx(seconds + 0.5)

    run_world(test, settings("p", time=time), settings("d", time=time))


def test_late_without_reuse_the_tokens_are_right_and_counted() -> None:
    async def test(world: World) -> None:
        handoff = await world.prefill(0)
        alone = await world.complete(0, prompt="one two three")
        await trio.sleep(31)
        p = world.fleet["p"]
        assert (p.core.expired, len(p.core.handles)) == (1, 0)
        # The engine that answered in between had put its blocks elsewhere.
        late = await decode(world, handoff)
        assert late.json["choices"] == alone.json["choices"]
        assert p.core.late_notifications == 1
        page = (await world.ask("/metrics", engine=0)).body
        assert own(page, "nixl_num_kv_expired_reqs_total") == 1
        assert own(page, "nixl_num_notifications_after_expiry_total") == 1

    run_world(test, *PAIR)


@pytest.mark.parametrize("stream", [False, True])
def test_late_with_reuse_the_tokens_are_wrong_and_the_status_is_200(stream: bool) -> None:
    async def test(world: World) -> None:
        prompt = "one two three"
        alone = (await world.complete(0, prompt=prompt, max_tokens=8)).json["choices"][0]["text"]
        handoff = await world.prefill(0, prompt=prompt)
        await trio.sleep(31)
        await world.complete(0, prompt="somebody else's words")
        late = await decode(world, handoff, prompt=prompt, max_tokens=8, stream=stream)
        assert (late.status, late.end) == (200, "complete")
        words = zip(late.text.split(), alone.split(), strict=True)
        assert all(one != two for one, two in words)
        assert world.fleet["p"].core.late_notifications == 1

    run_world(test, *PAIR)


def test_the_same_handoff_twice_on_one_decoder_is_right_by_its_own_cache() -> None:
    async def test(world: World) -> None:
        handoff = await world.prefill(0)
        first = await decode(world, handoff)
        await world.complete(0, prompt="somebody else's words")
        second = await decode(world, handoff)
        assert first.json["choices"] == second.json["choices"]
        assert max(world.fleet["p"].core.uses.values()) == 2
        assert world.fleet["d"].connector.transfers == 1

    run_world(test, *PAIR)


def test_the_same_handoff_on_another_decoder_reads_freed_blocks() -> None:
    async def test(world: World) -> None:
        handoff = await world.prefill(0)
        first = await world.complete(1, kv_transfer_params=handoff)
        await world.complete(0, prompt="somebody else's words")
        second = await world.complete(2, kv_transfer_params=handoff)
        assert second.status == 200
        assert first.text != second.text
        assert max(world.fleet["p"].core.uses.values()) == 2

    run_world(test, *PAIR, settings("d2"))


def test_a_foreign_prompt_gives_wrong_tokens() -> None:
    async def test(world: World) -> None:
        handoff = await world.prefill(0, prompt="four five six")
        alone = await world.complete(0)
        answer = await decode(world, handoff)
        assert answer.status == 200
        assert answer.text != alone.text

    run_world(test, *PAIR)


FAILING: list[tuple[dict[str, object], float]] = [
    ({"remote_engine_id": "00000000-0000-0000-0000-000000000000"}, 0.02),
    ({"remote_host": "10.9.9.9"}, 5.0),
    ({"remote_port": 1}, 5.0),
    ({"remote_port": "5600"}, 5.0),
    ({"remote_block_ids": [[7001, 7002, 7003]]}, 0.2),
]


@pytest.mark.parametrize(("change", "seconds"), FAILING)
def test_a_load_that_fails(change: dict[str, object], seconds: float) -> None:
    async def test(world: World) -> None:
        handoff = await world.prefill(0, prompt=LONG) | change
        began = trio.current_time()
        answer = await decode(world, handoff, prompt=LONG)
        assert trio.current_time() - began == pytest.approx(seconds)
        assert answer.body == (
            b'{"error":{"message":"Internal server error","type":"InternalServerError",'
            b'"param":null,"code":500}}'
        )
        assert answer.status == 500
        assert len(world.fleet["p"].core.handles) == 1  # the producer heard nothing
        assert world.fleet["d"].connector.failed_transfers == 1
        assert (await world.ask("/health", engine=1)).status == 200

    run_world(test, *PAIR)


def test_a_load_that_fails_in_a_stream_is_status_200_and_an_event() -> None:
    async def test(world: World) -> None:
        messages = [{"role": "user", "content": "one two three"}]
        handoff = await world.prefill(0) | {"remote_engine_id": "no such engine"}
        event = (
            b'data: {"error": {"message": "Internal server error", '
            b'"type": "InternalServerError", "param": null, "code": 500}}\n\n'
        )
        answer = await decode(world, handoff, stream=True)
        assert (answer.status, answer.end) == (200, "complete")
        assert answer.body == event + b"data: [DONE]\n\n"
        body = {"messages": messages, "stream": True, "kv_transfer_params": handoff}
        answer = await world.ask(CHAT, body, engine=1)
        assert answer.body.endswith(event + b"data: [DONE]\n\n")
        assert answer.chunks[0]["choices"][0]["delta"]["role"] == "assistant"
        assert len(answer.chunks) == 2

    run_world(test, *PAIR)


FATAL: list[dict[str, object]] = [
    {"remote_block_ids": [[1]]},
    {"remote_block_ids": []},
    {"remote_block_ids": [[]]},
    {"remote_block_ids": None},
    {"remote_engine_id": None},
]


@pytest.mark.parametrize("change", FATAL)
def test_an_incomplete_descriptor_ends_the_decoder(change: dict[str, object]) -> None:
    async def test(world: World) -> None:
        bystander = await world.connect(1)
        await ask_on(bystander, COMPLETIONS, completion(max_tokens=1000, stream=True))
        await trio.sleep(1)
        handoff = await world.prefill(0, prompt=LONG) | change
        answer = await decode(world, handoff, prompt=LONG)
        assert answer.status == 500
        message = answer.json["error"]["message"]
        assert message.startswith("EngineCore encountered an issue.")
        also = await world.complete(1)
        assert (also.status, also.json) == (500, answer.json)  # it takes a moment to be gone
        other = await bystander.receive()
        assert b"EngineCore" in other.body
        bystander.stream.close()
        await trio.sleep(1)
        with pytest.raises(OSError, match="refused"):
            await world.connect(1)
        world.fleet["d"].restart()
        await trio.sleep(0.01)
        assert (await world.ask("/health", engine=1)).status == 200

    run_world(test, *PAIR)


def test_a_missing_request_id_hangs_and_then_ends_the_decoder() -> None:
    async def test(world: World) -> None:
        handoff = await world.prefill(0)
        del handoff["remote_request_id"]
        began = trio.current_time()
        answer = await decode(world, handoff)
        assert trio.current_time() - began == pytest.approx(60.0)
        assert answer.status == 500
        await trio.sleep(1)
        with pytest.raises(OSError, match="refused"):
            await world.connect(1)

    run_world(test, *PAIR)


def test_a_wrong_request_id_leaves_the_blocks_until_the_lease_ends() -> None:
    async def test(world: World) -> None:
        handoff = await world.prefill(0) | {"remote_request_id": "cmpl-other-0-00000000"}
        alone = await world.complete(0)
        answer = await decode(world, handoff)
        assert answer.json["choices"] == alone.json["choices"]
        core = world.fleet["p"].core
        assert len(core.handles) == 1
        await trio.sleep(30)
        assert (len(core.handles), core.expired) == (0, 1)

    run_world(test, *PAIR)


@pytest.mark.parametrize("met", [False, True])
def test_a_producer_that_was_restarted_is_unknown(met: bool) -> None:
    async def test(world: World) -> None:
        if met:
            await decode(world, await world.prefill(0))
        handoff = await world.prefill(0)
        p = world.fleet["p"]
        before = p.connector.engine_id
        p.take_down(0.5, new_process=True)
        await trio.sleep(1)
        assert p.connector.engine_id != before
        began = trio.current_time()
        assert (await decode(world, handoff)).status == 500
        assert trio.current_time() - began == pytest.approx(0.01 if met else 0.02)

    run_world(test, *PAIR)


def test_a_producer_that_died_is_out_of_reach_at_once() -> None:
    async def test(world: World) -> None:
        await decode(world, await world.prefill(0))
        handoff = await world.prefill(0)
        await world.complete(0, fault="die")
        began = trio.current_time()
        assert (await decode(world, handoff)).status == 500
        assert trio.current_time() - began == pytest.approx(0.01)

    run_world(test, *PAIR)


def test_what_is_remembered_of_handoffs_is_bounded() -> None:
    connector = EmulatedFleet([settings()]).engines[0].connector
    for number in range(1000):
        connector.remember(number)
    assert [connector.remembers(number) for number in (999, 744, 743, 0)] == [
        True,
        True,
        False,
        False,
    ]


@pytest.mark.parametrize("change", [{"max_tokens": 0}, {"model": "nope"}])
def test_a_decoder_that_rejects_the_request_frees_the_producer_at_once(
    change: dict[str, object],
) -> None:
    async def test(world: World) -> None:
        await decode(world, await world.prefill(0))  # they know each other now
        handoff = await world.prefill(0)
        answer = await decode(world, handoff, **change)
        assert answer.status in (400, 404)
        assert world.fleet.idle

    run_world(test, *PAIR)


def test_a_decode_leg_aborted_at_once_frees_the_producer() -> None:
    async def test(world: World) -> None:
        handoff = await world.prefill(0)
        client = await world.connect(1)
        body = completion(kv_transfer_params=handoff, stream=True)
        await ask_on(client, COMPLETIONS, body)
        await trio.sleep(0.001)
        client.stream.close()
        await trio.sleep(0.001)
        assert world.fleet.idle
        assert world.fleet["d"].stats.as_dict()["aborted_decode"] == 1

    run_world(test, *PAIR)


def test_a_prefill_whose_client_leaves_before_its_end_keeps_nothing() -> None:
    async def test(world: World) -> None:
        client = await world.connect(0)
        leg = completion(prompt=LONG, max_tokens=1, kv_transfer_params={"do_remote_decode": True})
        await ask_on(client, COMPLETIONS, leg)
        await trio.sleep(0.02)
        client.stream.close()
        await trio.sleep(0.001)
        assert world.fleet.idle
        assert world.fleet["p"].stats.as_dict()["aborted_prefill"] == 1

    run_world(test, *PAIR)


def test_several_samples_leave_all_but_one_cache_behind() -> None:
    async def test(world: World) -> None:
        body = {"n": 3, "temperature": 1}
        handoff = await world.prefill(0, **body)
        core = world.fleet["p"].core
        assert trio.current_time() == pytest.approx(0.005)  # one prefill serves them all
        assert list(core.handles)[-1] == handoff["remote_request_id"]  # the last one's
        await decode(world, handoff)
        assert len(core.handles) == 2
        await trio.sleep(31)
        assert world.fleet.idle

    run_world(test, *PAIR)


def test_pinned_blocks_hold_prefills_up_until_somebody_pulls() -> None:
    async def test(world: World) -> None:
        handoffs = [await world.prefill(0, prompt=text_of(30, str(n))) for n in range(2)]
        page = (await world.ask("/metrics")).body
        assert own(page, "kv_cache_usage_perc") == 1.0
        assert own(page, "num_requests_running") == 0
        client = await world.connect(0)
        await ask_on(client, COMPLETIONS, completion(max_tokens=1))
        await trio.sleep(1)
        assert own((await world.ask("/metrics")).body, "num_requests_waiting") == 1
        await decode(world, handoffs[0], prompt=text_of(30, "0"))
        assert (await client.receive()).status == 200
        assert trio.current_time() < 2.0  # the pull let it go, not the end of a lease
        client.stream.close()

    run_world(test, settings("p", kv_capacity_tokens=64, max_model_len=64), settings("d"))


def test_a_refused_decode_of_two_strangers_frees_the_producer_with_the_next_handoff() -> None:
    """The decoder shakes hands, and then waits for something to do before it tells the producer."""

    async def test(world: World) -> None:
        p, _ = world.fleet.engines
        first = await world.prefill(0, prompt=LONG)
        assert (await decode(world, first, prompt=LONG, max_tokens=0)).status == 400
        assert p.core.released == 0
        second = await world.prefill(0, prompt="short")
        assert (await decode(world, second, prompt="short", max_tokens=0)).status == 400
        assert p.core.released == 2
        assert world.fleet.idle

    run_world(test, *PAIR)


def test_a_release_leg_of_one_token_frees_the_producer_of_a_stranger_at_once() -> None:
    async def test(world: World) -> None:
        p, _ = world.fleet.engines
        handoff = await world.prefill(0, prompt=LONG)
        assert (await decode(world, handoff, prompt=[0], max_tokens=1)).status == 200
        assert p.core.released == 1
        assert world.fleet.idle

    run_world(test, *PAIR)


def test_an_engine_takes_no_word_from_itself() -> None:
    async def test(world: World) -> None:
        p, _ = world.fleet.engines
        handoff = await world.prefill(0, prompt=LONG)
        refused = await world.complete(0, kv_transfer_params=handoff, prompt=LONG, max_tokens=0)
        assert refused.status == 400
        assert p.core.released == 0
        assert not world.fleet.idle

    run_world(test, *PAIR)
