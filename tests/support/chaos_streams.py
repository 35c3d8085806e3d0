"""The streams that chaos engines send: their events, how they are cut up, how they end."""

from __future__ import annotations

import json
import random
from typing import Any

import attrs

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"

BEFORE_ANYTHING = ("status", "status", "hang", "rst", "fin", "garbage")
STREAM_FAULTS = (
    *BEFORE_ANYTHING,
    *("cut", "cut", "cut", "role cut", "fin after done"),
    *("hdr hang", "role hang", "stall", "comments", "endless"),
    *("error first", "error later", "bad event", "empty", "no done"),
    *("late end", "no end", "after done", "huge"),
)


@attrs.frozen
class Stream:
    """One answer, as it will go over the wire."""

    events: list[bytes]
    """What the client is to get of it, if it gets it all; then usage is one of them."""
    wire: bytes
    ending: str
    """`whole`, or what follows the wire: `hang`, `rst`, `fin`, `late end`, `no end`."""


def draw_stream(
    rng: random.Random, fault: str, *, number: int, chat: bool, count: int, usage: bool
) -> Stream:
    """The stream of leg `number`, whose tokens nobody can mistake for another leg's."""
    events = _Events(rng, number=number, chat=chat, padding=100_000 if fault == "huge" else 0)
    good = events.draw(2 if fault == "huge" else count, usage=usage)
    sent, promised = _spoil(rng, fault, good, events)
    wire = HEAD + _chunks(rng, b"".join(sent), sent)
    endings = {"role hang": "hang", "stall": "hang", "hdr hang": "hang", "fin after done": "fin"}
    endings |= dict.fromkeys(("cut", "role cut"), rng.choice(("rst", "fin")))
    ending = endings.get(fault, fault if fault in ("late end", "no end") else "whole")
    if fault == "hdr hang":
        wire = HEAD
    if ending == "whole":
        wire += END
    if fault == "cut":
        # Anywhere: before the head, in a chunk's size, in an event, before the end.
        wire = wire[: rng.randrange(len(wire))]
    return Stream(promised, wire, ending)


def _spoil(
    rng: random.Random, fault: str, good: list[bytes], events: _Events
) -> tuple[list[bytes], list[bytes]]:
    """What is sent, and what of it can reach a client as output."""
    done = b"data: [DONE]\n\n"
    part = good[: rng.randint(1, len(good) - 1)]
    code = rng.choice((500, 400, 503, None))
    error = events.event({"error": {"message": "broken", "type": "X", "code": code}})
    match fault:
        case "stall":
            return part, good
        case "error later":
            return [*part, error, done], [*part, error, done]
        case "error first":
            return [error, done], [error, done]
        case "bad event":
            return [b"data: {not json\n\n", *good], good
        case "no done":
            return good[:-1], good
        case "empty":
            return good[-1:], good
        case "after done":
            return [*good, b"data: more\n\n", b"garbage"], good
        case "role hang" | "role cut":
            return [events.role()], good
        case _:
            return good, good


def _chunks(rng: random.Random, whole: bytes, events: list[bytes]) -> bytes:
    """An event in a chunk, all of them in one, or chunks that end anywhere."""
    pieces = events
    kind = rng.random()
    if kind < 0.2:
        pieces = [whole]
    elif kind < 0.4:
        size = rng.randint(1, 300) if len(whole) < 50_000 else 10_000
        pieces = [whole[at : at + size] for at in range(0, len(whole), size)]
    return b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)


class _Events:
    """Events of one leg, all written in the same style."""

    def __init__(self, rng: random.Random, *, number: int, chat: bool, padding: int) -> None:
        self._rng = rng
        self._number = number
        self._chat = chat
        self._padding = "y" * padding
        self._separators = (",", ":") if rng.random() < 0.5 else None
        self._end = rng.choice((b"\n\n", b"\n\n", b"\n\n", b"\r\n\r\n"))

    def event(self, payload: Any) -> bytes:
        text = json.dumps(payload, ensure_ascii=False, separators=self._separators)
        return b"data: " + text.encode() + self._end

    def role(self) -> bytes:
        delta = {"index": 0, "delta": {"role": "assistant", "content": ""}}
        return self.event({"id": "x", "choices": [delta if self._chat else {}]})

    def token(self, n: int, *, last: bool = False) -> bytes:
        text = f" {self._number}.{n}" + self._padding
        key: dict[str, Any] = {"delta": {"content": text}} if self._chat else {"text": text}
        choice = {"index": 0, **key, "finish_reason": "length" if last else None}
        return self.event({"id": "x", "choices": [choice], "usage": None})

    def draw(self, count: int, *, usage: bool) -> list[bytes]:
        events = [self.role()] if self._chat else []
        for n in range(count):
            events.append(self.token(n, last=n == count - 1))
            if self._rng.random() < 0.05:
                events.append(b": a comment" + self._end)
        if usage:
            counts = {"prompt_tokens": 5, "completion_tokens": count, "total_tokens": 5 + count}
            events.append(self.event({"id": "x", "choices": [], "usage": counts}))
        events.append(b"data: [DONE]" + self._end)
        return events
