"""What an engine can be asked to keep of its legs, and what makes their answers differ."""

from __future__ import annotations

from emulator_kit import World, completion, run_world, settings

from narwhal.emulator import Leg, Outcome, Record, Verdict, parse_fault


def test_every_leg_is_recorded_with_all_that_it_answered() -> None:
    async def test(world: World) -> None:
        records: list[Record] = []
        for engine in world.fleet.engines:
            engine.stats.records = records
        params = await world.prefill()
        answer = await world.complete(1, kv_transfer_params=params, stream=True)
        broken = await world.complete(1, stream=True, fault="tokens(2);rst")
        prefill, decode, whole = records
        assert [record.leg for record in records] == [Leg.PREFILL, Leg.DECODE, Leg.WHOLE]
        assert (prefill.handle, prefill.pull) == (params["remote_request_id"], None)
        assert decode.pull is not None
        assert decode.pull.verdict is Verdict.RIGHT
        assert (decode.engine, decode.status, bytes(decode.sent)) == ("e1", 200, answer.body)
        assert decode.answered == decode.began == prefill.ended
        assert decode.outcome is Outcome.DONE
        assert whole.fault == parse_fault("tokens(2);rst")
        assert bytes(whole.sent) == broken.body
        assert whole.outcome is Outcome.FAILED

    run_world(test, settings("e0"), settings("e1"))


def test_without_being_asked_it_keeps_nothing() -> None:
    async def test(world: World) -> None:
        await world.complete()
        assert world.fleet.engines[0].stats.records is None

    run_world(test)


def test_answers_that_differ_from_leg_to_leg_though_not_in_the_tokens_they_take() -> None:
    async def test(world: World) -> None:
        texts = []
        for name in ("a", "b", "a"):
            headers = {"x-request-id": name}
            answer = await world.ask("/v1/completions", completion(), headers=headers)
            texts.append(answer.text)
            assert answer.json["usage"]["completion_tokens"] == 4
        assert texts[0] == texts[2]
        assert texts[0] != texts[1]
        params = await world.prefill(prompt="x" * 40)
        answer = await world.complete(0, prompt="x" * 40, kv_transfer_params=params)
        assert answer.status == 200

    run_world(test, settings(repeatable=False))


def test_a_step_of_the_wall_clock_moves_what_is_said_later() -> None:
    async def test(world: World) -> None:
        engine = world.fleet.engines[0]
        before, started = (await world.complete()).json["created"], engine.started_at
        engine.step_clock(-3600)
        assert (await world.complete()).json["created"] == before - 3600
        assert engine.started_at == started

    run_world(test)
