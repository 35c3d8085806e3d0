"""The clients of a soak: every way to ask, to read, and to leave, drawn by chance."""

from __future__ import annotations

import json
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import attrs
import trio

from narwhal.emulator import text_of

if TYPE_CHECKING:
    import random
    from collections.abc import Awaitable, Callable

PATIENCE_S = 30.0
"""More than any request of the soak may take: who waits that long was forgotten."""
LONGEST_VISIT_S = 150.0
"""Several requests, one after the other."""

# What a prompt asks of the engines it meets, through the router. A retry meets it again.
FAULTS = (
    "decode:tokens(3);rst",
    "decode:tokens(2);fin",
    "decode:cut",
    "decode:hang",
    "decode:stall(2)",
    "decode:tokens(2);error(no)",
    "decode:malformed",
    "decode:nodone",
    "decode:status(500)",
    "decode:status(503)",
    "decode:wait(0.3)",
    "decode:drip(2000)",
    "decode:bytewise(0.001)",
    "decode:nousage",
    "decode:nopull",
    "prefill:status(500)",
    "prefill:status(400)",
    "prefill:rst",
    "prefill:hang",
    "prefill:nokv",
    "prefill:kv(remote_request_id)",
    "prefill:wait(0.5)",
    "prefill:cut",
    "tokenize:status(500)",
    "tokenize:hang",
)


@attrs.frozen
class Seen:
    """What one client saw of one request."""

    client_id: str
    habit: str
    status: int | None
    """None: no answer came, or the client did not wait for it."""
    whole: bool
    """Whether the answer came to its end as HTTP has it."""
    done: bool
    """Whether a stream had its `[DONE]`."""
    error: bool
    """Whether a stream ended in an error."""


class Connection:
    """One client connection, which knows as much HTTP as this router speaks."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self._held = b""

    async def send(self, data: bytes) -> None:
        await self.stream.send_all(data)

    def close(self, *, reset: bool = False) -> None:
        if reset:
            linger = (1).to_bytes(4, "little") + (0).to_bytes(4, "little")
            self.stream.socket.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_LINGER, linger)
        self.stream.socket.close()

    async def head(self) -> tuple[int, dict[str, str]]:
        """Status and headers of the next answer; EOFError if the connection ends first."""
        while b"\r\n\r\n" not in self._held:
            await self._more()
        head, _, self._held = self._held.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in lines)
        return int(first.split()[1]), headers

    async def body(self, headers: dict[str, str]) -> bytes:
        """The body, to its end; EOFError if it breaks off."""
        if "content-length" in headers:
            size = int(headers["content-length"])
            while len(self._held) < size:
                await self._more()
            body, self._held = self._held[:size], self._held[size:]
            return body
        body = b""
        while True:
            while b"\r\n" not in self._held:
                await self._more()
            size_line, _, self._held = self._held.partition(b"\r\n")
            size = int(size_line, 16)
            while len(self._held) < size + 2:
                await self._more()
            body += self._held[:size]
            self._held = self._held[size + 2 :]
            if not size:
                return body

    async def drink(self, size: int) -> None:
        """Read some, and forget it."""
        if not await self.stream.receive_some(size):
            raise EOFError

    async def _more(self) -> None:
        data = await self.stream.receive_some(65536)
        if not data:
            raise EOFError
        self._held += data


class Visitors:
    """Plays clients against a router until told to stop. What they saw is in `seen`."""

    def __init__(
        self, host: str, port: int, rng: random.Random, *, model: str = "emulated"
    ) -> None:
        self._address = (host, port)
        self._model = model
        self._rng = rng
        self._number = 0
        self.seen: list[Seen] = []
        self.habits: Counter[str] = Counter()
        self.here = 0
        """Clients that are there now."""
        self.forgotten: list[str] = []
        """Requests that nobody answered within the client's patience, and visits without end."""
        self._habits: list[tuple[float, str, Callable[[str], Awaitable[None]]]] = [
            (30, "read", self._read),
            (10, "keep alive", self._keep_alive),
            (5, "large prompt", self._large),
            (12, "engine fault", self._fault),
            (3, "leave in the body", self._leave_in_body),
            (8, "leave at once", self._leave_at_once),
            (8, "leave while waiting", self._leave_while_waiting),
            (8, "leave in the stream", self._leave_in_stream),
            (3, "half-close", self._half_close),
            (4, "read slowly", self._read_slowly),
            (2, "stop reading", self._stop_reading),
            (4, "nonsense", self._nonsense),
            (3, "pages", self._pages),
        ]

    async def one(self) -> None:
        """One client, from coming to leaving."""
        weights = [weight for weight, _, _ in self._habits]
        _, name, act = self._rng.choices(self._habits, weights)[0]
        self.habits[name] += 1
        self.here += 1
        try:
            with trio.move_on_after(LONGEST_VISIT_S) as visit:
                await act(name)
            if visit.cancelled_caught:
                self.forgotten.append(name)
        except (OSError, trio.BrokenResourceError, trio.ClosedResourceError, EOFError):
            pass  # cut off, which is what some of them are to be
        finally:
            self.here -= 1

    async def large(self) -> None:
        """A client with a large prompt, which reads its answer."""
        with suppress(OSError, trio.BrokenResourceError, EOFError):
            await self._large("rush")

    # Asking

    async def _connect(self, *, window: int | None = None) -> Connection:
        raw = trio.socket.socket()
        if window is not None:
            raw.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_RCVBUF, window)
        await raw.connect(self._address)
        return Connection(trio.SocketStream(raw))

    def _ask(
        self, *, stream: bool | None = None, words: int | None = None, tokens: int | None = None,
        prompt: str | None = None,
    ) -> tuple[str, bytes, bytes]:  # fmt: skip
        """A request: the client's id for it, its head and its body."""
        rng = self._rng
        self._number += 1
        name = f"soak-{self._number}"
        words = words or rng.choice((5, 20, 100, 500))
        text = prompt or text_of(words, name)
        body: dict[str, Any] = {
            "model": self._model,
            "max_tokens": tokens or rng.choice((1, 5, 20, 60)),
        }
        if stream if stream is not None else rng.random() < 0.6:
            body["stream"] = True
            if rng.random() < 0.3:
                body["stream_options"] = {"include_usage": True}
        if rng.random() < 0.5:
            path, body["messages"] = "chat/completions", [{"role": "user", "content": text}]
        else:
            path, body["prompt"] = "completions", text
        raw = json.dumps(body).encode()
        return name, self._head(path, name, len(raw)), raw

    @staticmethod
    def _head(path: str, name: str, size: int) -> bytes:
        return (
            f"POST /v1/{path} HTTP/1.1\r\nhost: soak\r\ncontent-type: application/json\r\n"
            f"x-request-id: {name}\r\ncontent-length: {size}\r\n\r\n"
        ).encode()

    async def _answer(self, connection: Connection, name: str, habit: str) -> None:
        """Read the whole answer, and note what it was."""
        status, body, whole = None, b"", False
        try:
            with trio.move_on_after(PATIENCE_S) as patience:
                status, headers = await connection.head()
                body = await connection.body(headers)
                whole = True
            if patience.cancelled_caught:
                self.forgotten.append(f"{name}, {habit}")
                raise EOFError
        finally:
            done = body.endswith(b"data: [DONE]\n\n")
            error = b'data: {"error"' in body
            self.seen.append(Seen(name, habit, status, whole, done, error))

    async def _exchange(self, habit: str, request: tuple[str, bytes, bytes]) -> None:
        name, head, raw = request
        connection = await self._connect()
        try:
            await connection.send(head + raw)
            await self._answer(connection, name, habit)
        finally:
            connection.close()

    # Habits

    async def _read(self, habit: str) -> None:
        await self._exchange(habit, self._ask())

    async def _large(self, habit: str) -> None:
        await self._exchange(habit, self._ask(words=8000, tokens=5))

    async def _fault(self, habit: str) -> None:
        fault = self._rng.choice(FAULTS)
        await self._exchange(habit, self._ask(prompt=f"{text_of(20, 'f')} fault={fault}"))

    async def _keep_alive(self, habit: str) -> None:
        connection = await self._connect()
        try:
            for _ in range(self._rng.randint(2, 5)):
                name, head, raw = self._ask(tokens=5)
                await connection.send(head + raw)
                await self._answer(connection, name, habit)
                await trio.sleep(self._rng.random() * 0.2)
        finally:
            connection.close()

    async def _leave_in_body(self, _habit: str) -> None:
        _, head, raw = self._ask(words=8000)
        connection = await self._connect()
        await connection.send(head + raw[: self._rng.randrange(len(raw))])
        await trio.sleep(self._rng.random() * 0.1)
        connection.close(reset=self._rng.random() < 0.5)

    async def _leave_at_once(self, _habit: str) -> None:
        await self._leave(self._rng.random() * 0.02)

    async def _leave_while_waiting(self, _habit: str) -> None:
        await self._leave(self._rng.random() * 0.5)

    async def _leave(self, after_s: float) -> None:
        _, head, raw = self._ask(tokens=60)
        connection = await self._connect()
        await connection.send(head + raw)
        await trio.sleep(after_s)
        connection.close(reset=self._rng.random() < 0.5)

    async def _leave_in_stream(self, _habit: str) -> None:
        _, head, raw = self._ask(stream=True, tokens=200)
        connection = await self._connect()
        try:
            await connection.send(head + raw)
            await connection.head()
            for _ in range(self._rng.randint(1, 20)):
                await connection.drink(300)
        finally:
            connection.close(reset=self._rng.random() < 0.5)

    async def _half_close(self, _habit: str) -> None:
        _, head, raw = self._ask(tokens=60)
        connection = await self._connect()
        try:
            await connection.send(head + raw)
            await trio.sleep(self._rng.random() * 0.3)
            await connection.stream.send_eof()
            while True:
                await connection.drink(65536)
        finally:
            connection.close()

    async def _read_slowly(self, _habit: str) -> None:
        _, head, raw = self._ask(stream=True, tokens=200)
        connection = await self._connect(window=4096)
        try:
            await connection.send(head + raw)
            for _ in range(20):
                await connection.drink(256)
                await trio.sleep(0.1)
        finally:
            connection.close()

    async def _stop_reading(self, _habit: str) -> None:
        _, head, raw = self._ask(stream=True, tokens=2000)
        connection = await self._connect(window=4096)
        try:
            await connection.send(head + raw)
            await trio.sleep(self._rng.uniform(2.0, 25.0))
        finally:
            connection.close()

    async def _nonsense(self, habit: str) -> None:
        name = f"soak-{self._number + 1}"
        self._number += 1
        raw, path = self._rng.choice(
            (
                (b"{", "completions"),
                (b'{"model": "another", "prompt": "x"}', "completions"),
                (b'{"model": "emulated", "prompt": 7}', "completions"),
                (b'{"model": "emulated", "messages": []}', "chat/completions"),
                (b'{"model": "emulated", "prompt": "x", "n": 2}', "completions"),
                (b"x" * 100_000, "completions"),
            )
        )
        connection = await self._connect()
        try:
            await connection.send(self._head(path, name, len(raw)) + raw)
            await self._answer(connection, name, habit)
        finally:
            connection.close()

    async def _pages(self, _habit: str) -> None:
        connection = await self._connect()
        try:
            for page in ("/health", "/ready", "/v1/models", "/narwhal/state", "/nothing"):
                await connection.send(f"GET {page} HTTP/1.1\r\nhost: soak\r\n\r\n".encode())
                _, headers = await connection.head()
                await connection.body(headers)
        finally:
            connection.close()
