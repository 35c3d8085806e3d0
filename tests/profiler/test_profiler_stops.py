"""Measuring is given up with a reason, and whatever ends it leaves the engines idle."""

from __future__ import annotations

import random
from functools import partial

import attrs
import msgspec
import pytest
import trio
from profiling_stage import QUICK, Stage, on_stage

from narwhal.engine import Correlation, Prompts
from narwhal.model import Route
from narwhal.profiler import ProfilingStopped, Progress, Reason, Wanted
from narwhal.profiler.measuring import measure_handoff
from narwhal.profiler.subject import Subject
from narwhal.testing import AtStep


async def stopped(stage: Stage, wanted: Wanted = QUICK) -> ProfilingStopped:
    with pytest.raises(ProfilingStopped) as caught:
        await stage.profile(wanted)
    assert caught.value.iid in ("d0", "p0")
    assert str(caught.value).startswith(caught.value.iid)
    return caught.value


async def intrude(stage: Stage, iid: str, tokens: int) -> None:
    """Somebody else's request."""
    body = {"model": "emulated", "prompt": [5000] * 64, "max_tokens": tokens, "ignore_eos": True}
    await stage.clients[iid].prefill(
        Route.COMPLETIONS,
        msgspec.json.encode(body),
        Correlation("somebody-else"),
        on_answer=lambda _at: None,
        on_late=lambda _reply: None,
    )


@pytest.mark.parametrize("iid", ["d0", "p0"])
def test_a_busy_engine_is_not_measured(iid: str) -> None:
    async def act(stage: Stage) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(intrude, stage, iid, 2000)
            await trio.sleep(0.1)
            error = await stopped(stage)
            assert error.reason is Reason.BUSY
            assert "1 requests run" in str(error)
            assert stage.steps == []
            assert "drain it" in str(error)
            nursery.cancel_scope.cancel(reason="seen")

    on_stage(act)


@pytest.mark.parametrize("doing", ["prefill of 1024", "4 streams over 512", "handoff of 64"])
def test_a_short_request_of_somebody_else_in_between_is_noticed(doing: str) -> None:
    async def act(stage: Stage) -> None:
        async with trio.open_nursery() as nursery:

            def intrude_once(step: Progress) -> None:
                if step.doing.startswith(doing):
                    stage.on_step = lambda _step: None
                    nursery.start_soon(intrude, stage, "d0", 1)

            stage.on_step = intrude_once
            error = await stopped(stage)
            assert error.reason is Reason.BUSY
            assert "64 prompt tokens of others" in str(error)

    on_stage(act)


def test_a_restart_in_between_is_noticed() -> None:
    async def act(stage: Stage) -> None:
        def restart(step: Progress) -> None:
            if step.doing.startswith("handoff of 4096"):
                stage.on_step = lambda _step: None
                stage.fleet["d0"].take_down(0.0, new_process=True)

        stage.on_step = restart
        error = await stopped(stage)
        assert error.reason in (Reason.RESTARTED, Reason.UNREACHABLE)

    on_stage(act)


def test_an_engine_that_came_back_as_another_process_is_told_apart() -> None:
    async def act(stage: Stage) -> None:
        def restart(step: Progress) -> None:
            if step.doing.startswith("handoff of 4096"):
                # As if it had been down and up again between two requests.
                stage.fleet["d0"].started_at += 1.0

        stage.on_step = restart
        assert (await stopped(stage)).reason is Reason.RESTARTED

    on_stage(act)


@pytest.mark.parametrize("phase", ["whole", "decode", "tokenize", "version", "metrics"])
@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("status(503)", Reason.REFUSED),
        ("rst", Reason.UNREACHABLE),
        ("hang", Reason.TOO_SLOW),
    ],
)
def test_an_engine_that_fails_is_named_with_how(phase: str, fault: str, reason: Reason) -> None:
    async def act(stage: Stage) -> None:
        stage.fleet.fail_with(f"{phase}:{fault}", iid="d0")
        error = await stopped(stage)
        assert error.reason is reason, error
        if reason is Reason.TOO_SLOW:
            assert "_timeout_s (" in str(error)
        stage.fleet.fail_with()

    on_stage(act)


def test_an_engine_that_is_not_there() -> None:
    async def act(stage: Stage) -> None:
        stage.fleet["d0"].take_down()
        await trio.sleep(1.0)
        assert (await stopped(stage)).reason is Reason.UNREACHABLE
        stage.fleet["d0"].restart()
        await trio.sleep(1.0)

    on_stage(act)


def test_a_handoff_that_fails_is_named() -> None:
    async def act(stage: Stage) -> None:
        stage.fleet.fail_with("prefill:kv(remote_block_ids,[])", iid="p0")
        error = await stopped(stage)
        assert error.iid == "p0"
        assert error.reason is Reason.REFUSED
        stage.fleet.fail_with()
        await trio.sleep(40.0)  # nobody can name that cache: its lease ends

    on_stage(act)


def test_a_context_that_is_too_short() -> None:
    async def act(stage: Stage) -> None:
        error = await stopped(stage)
        assert error.reason is Reason.TOO_SHORT
        assert "give --prefill-lens up to 2047" in str(error)

    on_stage(act, max_model_len=2048)


def test_an_engine_that_does_not_follow_the_model() -> None:
    """It becomes three times as slow in the middle of the prefills."""

    async def act(stage: Stage) -> None:
        def slow_down(step: Progress) -> None:
            core = stage.fleet["d0"].core
            core.time = stage.fleet["d0"].settings.time.faster(
                0.1 if step.doing.startswith("prefill of 256") else 1.0
            )

        stage.on_step = slow_down
        error = await stopped(stage)
        assert error.reason is Reason.BAD_FIT
        assert "measure again" in str(error)
        assert not any("streams" in step.doing for step in stage.steps)  # it stopped there

    on_stage(act)


def test_a_cancel_before_any_single_step_of_a_handoff_leaves_nothing() -> None:
    at_step, n = AtStep(), 0

    async def act(stage: Stage) -> bool:
        rng = random.Random(1)
        subject, producer = (Subject(stage.config, stage.clients[i], rng) for i in ("d0", "p0"))
        prompts = Prompts("emulated", range(1000, 2000), rng)
        with trio.CancelScope() as scope:
            at_step.arm(n, lambda: scope.cancel(reason=f"step {n}"))
            await measure_handoff(subject, producer, prompts, 64)
        over = at_step.disarm()
        await trio.sleep(0.2)
        assert not stage.fleet["p0"].core.handles, n
        return over

    over = False
    while not over:
        n += 1
        over = on_stage(act, instruments=[at_step])
    assert n > 50


def test_a_handoff_whose_decoder_is_not_reached_yet_is_released() -> None:
    """Its connection has to be opened, and that takes its time; meanwhile comes the cancel."""

    async def act(stage: Stage) -> None:
        rng = random.Random(1)
        subject, producer = (Subject(stage.config, stage.clients[i], rng) for i in ("d0", "p0"))
        stage.delay_s = 0.5
        with trio.move_on_after(0.8):  # the prefill takes 0.516 s, with its own connection
            prompts = Prompts("emulated", range(1000, 2000), rng)
            await measure_handoff(subject, producer, prompts, 64)
        core = stage.fleet["p0"].core
        assert (core.released, len(core.handles)) == (1, 0)

    on_stage(act)


def test_a_short_request_of_somebody_else_on_the_producer_is_noticed() -> None:
    async def act(stage: Stage) -> None:
        async with trio.open_nursery() as nursery:

            def intrude_once(step: Progress) -> None:
                if step.doing.startswith("handoff of 256"):
                    stage.on_step = lambda _step: None
                    nursery.start_soon(intrude, stage, "p0", 1)

            stage.on_step = intrude_once
            error = await stopped(stage)
            assert (error.iid, error.reason) == ("p0", Reason.BUSY)

    on_stage(act)


def test_a_cancel_at_any_step_leaves_the_engines_idle() -> None:
    """At every step, and in the middle of what follows it; `on_stage` looks at what is left."""

    async def run(stage: Stage, number: int, delay: float) -> bool:
        """Cancel after that many steps; false if it was over before."""
        scope, seen = trio.CancelScope(), 0

        def count(_step: Progress) -> None:
            nonlocal seen
            seen += 1
            if seen == number:
                scope.deadline = trio.current_time() + delay

        stage.on_step = count
        with scope:
            await stage.profile(attrs.evolve(QUICK, decode_tokens=4))
        await trio.sleep(0.01)
        assert stage.fleet.idle, (number, delay)
        return scope.cancelled_caught

    async def act(stage: Stage, delay: float) -> None:
        number = 1
        while await run(stage, number, delay):
            number += 1
        assert number > 25

    for delay in (0.0, 0.004, 0.0199, 0.08):
        on_stage(partial(act, delay=delay))
