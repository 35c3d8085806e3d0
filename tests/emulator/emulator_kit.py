"""A fleet in memory and virtual time, and a client that sees every byte and its time."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import attrs
import h11
import trio
from trio.testing import MockClock

from narwhal.emulator import EmulatedFleet, EngineSettings, TimeModel
from narwhal.net import ByteStream, MemoryNetwork

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

# A millisecond for each prompt token, ten for each generated one, and nothing else.
STEADY = TimeModel(prefill=(0.0, 0.001, 0.0), decode=(0.01, 0.0, 0.0))
COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"
PREFILL_LEG = {"do_remote_decode": True}


def settings(iid: str = "e0", **changes: Any) -> EngineSettings:
    given: dict[str, Any] = {"model": "tiny", "time": STEADY, **changes}
    return EngineSettings(iid=iid, **given)


@attrs.define
class Answer:
    """What came back on a connection for one request."""

    status: int | None = None
    headers: dict[str, str] = attrs.field(factory=dict)
    body: bytes = b""
    end: str = "open"
    """complete, closed (in order, but too early), reset, or open (not ended yet)."""
    reads: list[tuple[float, bytes]] = attrs.field(factory=list)
    """Body bytes as they arrived, with their times."""

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def data(self) -> list[bytes]:
        """The data of the events, complete ones only."""
        *whole, _ = self.body.split(b"\n\n")
        return [event.removeprefix(b"data: ") for event in whole]

    @property
    def chunks(self) -> list[dict[str, Any]]:
        return [json.loads(data) for data in self.data if data != b"[DONE]"]

    @property
    def done(self) -> bool:
        return bool(self.data) and self.data[-1] == b"[DONE]"

    @property
    def text(self) -> str:
        if self.headers["content-type"] == "application/json":
            return "".join(choice["text"] for choice in self.json["choices"])
        return "".join(c["text"] for chunk in self.chunks for c in chunk.get("choices", ()))


class Client:
    """One connection."""

    def __init__(self, stream: ByteStream) -> None:
        self.stream = stream
        self._http = h11.Connection(h11.CLIENT)

    async def send(
        self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> None:
        every = {"host": "engine", "content-length": str(len(body))} | dict(headers or {})
        request = h11.Request(method=method, target=path, headers=list(every.items()))
        head = self._http.send(request)
        await self.stream.send_all(head + self._http.send(h11.Data(data=body)))
        self._http.send(h11.EndOfMessage())

    async def receive(self, answer: Answer | None = None) -> Answer:
        """Read the response to its end, whatever end that is."""
        answer = Answer() if answer is None else answer
        while answer.end == "open":
            try:
                event = self._http.next_event()
            except h11.RemoteProtocolError:
                answer.end = "closed"
                break
            if event is h11.NEED_DATA:
                try:
                    self._http.receive_data(await self.stream.receive_some())
                except trio.BrokenResourceError:
                    answer.end = "reset"
            elif isinstance(event, h11.Response):
                answer.status = event.status_code
                answer.headers = {k.decode(): v.decode() for k, v in event.headers}
            elif isinstance(event, h11.Data):
                answer.reads.append((trio.current_time(), bytes(event.data)))
                answer.body += event.data
            elif isinstance(event, h11.EndOfMessage):
                answer.end = "complete"
                if self._http.our_state is h11.DONE and self._http.their_state is h11.DONE:
                    self._http.start_next_cycle()
            else:  # closed between two messages
                answer.end = "closed"
        return answer


@attrs.define
class World:
    """A served fleet."""

    fleet: EmulatedFleet
    network: MemoryNetwork
    nursery: trio.Nursery

    async def connect(self, engine: int = 0) -> Client:
        return Client(await self.network.connect(*self.fleet.addresses[engine]))

    async def ask(
        self,
        path: str,
        body: object = None,
        *,
        engine: int = 0,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """One request on a connection of its own: POST with a body, GET without."""
        client = await self.connect(engine)
        try:
            await ask_on(client, path, body, headers=headers)
            return await client.receive()
        finally:
            client.stream.close()

    async def complete(self, engine: int = 0, *, fault: str = "", **body: Any) -> Answer:
        """A completion; `fault` goes into the header."""
        headers = {"x-emulator-fault": fault} if fault else {}
        return await self.ask(COMPLETIONS, completion(**body), engine=engine, headers=headers)

    async def prefill(self, engine: int = 0, **body: Any) -> dict[str, Any]:
        """A prefill leg's descriptor."""
        leg: dict[str, Any] = {"max_tokens": 1, "kv_transfer_params": PREFILL_LEG, **body}
        answer = await self.complete(engine, **leg)
        assert answer.status == 200, answer.body
        descriptor: dict[str, Any] = answer.json["kv_transfer_params"]
        return descriptor


async def ask_on(
    client: Client, path: str, body: object = None, *, headers: Mapping[str, str] | None = None
) -> None:
    if body is None:
        await client.send("GET", path, headers=headers)
        return
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    await client.send("POST", path, raw, {"content-type": "application/json"} | dict(headers or {}))


def completion(**body: Any) -> dict[str, Any]:
    return {"model": "tiny", "prompt": "one two three", "max_tokens": 4} | body


def run_world(test: Callable[[World], Awaitable[None]], *engines: EngineSettings) -> None:
    """Run `test` against a fleet, in virtual time."""

    async def main() -> None:
        fleet = EmulatedFleet(engines or [settings()])
        network = MemoryNetwork()
        async with trio.open_nursery() as nursery:
            await nursery.start(fleet.serve_in, network)
            await test(World(fleet, network, nursery))
            nursery.cancel_scope.cancel(reason="the test is over")
        assert network.open_streams == 0

    trio.run(main, clock=MockClock(autojump_threshold=0))
