"""Engines that fail in every way the wire allows, and remember exactly what they sent."""

from __future__ import annotations

import itertools
import json
import random
from typing import Any

import attrs
import trio
from chaos_plan import Plan
from chaos_streams import BEFORE_ANYTHING, END, HEAD, STREAM_FAULTS, draw_stream

from narwhal.net import ByteStream

from stub_fleet import Finished, Play, StubEngine, StubFleet, good

PREFILL_FAULTS = (
    *BEFORE_ANYTHING,
    *("cut", "hang after head", "trickle", "interim"),
    *("null", "incomplete", "not json", "giant"),
)
STATUSES = (400, 400, 401, 404, 408, 418, 422, 429, 500, 500, 502, 503, 503, 504, 204, 302)


@attrs.define(eq=False)
class Leg:
    """One leg as its engine played it."""

    number: int
    engine: str
    leg: str
    request_id: str
    user: str | None
    at: float
    fault: str = "ok"
    payload: list[bytes] = attrs.field(factory=list)
    """The events of a stream, whether or not all were sent."""
    handle: str | None = None
    whole: bool = False
    """All of the answer was written."""
    head_at: float | None = None
    """When the first byte was written."""
    accepted_at: float | None = None
    """When the head of a 200 was out."""
    sent: int = 0
    ended_at: float | None = None

    @property
    def request(self) -> str:
        """The router's id of the request."""
        return self.request_id.rsplit("-", 2)[0]

    @property
    def attempt(self) -> int:
        return int(self.request_id.split("-")[2])


class ChaosFleet(StubFleet):
    """As `StubFleet`, and knows when each handle was staged, pulled and released."""

    def __init__(self, plan: Plan, network: Any) -> None:
        super().__init__(network, lease=plan.config.engine.kv_lease_s)
        self.plan = plan
        self.played: list[Leg] = []
        self.staged_by: dict[str, Leg] = {}
        self.pulled: list[tuple[str, str, float]] = []
        self.pulled_late: list[str] = []
        self.numbers = itertools.count(1)
        self.spoiled = 0
        """Times a connection went wrong before a request was read from it."""

    def add(self, name: str, port: int) -> StubEngine:
        engine = ChaosEngine(self, name, port)
        self.engines[name] = engine
        return engine

    def pull(self, params: dict[str, Any], leg: str) -> None:
        handle = f"{params['remote_engine_id']}/{params['remote_block_ids'][0][0]}"
        now = trio.current_time()
        self.pulled.append((handle, leg, now))
        if leg == "decode" and self.staged.get(handle, now) + self.plan.slack < now:
            self.pulled_late.append(handle)
        super().pull(params, leg)


class ChaosEngine(StubEngine):
    """One engine; whatever it does is drawn from the seed and the number of its leg."""

    fleet: ChaosFleet

    def __init__(self, fleet: ChaosFleet, name: str, port: int) -> None:
        super().__init__(fleet, name, port)
        self.rng = random.Random(f"{fleet.plan.seed} {name}")
        self.script = self.chaos

    def die(self) -> None:
        for stream in sorted(self.connections, key=lambda stream: stream.peer[1]):
            stream.close(reset=True)

    async def _serve(self, stream: ByteStream) -> None:
        plan, rng = self.fleet.plan, self.rng
        self.connections.add(stream)
        fault = None
        if rng.random() < 0.1 * plan.faults:
            fault = rng.choice(("close", "reset", "mute", "deaf", "early", "late reset"))
        try:
            if fault is not None:
                await self._spoil(stream, fault)
            while fault is None and await self._request(stream):
                kind = rng.random()
                if kind < 0.05:
                    return
                if kind < 0.1:
                    # The race of keep-alive: closed as the next request is on its way.
                    await stream.receive_some(1)
                    fault = "reset"
                    self.fleet.spoiled += 1
        except (Finished, trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        finally:
            self.connections.discard(stream)
            stream.close(reset=fault is not None and "reset" in fault)

    async def _spoil(self, stream: ByteStream, fault: str) -> None:
        """A connection that goes wrong before anybody has read a request."""
        self.fleet.spoiled += 1
        if fault == "deaf":
            await trio.sleep(self.rng.choice((0.1, 3.0, 30.0)))
        elif fault == "mute":
            while await stream.receive_some():
                pass
        elif fault == "late reset":
            await stream.receive_some(self.rng.choice((1, 100)))
            await trio.sleep(self.rng.choice((0.0, 0.1)))
        elif fault == "early":
            await stream.receive_some(1)
            status = self.rng.choice((413, 400, 503))
            body = b'{"error":{"message":"early","type":"x","code":400}}'
            await stream.send_all(
                b"HTTP/1.1 %d X\r\ncontent-length: %d\r\n\r\n%b" % (status, len(body), body)
            )
            if self.rng.random() < 0.5:
                await trio.sleep(0.05)

    # Legs

    async def chaos(self, play: Play) -> None:
        plan, rng = self.fleet.plan, self.rng
        number = next(self.fleet.numbers)
        leg = Leg(
            number,
            self.name,
            play.leg,
            play.seen.headers.get("x-request-id", ""),
            (play.body or {}).get("user"),
            trio.current_time(),
        )
        self.fleet.played.append(leg)
        shares = {"tokenize": 0.3, "prefill": 0.4}
        faulty = rng.random() < plan.faults * shares.get(play.leg, 1.0)
        try:
            if play.leg == "prefill":
                await self._prefill(play, leg, faulty=faulty)
            elif play.leg in ("decode", "whole"):
                await self._decode(play, leg, faulty=faulty)
            elif faulty:
                await self._spoiled(play, leg, rng.choice(("status", "hang", "rst", "garbage")))
            else:
                await self._pause(0.02)
                leg.head_at = trio.current_time()
                await good(play)
                leg.whole = True
        finally:
            leg.ended_at = trio.current_time()

    async def _pause(self, scale: float = 1.0) -> None:
        seconds = self.rng.choice((0.0, 0.0, 0.001, 0.05, 0.5, 3.0)) * self.fleet.plan.slow * scale
        if seconds:
            await trio.sleep(seconds)

    async def _spoiled(self, play: Play, leg: Leg, fault: str) -> None:
        """What any leg can suffer before it has said anything."""
        rng = self.rng
        leg.fault = fault
        await self._pause()
        if fault == "hang":
            await play.hang()
        elif fault == "rst":
            play.rst()
        elif fault == "fin":
            play.fin()
        elif fault == "garbage":
            await play.send(rng.choice((b"\x00\xff" * 50, b"HTTP/1.1 abc\r\n\r\n", b"\r\n\r\n")))
            if rng.random() < 0.5:
                play.fin()
            await play.hang()
        elif fault == "status":
            status = rng.choice(STATUSES)
            more = {"Retry_After": rng.choice((0, 1, 7))} if rng.random() < 0.3 else {}
            error = {
                "message": f"engine says {status}",
                "type": "Bad",
                "param": "x",
                "code": status,
            }
            body = rng.choice(
                (b"", b"<html>", {"error": error}, {"error": error}, {"detail": "no"})
            )
            if status == 204:
                await play.send(b"HTTP/1.1 204 X\r\n\r\n")
            else:
                await play.status(status, body, **more)

    async def _prefill(self, play: Play, leg: Leg, *, faulty: bool) -> None:
        rng = self.rng
        fault = leg.fault = rng.choice(PREFILL_FAULTS) if faulty else "ok"
        if fault in BEFORE_ANYTHING:
            await self._spoiled(play, leg, fault)
            return
        await self._pause()
        wire = self._prefill_answer(play, leg, fault)
        if fault in ("cut", "hang after head"):
            await self._write(play, leg, wire[: rng.randrange(len(wire))])
            if fault == "cut":
                rng.choice((play.rst, play.fin))()
            await play.hang()
        if fault == "trickle":
            half = rng.randrange(len(wire))
            await self._write(play, leg, wire[:half])
            await self._pause()
            wire = wire[half:]
        await self._write(play, leg, wire)
        leg.whole = True

    def _prefill_answer(self, play: Play, leg: Leg, fault: str) -> bytes:
        params: Any = self.fleet.stage(self.name)
        leg.handle = f"{self.name}/{params['remote_block_ids'][0][0]}"
        self.fleet.staged_by[leg.handle] = leg
        if fault == "null":
            params = None
        elif fault == "incomplete":
            del params[self.rng.choice(sorted(params))]
        body = json.dumps(play.prefill_body(params)).encode()
        if fault == "not json":
            body = b"[" + body
        elif fault == "giant":
            body = body[:-1] + b', "pad": "' + b"x" * 30_000 + b'"}'
        head = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body)
        interim = b"HTTP/1.1 103 Hints\r\nx: y\r\n\r\n" if fault == "interim" else b""
        return interim + head + body

    async def _write(self, play: Play, leg: Leg, wire: bytes) -> None:
        """Write in pieces of some size, with some pause."""
        rng = self.rng
        leg.head_at = leg.head_at or trio.current_time()
        kind = rng.random()
        if kind < 0.5:
            await self._piece(play, leg, wire)
            return
        size = 1 if kind < 0.6 and len(wire) < 4000 else rng.randint(20, 500)
        pause = rng.choice((0.0, 0.0, 0.001, 0.02)) * self.fleet.plan.slow
        for at in range(0, len(wire), size):
            await self._piece(play, leg, wire[at : at + size])
            if pause and at + size < len(wire):
                await trio.sleep(pause)

    async def _piece(self, play: Play, leg: Leg, data: bytes) -> None:
        await play.send(data)
        leg.sent += len(data)
        if leg.accepted_at is None and leg.sent >= len(HEAD):
            leg.accepted_at = trio.current_time()

    # Streams

    async def _decode(self, play: Play, leg: Leg, *, faulty: bool) -> None:
        rng, body = self.rng, play.body
        fault = leg.fault = rng.choice(STREAM_FAULTS) if faulty else "ok"
        if fault in BEFORE_ANYTHING:
            await self._spoiled(play, leg, fault)
            return
        await self._pause()
        if fault in ("comments", "endless"):
            await self._write(play, leg, HEAD)
            await self._go_on(play, leg, fault)
            return
        stream = draw_stream(
            rng,
            fault,
            number=leg.number,
            chat="chat" in play.seen.path,
            count=body.get("max_completion_tokens") or body.get("max_tokens") or 4,
            usage=bool((body.get("stream_options") or {}).get("include_usage")),
        )
        leg.payload = stream.events
        gap = rng.choice((0.0, 0.0, 0.001, 0.05, 0.4)) * self.fleet.plan.slow
        if gap:
            await self._write_slowly(play, leg, stream.wire, gap)
        else:
            await self._write(play, leg, stream.wire)
        await self._end(play, leg, stream.ending)

    async def _end(self, play: Play, leg: Leg, ending: str) -> None:
        if ending in ("rst", "fin"):
            {"rst": play.rst, "fin": play.fin}[ending]()
        if ending == "hang":
            await play.hang()
        if ending in ("late end", "no end"):
            await trio.sleep(0.02 if ending == "late end" else 30)
            await play.send(END)
        leg.whole = True

    async def _write_slowly(self, play: Play, leg: Leg, wire: bytes, gap: float) -> None:
        """A chunk, or a few events, at a time."""
        leg.head_at = leg.head_at or trio.current_time()
        *pieces, last = wire.split(b"\n\n")
        for piece in pieces:
            await self._piece(play, leg, piece + b"\n\n")
            await trio.sleep(gap)
        await self._piece(play, leg, last)

    async def _go_on(self, play: Play, leg: Leg, fault: str) -> None:
        """Comments, or output, without end: at a pace that virtual time can keep up with."""
        pause = self.fleet.plan.config.serving.request_timeout_s / 25
        chat = "chat" in play.seen.path
        for n in itertools.count():
            text = f" {leg.number}.{n}"
            key = {"delta": {"content": text}} if chat else {"text": text}
            event = b"data: %b\n\n" % json.dumps({"choices": [{"index": 0, **key}]}).encode()
            if fault == "comments":
                event = b": ping\n\n"
            else:
                leg.payload.append(event)
            await play.chunk(event)
            if n % 8 == 7:
                await trio.sleep(pause)
