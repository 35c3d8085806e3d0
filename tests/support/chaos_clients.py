"""Clients of every kind, on raw connections, and what each of them received."""

from __future__ import annotations

import json
import random
from typing import Any

import attrs
import trio
from chaos_plan import Plan

from narwhal.net import ByteStream, MemoryNetwork


@attrs.define(eq=False)
class Response:
    """One response, as far as it came."""

    status: int
    headers: dict[str, str]
    body: bytearray = attrs.field(factory=bytearray)
    complete: bool = False

    @property
    def is_stream(self) -> bool:
        return self.headers.get("content-type", "").startswith("text/event-stream")


class ResponseParser:
    """Responses on one connection: interim ones skipped, bodies by length or by chunks."""

    def __init__(self) -> None:
        self.responses: list[Response] = []
        self._buffer = bytearray()
        self._left = 0
        self._state = "head"

    def feed(self, data: bytes) -> None:
        self._buffer += data
        while self._step():
            pass

    def _line(self) -> bytes | None:
        end = self._buffer.find(b"\r\n")
        if end < 0:
            return None
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 2]
        return line

    def _step(self) -> bool:
        if self._state == "head":
            return self._head()
        if self._state == "size":
            line = self._line()
            if line is None:
                return False
            self._left = int(line, 16)
            self._state = "chunk" if self._left else "end"
            return True
        if self._state == "end":
            line = self._line()
            if line is None:
                return False
            assert line == b"", f"a trailer: {line!r}"
            self._complete()
            return True
        return self._data()

    def _head(self) -> bool:
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            return False
        status, *lines = self._buffer[:end].decode().split("\r\n")
        del self._buffer[: end + 4]
        assert status.startswith("HTTP/1.1 "), status
        headers = dict(line.lower().split(": ", 1) for line in lines)
        code = int(status.split(" ")[1])
        if code < 200:
            return True
        self.responses.append(Response(code, headers))
        if headers.get("transfer-encoding") == "chunked":
            self._state = "size"
        else:
            self._left = int(headers["content-length"])
            self._state = "length"
            if not self._left:
                self._complete()
        return True

    def _data(self) -> bool:
        take = min(self._left, len(self._buffer))
        self.responses[-1].body += self._buffer[:take]
        del self._buffer[:take]
        self._left -= take
        if self._left:
            return False
        if self._state == "length":
            self._complete()
            return True
        line = self._line()
        if line is None:
            return False
        assert line == b""
        self._state = "size"
        return True

    def _complete(self) -> None:
        self.responses[-1].complete = True
        self._state = "head"


@attrs.define(eq=False)
class Ask:
    """One request, and what became of it on the client's side."""

    name: str
    path: str
    wire: bytes
    body_at: int
    """Where the body begins in `wire`."""
    stream: bool = False
    chat: bool = False
    include_usage: bool = False
    good: bool = True
    """Whether the router should find nothing wrong with it."""
    pieces: int = 1
    pause: float = 0.0
    begun_at: float | None = None
    head_sent: bool = False
    sent: bool = False
    response: Response | None = None
    ended_at: float | None = None
    """When the response was complete, or the connection at its end."""
    left_at: float | None = None
    """When the client itself ended it."""


@attrs.define(eq=False)
class Connection:
    """A client connection that is to be."""

    asks: list[Ask]
    at: float
    pipelined: bool = False
    leave: tuple[str, float] | None = None
    """How it leaves, and how many seconds after it began."""
    read_bytes: int = 65536
    read_pause: float = 0.0
    read_stops_at: int | None = None
    """After so many bytes it reads no more."""
    keep_pause: float = 0.0


def draw_connections(plan: Plan) -> list[Connection]:
    rng = random.Random(f"clients {plan.seed}")
    connections = []
    left = plan.requests
    numbers = iter(range(plan.requests))
    while left:
        count = min(left, rng.choice((1, 1, 1, 2, 4)))
        left -= count
        asks = [draw_ask(rng, f"c{next(numbers)}", rude=plan.rudeness) for _ in range(count)]
        one = Connection(asks, at=rng.uniform(0, plan.span), pipelined=rng.random() < 0.2)
        one.keep_pause = rng.choice((0.0, 0.0, 0.1, 4.5))
        if rng.random() < plan.rudeness:
            how = rng.choice(("close", "reset", "half-close"))
            one.leave = (how, rng.choice((0.0, 0.01, 0.1, 1.0, 3.0)) * rng.random())
        if rng.random() < plan.rudeness * 0.5:
            one.read_bytes, one.read_pause = rng.choice(((40, 0.001), (200, 0.02), (2000, 0.3)))
        if rng.random() < plan.rudeness * 0.3:
            one.read_stops_at = rng.choice((0, 0, 300, 2000))
        connections.append(one)
    return connections


def draw_ask(rng: random.Random, name: str, *, rude: float) -> Ask:
    chat, stream = rng.random() < 0.4, rng.random() < 0.6
    usage = stream and rng.random() < 0.4
    path = "/v1/chat/completions" if chat else "/v1/completions"
    body = _draw_body(rng, name, chat=chat, stream=stream, usage=usage)
    good, headers, raw = True, b"content-type: application/json\r\n", b""
    if rng.random() < rude * 0.3:
        good, path, headers, raw = _spoil(rng, body, path)
    raw = raw or json.dumps(body).encode()
    headers, raw = _frame(rng, headers, raw)
    for rarely, header in ((0.1, b"expect: 100-continue\r\n"), (0.05, b"connection: close\r\n")):
        if rng.random() < rarely:
            headers += header
    head = b"POST %b HTTP/1.1\r\nhost: r\r\nx-request-id: %b\r\n%b\r\n"
    head %= (path.encode(), name.encode(), headers)
    ask = Ask(name, path, head + raw, len(head), stream, chat, usage, good)
    if rng.random() < rude * 0.3:
        ask.pieces, ask.pause = rng.choice(((2, 0.3), (10, 0.02), (3, 2.0)))
    return ask


def _draw_body(
    rng: random.Random, name: str, *, chat: bool, stream: bool, usage: bool
) -> dict[str, Any]:
    body: dict[str, Any] = {"model": "m", "user": name}
    if chat:
        body["messages"] = [{"role": "user", "content": "hi" * rng.choice((1, 50))}]
    else:
        body["prompt"] = rng.choice(("hello", "x" * 300, [1, 2, 3], "y" * 5000))
    if stream:
        body["stream"] = True
    if usage:
        body["stream_options"] = {"include_usage": True}
    field = rng.choice(("max_tokens", "max_completion_tokens" if chat else "max_tokens", None))
    if field:
        body[field] = rng.choice((1, 2, 5, 20, 80))
    return body


def _frame(rng: random.Random, headers: bytes, raw: bytes) -> tuple[bytes, bytes]:
    """Headers that say how long the body is, unless they do already, and the body."""
    if b"content-length" in headers:
        return headers, raw
    if rng.random() < 0.1:
        chunks = [b"%x\r\n%b\r\n" % (len(piece), piece) for piece in _pieces(raw, 100)]
        return headers + b"transfer-encoding: chunked\r\n", b"".join(chunks) + b"0\r\n\r\n"
    return headers + b"content-length: %d\r\n" % len(raw), raw


def _spoil(rng: random.Random, body: dict[str, Any], path: str) -> tuple[bool, str, bytes, bytes]:
    headers, raw = b"content-type: application/json\r\n", b""
    kind = rng.choice(("json", "model", "kv", "type", "path", "empty", "n", "huge"))
    if kind == "json":
        raw = b'{"model": "m", '
    elif kind == "model":
        body["model"] = "other"
    elif kind == "kv":
        body["kv_transfer_params"] = {"do_remote_decode": True}
    elif kind == "type":
        headers = b"content-type: text/plain\r\n"
    elif kind == "path":
        path = "/v1/nothing"
    elif kind == "empty":
        raw = b"\n"
    elif kind == "n":
        body["n"] = 2
    else:
        headers += b"content-length: 5000000\r\n"
        raw = b" " * 1000
    return False, path, headers, raw


def _pieces(raw: bytes, size: int) -> list[bytes]:
    return [raw[at : at + size] for at in range(0, len(raw), size)]


class Visitor:
    """Plays one client connection."""

    def __init__(self, network: MemoryNetwork, connection: Connection) -> None:
        self._network = network
        self._connection = connection
        self._parser = ResponseParser()
        self._news = trio.Event()
        self._over = False
        self._half = False
        self._stream: ByteStream
        self._current: list[Ask] = []

    async def visit(self) -> None:
        connection = self._connection
        await trio.sleep(connection.at)
        try:
            self._stream = await self._network.connect("router", 8000)
        except OSError:
            return
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._read)
                nursery.start_soon(self._leave)
                await self._ask()
                nursery.cancel_scope.cancel(reason="all answered")
        finally:
            self._stream.close()

    async def _ask(self) -> None:
        for n, ask in enumerate(self._connection.asks):
            if self._over or self._half:
                break
            ask.begun_at = trio.current_time()
            self._current.append(ask)
            await self._send(ask)
            if not self._connection.pipelined:
                await self._answered(n + 1)
                await trio.sleep(self._connection.keep_pause)
        await self._answered(len(self._current) + self._half)

    async def _send(self, ask: Ask) -> None:
        size = max(1, -(-len(ask.wire) // ask.pieces))
        sent = 0
        try:
            for piece in _pieces(ask.wire, size):
                await self._stream.send_all(piece)
                sent += len(piece)
                ask.head_sent = sent >= ask.body_at
                if ask.pause:
                    await trio.sleep(ask.pause)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return
        ask.sent = True

    async def _answered(self, count: int) -> None:
        while not self._over and sum(r.complete for r in self._parser.responses) < count:
            await self._news.wait()
            self._news = trio.Event()

    async def _read(self) -> None:
        connection = self._connection
        total = 0
        try:
            while True:
                if connection.read_stops_at is not None and total >= connection.read_stops_at:
                    await self._sulk()
                    break
                data = await self._stream.receive_some(connection.read_bytes)
                if not data:
                    break
                total += len(data)
                self._parser.feed(data)
                self._match()
                if connection.read_pause:
                    await trio.sleep(connection.read_pause)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        self._end(left=False)

    async def _sulk(self) -> None:
        """Read nothing until the router has cut the connection; look at it now and then."""
        for _ in range(800):
            await trio.sleep(0.25)
            try:
                self._stream.send_nowait(b"")
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                return

    def _match(self) -> None:
        for ask, response in zip(self._current, self._parser.responses, strict=False):
            if ask.response is None:
                ask.response = response
            if response.complete and ask.ended_at is None:
                ask.ended_at = trio.current_time()
        self._news.set()

    def _end(self, *, left: bool) -> None:
        now = trio.current_time()
        for ask in self._current:
            if ask.ended_at is None:
                ask.ended_at = now
                ask.left_at = now if left else None
        self._over = True
        self._news.set()

    async def _leave(self) -> None:
        if self._connection.leave is None:
            return
        how, after = self._connection.leave
        await trio.sleep(after)
        if how == "half-close":
            self._half = True  # asks no more, but reads on
            self._stream.send_eof()
            for ask in self._current:
                if ask.ended_at is None:
                    ask.left_at = trio.current_time()
            return
        self._end(left=True)
        self._stream.close(reset=how == "reset")
