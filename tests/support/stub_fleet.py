"""Stub engines on a network in memory, scripted byte by byte, so that faults are exact.

An engine is a function that plays one request: it is given a `Play` and says what goes over
the wire and when. What the engines saw is recorded: requests, aborts, and the KV handles that
are staged on a producer and pulled by a decoder.
"""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import attrs
import trio

from narwhal.net import ByteStream, MemoryNetwork

Script = Callable[["Play"], Awaitable[None]]


@attrs.define
class Seen:
    """One request as an engine saw it."""

    engine: str
    leg: str
    path: str
    headers: dict[str, str]
    body: Any
    at: float
    aborted_at: float | None = None


class Finished(Exception):
    """The script closed the connection."""


@attrs.define(eq=False)
class Play:
    """One request being played."""

    engine: StubEngine
    stream: ByteStream
    seen: Seen

    @property
    def leg(self) -> str:
        return self.seen.leg

    @property
    def body(self) -> Any:
        return self.seen.body

    async def send(self, data: bytes) -> None:
        """Write raw bytes, one write."""
        await self.stream.send_all(data)

    async def status(self, status: int, body: Any = None, **headers: Any) -> None:
        """A whole answer."""
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        lines = [f"HTTP/1.1 {status} X", "content-type: application/json"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        lines.append(f"content-length: {len(raw)}")
        await self.send("\r\n".join(lines).encode() + b"\r\n\r\n" + raw)

    async def hdr(self) -> None:
        """The head of a stream."""
        await self.send(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
            b"transfer-encoding: chunked\r\n\r\n"
        )

    async def chunk(self, data: bytes) -> None:
        await self.send(b"%x\r\n%b\r\n" % (len(data), data))

    async def event(self, payload: Any) -> None:
        raw = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
        await self.chunk(b"data: " + raw + b"\n\n")

    def token(self, n: int, **more: Any) -> dict[str, Any]:
        choice = {"index": 0, "text": f" t{n}", "logprobs": None, "finish_reason": None} | more
        if "chat" in self.seen.path:
            del choice["text"]
            choice["delta"] = {"content": f" t{n}"}
        return {"id": "cmpl-stub", "object": "text_completion", "model": "m", "choices": [choice]}

    async def tokens(self, count: int, *, first: int = 0, every: float = 0.0) -> None:
        for n in range(first, first + count):
            if every:
                await trio.sleep(every)
            await self.event(self.token(n))

    async def usage(self, count: int) -> None:
        if (self.body.get("stream_options") or {}).get("include_usage"):
            counts = {"prompt_tokens": 5, "completion_tokens": count, "total_tokens": 5 + count}
            await self.event({"id": "cmpl-stub", "choices": [], "usage": counts})

    async def finish(self, count: int = 0) -> None:
        """The end of a good stream."""
        if count:
            await self.usage(count)
        await self.event(b"[DONE]")
        await self.send(b"0\r\n\r\n")

    async def wait(self, seconds: float) -> None:
        await trio.sleep(seconds)

    async def hang(self) -> None:
        await trio.sleep_forever()

    def fin(self) -> None:
        self.stream.close()
        raise Finished

    def rst(self) -> None:
        self.stream.close(reset=True)
        raise Finished

    async def cut(self) -> None:
        """Close inside a chunk."""
        await self.send(b"40\r\ndata: {half")
        self.fin()

    async def prefill_answer(self, **changes: Any) -> None:
        """A good prefill answer; staged until a decoder names it or the lease ends."""
        params = self.engine.fleet.stage(self.engine.name) | changes
        await self.status(200, self.prefill_body(params))

    def prefill_body(self, params: Any) -> dict[str, Any]:
        choice = {"index": 0, "text": " t0", "logprobs": None, "finish_reason": "length"}
        return {
            "id": "cmpl-prefill",
            "object": "text_completion",
            "created": 1,
            "model": "m",
            "choices": [choice],
            "usage": {"prompt_tokens": 5, "completion_tokens": 1, "total_tokens": 6},
            "kv_transfer_params": params,
        }


async def good(play: Play) -> None:
    """What a healthy engine does: prefills at once, decodes `max_tokens` tokens (default 4)."""
    if play.leg == "tokenize":
        await play.status(200, {"count": 5, "max_model_len": 4096, "tokens": [1, 2, 3, 4, 5]})
    elif play.leg == "prefill":
        await play.prefill_answer()
    elif play.leg == "release":
        await play.status(400, {"error": {"message": "no", "type": "BadRequestError", "code": 400}})
    elif play.leg in ("decode", "whole"):
        count = play.body.get("max_completion_tokens") or play.body.get("max_tokens") or 4
        await play.hdr()
        await play.tokens(count)
        await play.finish(count)
    else:
        await play.status(200, {})


class StubFleet:
    """Stub engines and what they share: staged handles, and the record of requests."""

    def __init__(self, network: MemoryNetwork, *, lease: float = 30.0) -> None:
        self.network = network
        self.lease = lease
        self.engines: dict[str, StubEngine] = {}
        self.seen: list[Seen] = []
        self.staged: dict[str, float] = {}
        self.uses: Counter[str] = Counter()
        self.pulls: list[tuple[str, float]] = []
        self._numbers = itertools.count(1)

    def add(self, name: str, port: int) -> StubEngine:
        engine = StubEngine(self, name, port)
        self.engines[name] = engine
        return engine

    def stage(self, producer: str) -> dict[str, Any]:
        number = next(self._numbers)
        handle = f"{producer}/{number}"
        self.staged[handle] = trio.current_time() + self.lease
        return {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_engine_id": producer,
            "remote_block_ids": [[number]],
            "remote_host": "127.0.0.1",
            "remote_port": 5600,
            "remote_request_id": f"cmpl-{number}",
        }

    def pull(self, params: dict[str, Any], leg: str) -> None:
        blocks = params.get("remote_block_ids") or [[0]]
        handle = f"{params['remote_engine_id']}/{blocks[0][0]}"
        self.staged.pop(handle, None)
        if leg == "decode":
            self.uses[handle] += 1

    @property
    def left_staged(self) -> int:
        """Handles that no decoder was told of and no lease has ended."""
        now = trio.current_time()
        return sum(until > now for until in self.staged.values())

    def legs(self, leg: str, engine: str | None = None) -> list[Seen]:
        return [s for s in self.seen if s.leg == leg and engine in (None, s.engine)]

    @property
    def inflight(self) -> int:
        return sum(engine.inflight for engine in self.engines.values())


class StubEngine:
    """One engine: a listener, a script, and counters."""

    def __init__(self, fleet: StubFleet, name: str, port: int) -> None:
        self.fleet = fleet
        self.name = name
        self.port = port
        self.script: Script = good
        self.inflight = 0
        self.most_inflight = 0
        self.aborted: Counter[str] = Counter()
        self.connections: set[ByteStream] = set()
        self.pulls_on_accept = True
        self.key: str | None = None
        self.resets_reused = False
        self.reads_again_after_s = 0.0
        """How long it leaves what comes after an answer on a connection unread."""

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        listener = self.fleet.network.listen("127.0.0.1", self.port)
        try:
            async with trio.open_nursery() as nursery:
                task_status.started()
                while True:
                    stream = await listener.accept()
                    nursery.start_soon(self._serve, stream)
        finally:
            listener.close()

    def die(self) -> None:
        """Drop every connection, as the kernel does for a process that died."""
        for stream in list(self.connections):
            stream.close(reset=True)

    async def _serve(self, stream: ByteStream) -> None:
        self.connections.add(stream)
        try:
            while await self._request(stream):
                await trio.sleep(self.reads_again_after_s)
                if self.resets_reused:
                    # The race of keep-alive: closed as the next request is on its way.
                    await stream.receive_some(1)
                    stream.close(reset=True)
        except (Finished, trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        finally:
            self.connections.discard(stream)
            stream.close()

    async def _request(self, stream: ByteStream) -> bool:
        head, body = await read_message(stream)
        if head is None:
            return False
        line, *rest = head.decode("latin-1").split("\r\n")
        headers = dict(each.split(": ", 1) for each in rest if each)
        path = line.split(" ")[1]
        parsed = json.loads(body) if body else None
        seen = Seen(self.name, _leg(path, parsed), path, headers, parsed, trio.current_time())
        self.fleet.seen.append(seen)
        play = Play(self, stream, seen)
        if self.key is not None and headers.get("authorization") != f"Bearer {self.key}":
            await play.status(401, {"error": {"message": "bad key", "type": "x", "code": 401}})
            return True
        return await self._play(play)

    async def _play(self, play: Play) -> bool:
        counts = play.leg in ("prefill", "decode", "whole")
        self.inflight += counts
        self.most_inflight = max(self.most_inflight, self.inflight)
        left = False
        broken = False
        try:
            async with trio.open_nursery() as nursery:

                async def watch() -> None:
                    nonlocal left
                    try:
                        data = await play.stream.receive_some(1)
                    except (trio.BrokenResourceError, trio.ClosedResourceError):
                        data = b""
                    if not data:
                        left = True
                        nursery.cancel_scope.cancel(reason="the router left")

                nursery.start_soon(watch)
                if play.leg in ("decode", "release") and self.pulls_on_accept:
                    self.fleet.pull(play.body["kv_transfer_params"], play.leg)
                await self.script(play)
                nursery.cancel_scope.cancel(reason="played")
        except* (Finished, trio.BrokenResourceError, trio.ClosedResourceError):
            broken = True
        finally:
            self.inflight -= counts
            if left:
                self.aborted[play.leg] += 1
                play.seen.aborted_at = trio.current_time()
        return not (left or broken)


def _leg(path: str, body: Any) -> str:
    if not path.startswith("/v1/") or "completions" not in path:
        return path.strip("/")
    params = (body or {}).get("kv_transfer_params") or {}
    if params.get("do_remote_decode"):
        return "prefill"
    if params.get("do_remote_prefill"):
        return "release" if body.get("prompt") == [0] else "decode"
    return "whole"


async def read_message(stream: ByteStream) -> tuple[bytes | None, bytes]:
    """One HTTP message with a content-length: head without its blank line, and body."""
    data = b""
    while b"\r\n\r\n" not in data:
        part = await stream.receive_some()
        if not part:
            return None, b""
        data += part
    head, _, body = data.partition(b"\r\n\r\n")
    length = 0
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            length = int(line[15:])
    while len(body) < length:
        part = await stream.receive_some()
        if not part:
            return None, b""
        body += part
    return head, body
