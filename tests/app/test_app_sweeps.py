"""Every kind of request, ended in every way before every single step that any task takes."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import attrs
import h11
import pytest
import trio
from trio.testing import MockClock

from narwhal.config import FleetConfig
from narwhal.model import RequestFailed, Terminal
from narwhal.simulate.world import ErrorLog
from narwhal.testing import AtStep, run_seeded

from stub_fleet import Play, Script, good
from worlds import Answer, Client, World, fleet_config, open_world

ASK: dict[str, Any] = {"model": "m", "prompt": "hello", "max_tokens": 6}
TEXT = " t0 t1 t2 t3 t4 t5"


@attrs.define
class Attack:
    """What an action can lay its hands on."""

    world: World
    clock: MockClock
    scope: trio.CancelScope
    client: Client | None = None


Action = Callable[[Attack], None]


def leave(attack: Attack) -> None:
    if attack.client is not None:
        attack.client.close()


def reset(attack: Attack) -> None:
    if attack.client is not None:
        attack.client.close(reset=True)


def shut_down(attack: Attack) -> None:
    for life in attack.world.router.core.lives:
        life.shut_down()


def cut(attack: Attack) -> None:
    for connection in list(attack.world.server._connections):
        if hasattr(connection, "_tasks"):
            connection.stop("test")


def cancel(attack: Attack) -> None:
    attack.scope.cancel(reason="the caller's own")


def crash(name: str) -> Action:
    def die(attack: Attack) -> None:
        attack.world.engine(name).die()
        attack.world.engine("d0").aborted["dead"] += 1

    return die


def later(seconds: float) -> Action:
    """So much time passes between two steps: limits fire where nobody waits for them."""

    def jump(attack: Attack) -> None:
        attack.clock.jump(seconds)

    return jump


def deadline(attack: Attack) -> None:
    """The request's deadline passes between two steps."""
    now = trio.current_time()
    left = [life.deadline - now for life in attack.world.router.core.lives]
    attack.clock.jump(max(0.0, *left) if left else 0.0)


HTTP_ACTIONS: dict[str, Action] = {
    "leave": leave,
    "reset": reset,
    "shut down": shut_down,
    "cut": cut,
    "p0 dies": crash("p0"),
    "d0 dies": crash("d0"),
    "the gap limit passes": later(0.35),
    "the prefill limit passes": later(0.6),
    "the first token's limit passes": later(1.2),
    "the handoff's cap passes": later(5.2),
    "the deadline passes": deadline,
}
OWN_ACTIONS: dict[str, Action] = {
    name: action for name, action in HTTP_ACTIONS.items() if name not in ("leave", "reset", "cut")
} | {"cancel": cancel}

# Kinds of requests


async def slow(play_: Play) -> None:
    """A few steps between any two events."""
    if play_.leg in ("decode", "whole"):
        await play_.hdr()
        count = play_.body.get("max_tokens")
        await play_.tokens(count, every=0.05)
        await play_.finish(count)
    else:
        await play_.wait(0.05)
        await good(play_)


async def busy_once(play_: Play) -> None:
    """The first decoder is busy, its handoff is released, and the next attempt serves."""
    if play_.leg == "decode" and play_.seen.headers["x-request-id"].split("-")[2] == "1":
        await play_.status(503, b"{}")
    else:
        await slow(play_)


async def refused(play_: Play) -> None:
    if play_.leg == "prefill":
        await play_.status(400, {"error": {"message": "no", "type": "BadRequestError"}})
    else:
        await good(play_)


@attrs.frozen
class Kind:
    ask: dict[str, Any]
    script: Script = slow
    config: FleetConfig = attrs.field(factory=lambda: fleet(decode=2, prefill=2))
    behind: bool = False
    """Whether another request is served first, which this one has to wait for."""
    pieces: int = 1
    reads_after: float = 0.0
    """How long the client does not read, with next to no buffer between it and the router."""


def fleet(**more: Any) -> FleetConfig:
    engine = {"first_token_timeout_s": 1.0, "decode_read_timeout_s": 0.3, "connect_timeout_s": 0.3}
    defaults: dict[str, Any] = {
        "request_timeout_s": 10.0,
        "prefill_timeout_s": 0.5,
        "max_attempts": 3,
        "handoff_timeout_s": 5.0,
        "retry_budget": 50,
        "engine": engine,
    }
    return fleet_config(**(defaults | more))


SEATS = {
    "max_connections": 1,
    "queue_capacity": 2,
    "queue_timeout_s": 5.0,
    "prefill_concurrency": 2,
    "decode_concurrency": 2,
}
KINDS: dict[str, Callable[[], Kind]] = {
    "streamed": lambda: Kind(ASK | {"stream": True}),
    "held back": lambda: Kind(
        ASK | {"stream": True}, config=fleet(decode=2, prefill=2, stream_commit="first_token")
    ),
    "assembled": lambda: Kind(ASK),
    "queued": lambda: Kind(ASK | {"stream": True}, config=fleet(**SEATS), behind=True),
    "waiting for a decoder": lambda: Kind(ASK, config=fleet(decode_concurrency=1), behind=True),
    "retried": lambda: Kind(ASK | {"stream": True}, script=busy_once),
    "refused": lambda: Kind(ASK, script=refused),
    "in one leg": lambda: Kind(ASK | {"stream": True}, config=fleet(prefill=0, decode=2)),
    "in pieces": lambda: Kind(ASK, pieces=4),
    "not read": lambda: Kind(ASK | {"stream": True}, reads_after=2.0),
    "assembled and not read": lambda: Kind(ASK, reads_after=2.0),
}


def sweep(name: str, how: str, *, own: bool) -> int:
    """Run the request again and again, ended some steps later each time; how many times."""
    kind, action = KINDS[name](), (OWN_ACTIONS if own else HTTP_ACTIONS)[how]
    clock = MockClock(autojump_threshold=0)
    at_step = AtStep()

    async def main() -> int:
        rounds, step = 0, 1
        async with open_world(kind.config) as world:
            world.script(kind.script)
            while True:
                rounds += 1
                done = await _round(world, clock, kind, action, own=own, at_step=at_step, n=step)
                # Reused connections in one round, fresh ones in the next.
                await world.settle(2.0 if rounds % 2 else 40.0)
                world.at_rest()
                # A process that died pins nothing, but the stub of one does not know.
                staged = 0 if world.engine("d0").aborted["dead"] else world.stubs.left_staged
                assert staged <= _unaccounted(world), f"step {step}: staged and forgotten"
                await _works(world)
                if done:
                    return rounds
                step += 1

    with ErrorLog() as errors:
        rounds = run_seeded(main, seed=f"{name} {how}", clock=clock, instruments=[at_step])
    assert not errors.texts, "\n".join(errors.texts)
    return rounds


def _unaccounted(world: World) -> int:
    """Handoffs in answers that the router cannot have read, and those it counts as orphans."""
    orphaned = world.router.telemetry.totals().kv_orphaned
    unread = sum(attempt.prefill_s is None for row in world.rows for attempt in row.attempts)
    return orphaned + unread


async def _round(
    world: World,
    clock: MockClock,
    kind: Kind,
    action: Action,
    *,
    own: bool,
    at_step: AtStep,
    n: int,
) -> bool:
    """One request; whether it was over before the n-th step came."""
    attack = Attack(world, clock, trio.CancelScope())
    rows = len(world.rows)
    async with trio.open_nursery() as nursery:
        if kind.behind:
            nursery.start_soon(_ahead, world)
            await trio.sleep(0.12)
        at_step.arm(n, lambda: action(attack))
        play = _embedded if own else _over_http
        with attack.scope:
            await play(world, kind, attack)
        over = at_step.disarm()
    for row in world.rows[rows:]:
        assert row.terminal is not Terminal.FAILED or row.code != "internal"
    return over


async def _ahead(world: World) -> None:
    client = await world.connect()
    with suppress(h11.RemoteProtocolError):
        await client.ask(ASK)
        while not isinstance(await client.next_event(), h11.EndOfMessage | h11.ConnectionClosed):
            pass
    client.close()


async def _over_http(world: World, kind: Kind, attack: Attack) -> None:
    world.network._buffer_bytes = 100 if kind.reads_after else 65536
    client = attack.client = await world.connect()
    with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
        await _ask_in_pieces(client, kind)
        await trio.sleep(kind.reads_after)
        with suppress(h11.RemoteProtocolError):  # cut before it was answered
            head = await client.next_event()
            if isinstance(head, h11.Response):
                await _read_answer(client, kind, head)
    client.close()


async def _ask_in_pieces(client: Client, kind: Kind) -> None:
    if kind.pieces == 1:
        await client.ask(kind.ask)
        return
    raw = json.dumps(kind.ask).encode()
    wire = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(raw)
    wire += raw
    size = -(-len(wire) // kind.pieces)
    for at in range(0, len(wire), size):
        await client.stream.send_all(wire[at : at + size])
        await trio.sleep(0.1)
    # So that the parser of the client knows what is answered.
    client._h11.send(h11.Request(method="POST", target="/", headers=[("host", "x")]))
    client._h11.send(h11.EndOfMessage())


async def _read_answer(client: Client, kind: Kind, head: h11.Response) -> None:
    body, complete = b"", False
    with suppress(trio.ClosedResourceError, h11.RemoteProtocolError):
        while isinstance(event := await client.next_event(), h11.Data):
            body += event.data
        complete = isinstance(event, h11.EndOfMessage)
    if kind.ask.get("stream"):
        body = body[: body.rfind(b"\n\n") + 2]  # an event that was cut is none
    headers = {name.decode(): value.decode() for name, value in head.headers}
    answer = Answer(head.status_code, headers, body, complete, 0.0)
    if answer.status == 200 and (complete or kind.ask.get("stream")):
        _check(answer.text, kind, complete=complete)


def _check(text: str, kind: Kind, *, complete: bool) -> None:
    assert TEXT.startswith(text), f"lost, repeated or out of order: {text!r}"
    assert not complete or text == TEXT, "called complete, and is not"


async def _embedded(world: World, kind: Kind, attack: Attack) -> None:
    router, ask = world.router, {k: v for k, v in kind.ask.items() if k != "stream"}
    text, complete = "", False
    try:
        if kind.ask.get("stream"):
            async with router.stream(ask) as events:
                async for event in events:
                    text += event["choices"][0]["text"]
            complete = True
        else:
            text = (await router.complete(ask))["choices"][0]["text"]
            complete = True
    except RequestFailed:
        pass
    finally:
        _check(text, kind, complete=complete)


async def _works(world: World) -> None:
    """The next request is served as if nothing had been."""
    before, world_script = len(world.rows), world.engine("d0").script
    world.script(good)
    answer = await world.post(ASK)
    assert answer.status == 200
    assert world.rows[before].terminal is Terminal.COMPLETED
    world.script(world_script)


Run = Callable[[], Awaitable[None]]


@pytest.mark.parametrize("action", HTTP_ACTIONS)
@pytest.mark.parametrize("kind", KINDS)
def test_over_http(kind: str, action: str) -> None:
    if action == "p0 dies" and kind == "in one leg":
        action = "d0 dies"
    assert sweep(kind, action, own=False) > 2


@pytest.mark.parametrize("action", OWN_ACTIONS)
@pytest.mark.parametrize("kind", ["streamed", "assembled", "queued", "retried", "in one leg"])
def test_embedded(kind: str, action: str) -> None:
    if action == "p0 dies" and kind == "in one leg":
        action = "d0 dies"
    assert sweep(kind, action, own=True) > 2
