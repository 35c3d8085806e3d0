"""Plays a drawn request on a whole router, and compares all that can be seen of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from math import inf
from typing import Any

import pytest
import trio

from narwhal.model import FailureClass, Phase, Terminal
from narwhal.net import ByteStream
from narwhal.placement import Choice, Why
from narwhal.router.queue import Admission

from arithmetic_cases import AFTER_A_GOOD_HEAD, GOOD, Leg, Limits, Request, Script
from arithmetic_model import Model, Wallet, words
from arithmetic_told import Told
from stub_fleet import Play, Seen, good
from worlds import Answer, World, leg_of, play

ERROR = {"error": {"message": "what went wrong", "type": "x", "param": None, "code": 500}}
MISTAKE = {"error": {"message": "too long", "type": "BadRequestError", "param": "p", "code": 400}}
BEFORE_ADMISSION = (Phase.INGRESS, Phase.TOKENIZE, Phase.QUEUE)
EXACTLY = 1e-9


class Stage:
    """A world whose engines do what the scripts of one request after another say."""

    def __init__(self, world: World, limits: Limits, wallet: Wallet, *, left: bool) -> None:
        self.world = world
        self.wallet = wallet
        self.core = world.router.core
        self.limits = limits
        self.request: Request
        self._left = left
        self._pools = [client.pools.data for client in self.core.engines.values()]
        for pool in self._pools:
            pool._idle_expiry = -inf  # each leg opens a connection, and takes its time for it
            pool._connect = self._connect
        world.script(self._script)

    # What engines do

    async def _connect(self, host: str, port: int) -> ByteStream:
        leg = self._leg_that_connects(port)
        if leg is not None:
            await trio.sleep(leg.connect)
            if leg.end == "refused":
                raise ConnectionRefusedError
        return await self.world.network.connect(host, port)

    def _leg_that_connects(self, port: int) -> Leg | None:
        if trio.lowlevel.current_task().parent_nursery is self.core.errands._nursery:
            return None  # a release leg
        (life,) = self.core.lives
        script = self.request.scripts[len(life.record.attempts)]
        return script.prefill if port < 9200 else script.decode

    async def _script(self, play: Play) -> None:
        if play.leg == "tokenize":
            await play.wait(self.request.tokenize)
        if play.leg in ("tokenize", "release"):
            await good(play)
            return
        n = attempt_of(play.seen.headers)
        script = self.request.scripts[n - 1]
        if play.leg == "prefill":
            await play.wait(script.prefill.seconds)
            await answer_prefill(play, script.prefill)
        else:
            await answer_decode(play, script, n)

    # What happens around a request

    def _hold(self, nursery: trio.Nursery, request: Request) -> None:
        """Seat, places and connections are somebody else's for a time."""
        core, start = self.core, trio.current_time()

        async def at(when: float, action: Callable[[], None]) -> None:
            try:
                await trio.sleep_until(start + when)
            finally:
                action()

        def later(when: float, action: Callable[[], None]) -> None:
            nursery.start_soon(at, when, action)

        if request.seat_at:
            assert core.queue.admit_nowait() is Admission.SEAT
            later(request.seat_at, core.queue.leave)
        for phase, when in ((Phase.PREFILL, request.prefill_at), (Phase.DECODE, request.decode_at)):
            for iid in core.roster.takers(phase) if when else ():
                place = core.desks[phase].take_nowait(partial(Choice, iid, Why.ONLY), leg_of)
                assert place is not None
                later(when, place.release)
        if request.starved_at < inf:
            later(request.starved_at, self._starve)

    def _starve(self) -> None:
        for pool in self._pools:
            pool.limit = 0

    async def _watch(self, told: Told) -> None:
        """Look at the request in the middle of each stretch of its life."""
        core, start = self.core, trio.current_time()
        for each in told.stretches:
            if each.ends - each.begins < 1e-6:
                continue
            await trio.sleep_until(start + (each.begins + each.ends) / 2)
            (life,) = core.lives
            assert life.watch.phase is each.phase
            assert (life.arrival, life.deadline) == (start, start + self.limits.request_s)
            assert core.retained == 1
            assert core.queue.waiting == (each.phase is Phase.QUEUE)
            if each.phase not in BEFORE_ADMISSION:
                assert core.queue.admitted == 1, "the seat outlives the attempt"
            assert core.credits.available == float(each.credits)

    # A request

    async def play(self, request: Request, told: Told) -> None:
        self.request = request
        start, before = trio.current_time(), len(self.world.stubs.seen)
        limits = [pool.limit for pool in self._pools]
        with trio.fail_after(1000):
            async with trio.open_nursery() as nursery:
                self._hold(nursery, request)
                nursery.start_soon(self._watch, told)
                answer = await visit(
                    self.world,
                    {"stream": request.stream},
                    body=request.body,
                    leaves_at=request.leaves_at,
                    reset=request.reset,
                )
                assert trio.current_time() - start == pytest.approx(told.end, abs=EXACTLY)
                await trio.sleep(EXACTLY)  # a step of the clock: everybody has heard
                assert self.world.stubs.inflight == 0, "no leg outlives its request"
                nursery.cancel_scope.cancel(reason="the request has ended")
        for pool, limit in zip(self._pools, limits, strict=True):
            pool.limit = limit
        self._check_row(self.world.rows[-1], told, start)
        if answer is not None:
            self._check_answer(answer, told)
        await self.world.settle(3.0)
        self._check_legs(self.world.stubs.seen[before:], told, start)
        assert self.core.credits.available == float(self.wallet.left)
        # What has no name, and what there was no connection for, is left to its lease.
        self._left |= request.starved_at < inf
        self._left |= any(script.prefill.end == "half a handoff" for script in request.scripts)
        assert self._left or self.world.stubs.left_staged == 0

    # What is compared

    def _check_row(self, row: Any, told: Told, start: float) -> None:
        assert (row.terminal, row.code, row.limit) == (told.terminal, told.code, told.limit)
        assert row.status == told.status
        assert list(row.limits_fired) == told.fired
        assert row.arrival == start
        assert row.request_s == pytest.approx(told.end, abs=EXACTLY)
        spent = {phase: seconds for phase, seconds in row.spent.items() if seconds > EXACTLY}
        assert spent == pytest.approx(
            {phase: seconds for phase, seconds in told.spent.items() if seconds > EXACTLY},
            abs=EXACTLY,
        )
        assert len(row.attempts) == len(told.tried) <= self.limits.max_attempts
        for each, tried in zip(row.attempts, told.tried, strict=True):
            got = (str(each.result), each.code, each.phase, each.limit)
            assert got == (tried.result, tried.code, tried.phase, tried.limit)
            if each.failure is not None:
                assert (each.failure is FailureClass.LOCAL) == tried.local
            assert each.handoff_age_s == pytest.approx(tried.handoff_age_s, abs=EXACTLY)
            if each.handoff_age_s is not None and self.limits.handoff_s:
                assert each.handoff_age_s < self.limits.handoff_s
        engines = [each.prefill for each in row.attempts if each.prefill is not None]
        assert len(set(engines)) == min(len(engines), self.limits.prefill or self.limits.decode)

    def _check_answer(self, answer: Answer, told: Told) -> None:
        assert answer.status == told.status
        if told.terminal is Terminal.COMPLETED:
            assert answer.complete
            assert answer.text == told.text
            return
        if answer.status == 200:
            assert not answer.complete
            assert not answer.done
            texts = [each["choices"][0]["text"] for each in answer.events[:-1]]
            assert "".join(texts) == told.text
        elif told.retry_after is not None:
            assert answer.headers["retry-after"] == str(told.retry_after)
        account = answer.error["narwhal"]
        assert (account["limit"], account["attempts"]) == (told.limit, len(told.tried))
        assert sum(account["spent_s"].values()) == pytest.approx(told.end, abs=5e-3)

    def _check_legs(self, seen: list[Seen], told: Told, start: float) -> None:
        legs = [each for each in seen if each.leg != "release"]
        got = [(each.leg, attempt_of(each.headers), each.at - start) for each in legs]
        assert [each[:2] for each in got] == [each[:2] for each in told.legs]
        times = [when for _, _, when in told.legs]
        assert [when for _, _, when in got] == pytest.approx(times, abs=EXACTLY)


def check(
    limits: Limits,
    requests: list[Request],
    seed: int = 0,
    schedule: int = 0,
    *,
    released: bool = True,
) -> None:
    """Play these one after another on one router; each must come out as the model says.

    `released` says whether all handoffs must have been that nobody pulled.
    """
    wallet = Wallet(limits, seed)

    async def body(world: World) -> None:
        stage = Stage(world, limits, wallet, left=not released)
        for request in requests:
            await stage.play(request, Model(limits, request, wallet).predict())

    play(body, limits.config(), seed=seed, lease=limits.lease_s, schedule=schedule)


async def visit(
    world: World, ask: dict[str, Any], *, body: float, leaves_at: float, reset: bool
) -> Answer | None:
    """Send a request whose body follows its head; None for who left before the answer was whole."""
    client = await world.connect()
    answer = None
    with trio.CancelScope(deadline=trio.current_time() + leaves_at):
        async with trio.open_nursery() as nursery:
            ask = {"model": "m", "prompt": "x"} | ask
            nursery.start_soon(partial(client.ask, ask, pause=body))
            answer = await client.answer()
            nursery.cancel_scope.cancel(reason="nobody waits for the rest of the body")
    client.close(reset=reset and answer is None)
    return answer


def attempt_of(headers: dict[str, str]) -> int:
    """Counted from 1; 0 for a leg that belongs to none."""
    return int(headers["x-request-id"].split("-")[-2]) if "x-request-id" in headers else 0


async def answer_prefill(play: Play, leg: Leg) -> None:
    if leg.end == GOOD:
        await play.prefill_answer()
    elif leg.end == "no handoff":
        await play.status(200, play.prefill_body(None))
    elif leg.end == "half a handoff":
        await play.prefill_answer(remote_block_ids=None)
    else:
        await fail(play, leg)


async def answer_decode(play: Play, script: Script, n: int) -> None:
    leg = script.decode
    if leg.end not in (GOOD, *AFTER_A_GOOD_HEAD):
        await play.wait(leg.seconds)
        await fail(play, leg)
        return
    await play.hdr()
    await play.wait(leg.seconds)
    if leg.end != GOOD:
        await END[leg.end](play)
        return
    await play.event(play.token(0, text=words(n, 0)))
    for k, gap in enumerate(script.gaps, start=1):
        await play.wait(gap)
        if k < len(script.gaps):
            await play.event(play.token(k, text=words(n, k)))
    await END[script.end](play)


async def fail(play: Play, leg: Leg) -> None:
    if leg.end.isdigit():
        more = {} if leg.retry_after is None else {"Retry_After": leg.retry_after}
        body = MISTAKE if leg.end == "400" else ERROR
        await play.status(int(leg.end), body, **more)
    else:
        await END[leg.end](play)


async def reset(play: Play) -> None:
    play.rst()


async def leave(play: Play) -> None:
    play.fin()


async def say(play: Play, error: Any) -> None:
    await play.event(error)
    await play.finish()


END: dict[str, Callable[[Play], Awaitable[None]]] = {
    GOOD: lambda play: play.finish(1),
    "rst": reset,
    "fin": leave,
    "cut": reset,
    "garbage": lambda play: play.send(b"not http at all\r\n\r\n"),
    "error": lambda play: say(play, ERROR),
    "mistake": lambda play: say(play, MISTAKE),
    "malformed": lambda play: play.event(b"{half"),
    "empty": lambda play: play.finish(),
    "nothing": lambda play: play.status(200, b""),
    "undone": lambda play: play.send(b"0\r\n\r\n"),
}
