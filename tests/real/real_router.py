"""A `narwhal-trio serve` process in front of real engines, and what its clients do."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import attrs
import httpx
from real_engines import MODEL, PATIENCE_S, Counters, RealEngine, wait_until

from processes import Command

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"


@attrs.frozen
class Streamed:
    """A stream as a client saw it."""

    status: int
    events: list[str]
    """The data of all events in order, `[DONE]` among them; the body, if the status is not 200."""
    whole: bool
    """Whether the chunked body had its end."""

    @property
    def chunks(self) -> list[dict[str, Any]]:
        """The events that are JSON."""
        return [json.loads(data) for data in self.events if data != "[DONE]"]

    @property
    def done(self) -> bool:
        """Whether it ended as it should."""
        return self.status == 200 and self.whole and self.events[-1:] == ["[DONE]"]

    @property
    def text(self) -> str:
        """What was generated."""
        choices = [choice for chunk in self.chunks for choice in chunk.get("choices", ())]
        return "".join(
            (c["text"] if "text" in c else c["delta"].get("content")) or "" for c in choices
        )

    @property
    def error(self) -> dict[str, Any] | None:
        """The error in it."""
        return next((chunk["error"] for chunk in self.chunks if "error" in chunk), None)


def read_stream(url: str, path: str, body: Mapping[str, Any]) -> Streamed:
    """Ask for a stream and read it to whatever end it has."""
    with httpx.stream("POST", url + path, json={**body, "stream": True}, timeout=PATIENCE_S) as got:
        return Reading(got).read_on()


class Reading:
    """A stream that is being read. To drop it is to leave."""

    def __init__(self, answer: httpx.Response) -> None:
        self._status = answer.status_code
        # Held on to: an iterator that is forgotten closes its connection.
        self._rest = answer.iter_lines()
        self._lines: list[str] = []

    def read_event(self) -> str:
        """Wait for the next event; its data."""
        for line in self._rest:
            self._lines.append(line)
            if line.startswith("data: "):
                return line.removeprefix("data: ")
        raise AssertionError(f"the stream ended: {self._lines}")

    def read_on(self) -> Streamed:
        """Read on to its end; all of it, from the first event on."""
        whole = True
        try:
            self._lines.extend(self._rest)
        except httpx.RemoteProtocolError:
            whole = False
        if self._status != 200:
            return Streamed(self._status, ["".join(self._lines)], whole)
        events = [line.removeprefix("data: ") for line in self._lines if line.startswith("data: ")]
        return Streamed(self._status, events, whole)


class Leaver:
    """A client that can leave at any moment: a request on a socket of its own."""

    def __init__(self, url: str, path: str, body: Mapping[str, Any]) -> None:
        parsed = httpx.URL(url)
        raw = json.dumps(body).encode()
        head = (
            f"POST {path} HTTP/1.1\r\nhost: narwhal\r\ncontent-type: application/json\r\n"
            f"content-length: {len(raw)}\r\n\r\n"
        )
        assert parsed.port is not None
        self._socket = socket.create_connection((parsed.host, parsed.port), timeout=PATIENCE_S)
        self._socket.sendall(head.encode() + raw)

    def read_until(self, text: bytes) -> bytes:
        """Read until `text` has come."""
        got = b""
        while text not in got:
            data = self._socket.recv(65_536)
            assert data, f"the answer ended: {got!r}"
            got += data
        return got

    def leave(self) -> None:
        """Close the connection."""
        self._socket.close()


class Router:
    """A router as a process; ended with the block."""

    def __init__(
        self, folder: Path, engines: Mapping[RealEngine, str], *options: str, **settings: Any
    ) -> None:
        """`engines` with their roles; `settings` by section of the fleet file."""
        self.folder = folder
        self.fleet = write_fleet_file(folder / "fleet.json", engines, settings)
        self.journal = folder / "journal.jsonl"
        arguments = ("--fleet", str(self.fleet), "--port", "0", "--journal", str(self.journal))
        self._command = Command("serve", *arguments, *options, cwd=folder)
        self.url = ""

    def __enter__(self) -> Self:
        self._command.__enter__()
        try:
            self.url = self._command.url()
        except BaseException:
            self._command.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._command.process.terminate()
        self._command.__exit__(exc_type, exc, traceback)

    # As a client

    def post(self, path: str, body: Mapping[str, Any]) -> httpx.Response:
        """One request."""
        return httpx.post(self.url + path, json=body, timeout=PATIENCE_S)

    def complete(self, prompt: object, **fields: Any) -> httpx.Response:
        """One completion at temperature 0."""
        return self.post(COMPLETIONS, completion(prompt, **fields))

    def stream(self, prompt: object, **fields: Any) -> Streamed:
        """The same, streamed."""
        return read_stream(self.url, COMPLETIONS, completion(prompt, **fields))

    @contextmanager
    def streaming(self, prompt: object, **fields: Any) -> Iterator[Reading]:
        """A stream that has begun: its first token is there."""
        body = completion(prompt, **fields) | {"stream": True}
        with httpx.stream("POST", self.url + COMPLETIONS, json=body, timeout=PATIENCE_S) as got:
            reading = Reading(got)
            reading.read_event()
            yield reading

    @contextmanager
    def leaver(self, prompt: object, **fields: Any) -> Iterator[Leaver]:
        """A client that is going to leave: at the end of the block at the latest."""
        client = Leaver(self.url, COMPLETIONS, completion(prompt, **fields))
        try:
            yield client
        finally:
            client.leave()

    # As an operator

    @property
    def state(self) -> dict[str, Any]:
        """The state document."""
        document: dict[str, Any] = httpx.get(f"{self.url}/narwhal/state", timeout=PATIENCE_S).json()
        return document

    def engine(self, iid: str) -> dict[str, Any]:
        """What the state document says of one engine."""
        found: dict[str, Any] = next(e for e in self.state["engines"] if e["iid"] == iid)
        return found

    def counters(self) -> Counters:
        """Its metrics."""
        return Counters(httpx.get(f"{self.url}/metrics", timeout=PATIENCE_S).text)

    def rows(self, event: str = "request", *, count: int = 0) -> list[dict[str, Any]]:
        """The journal's rows of that kind; waits for so many."""
        rows: list[dict[str, Any]] = []

        def read() -> bool:
            lines = self.journal.read_text(encoding="utf-8").splitlines()
            rows[:] = [row for row in map(json.loads, lines) if row["event"] == event]
            return len(rows) >= count

        wait_until(read, f"the journal has {count} rows of {event}", 10)
        return rows

    def wait_state(self, iid: str, *wanted: str) -> float:
        """Wait until the engine is in one of those states; how long it took."""
        return wait_until(
            lambda: self.engine(iid)["state"] in wanted, f"{iid} is {' or '.join(wanted)}"
        )


def completion(prompt: object, **fields: Any) -> dict[str, Any]:
    """A completion that a repetition answers alike."""
    return {"model": MODEL, "prompt": prompt, "temperature": 0, "max_tokens": 16} | fields


def chat(text: str, **fields: Any) -> dict[str, Any]:
    """The same as a chat."""
    messages = [{"role": "user", "content": text}]
    return {"model": MODEL, "messages": messages, "temperature": 0, "max_tokens": 16} | fields


def write_fleet_file(
    path: Path, engines: Mapping[RealEngine, str], settings: Mapping[str, Any]
) -> Path:
    """A fleet file with those roles. Its engines may take their time: they share processors."""
    lease = float(lease_of(list(engines)))
    document: dict[str, Any] = {
        "schema": "narwhal.fleet",
        "schema_version": 1,
        "model": MODEL,
        "engines": [
            {"iid": engine.iid, "url": engine.url, "role": role} for engine, role in engines.items()
        ],
        "slo": {"ttft_s": 30.0, "tpot_s": 2.0},
        "serving": {
            "admission": "open",
            "request_timeout_s": PATIENCE_S,
            "handoff_timeout_s": lease - 1.0,
        },
        "engine": {
            "kv_lease_s": lease,
            "first_token_timeout_s": 60.0,
            "tokenize_timeout_s": 20.0,
        },
        "recovery": {"state_path": str(path.with_name("state.json"))},
    }
    for name, section in settings.items():
        document[name] = document.get(name, {}) | section
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1), encoding="utf-8")
    return path


def lease_of(engines: Sequence[RealEngine]) -> int:
    """The shortest lease that one of them runs with."""
    return min(engine.options.lease_s for engine in engines)
