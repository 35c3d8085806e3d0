"""What emulated engines do for simulations: fewer writes, and answers of a length in the prompt."""

from __future__ import annotations

import pytest
from emulator_kit import Answer, World, run_world, settings

from narwhal.testing import MemoryFleet, TimeModel, fleet_config


@pytest.mark.parametrize("tokens", [1, 2, 4, 5, 6, 20])
def test_a_stream_may_be_written_every_so_many_tokens(tokens: int) -> None:
    answers: list[Answer] = []

    async def test(world: World) -> None:
        answers.append(await world.complete(max_tokens=tokens, stream=True))

    run_world(test, settings())
    run_world(test, settings(stream_every=4))
    single, several = answers
    assert several.text == single.text
    assert several.done
    assert len(several.chunks) == len(single.chunks)
    assert several.reads[0][0] == single.reads[0][0]
    assert several.reads[-1][0] == single.reads[-1][0]
    # The first, every fourth step after the prefill, and the end.
    assert len({at for at, _ in several.reads}) == 1 + (tokens - 1 + 3) // 4


def test_the_first_token_id_may_say_how_long_the_answer_is() -> None:
    async def test(world: World) -> None:
        ids = [5, 9, 9]
        answer = await world.complete(prompt=ids, max_tokens=64)
        assert answer.json["usage"]["completion_tokens"] == 5
        short = await world.complete(prompt=ids, max_tokens=3)
        assert short.json["usage"]["completion_tokens"] == 3
        text = await world.complete(prompt="5 9 9", max_tokens=7)
        assert text.json["usage"]["completion_tokens"] == 7

    run_world(test, settings(length_in_prompt=True))


def test_engines_of_one_fleet_may_differ() -> None:
    slow = TimeModel(prefill=(0.0, 1.0, 0.0))
    fleet = MemoryFleet(fleet_config(), own={"d0": {"time": slow}}, stream_every=2)
    assert fleet["d0"].settings.time == slow
    assert fleet["p0"].settings.time == TimeModel()
    assert [fleet[iid].settings.stream_every for iid in ("p0", "d0")] == [2, 2]
