"""The requests that clients send: sound ones of every form, and some that are not."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import attrs
import msgspec

from narwhal.simulate.plan import rng_for

if TYPE_CHECKING:
    import random

    from narwhal.simulate.plan import Plan
    from narwhal.simulate.responses import Response

NO_ROUTE = "/v1/nothing"
_JSON = b"content-type: application/json\r\n"
_TOO_LARGE = b"content-length: 5000000\r\n"


@attrs.define(eq=False)
class Ask:
    """One request, and what became of it on the client's side."""

    name: str
    """Its `x-request-id`."""
    path: str
    wire: bytes = attrs.field(repr=False)
    body_at: int
    """Where the body begins in `wire`."""
    stream: bool = False
    include_usage: bool = False
    good: bool = True
    """Whether the router should find nothing wrong with it."""
    pieces: int = 1
    pause: float = 0.0
    begun_at: float | None = None
    head_begun: bool = False
    """Whether all of its head may have been read."""
    response: Response | None = None
    output_at: float | None = None
    """When the first byte of a body had come."""
    ended_at: float | None = None
    """When the response was complete, or the connection at its end."""
    left_at: float | None = None
    """When the client itself ended it."""


@attrs.define(eq=False)
class Visit:
    """A client connection to be: what it asks, and how it behaves."""

    asks: list[Ask]
    at: float
    pipelined: bool = False
    leaves: tuple[str, float] | None = None
    """How it leaves (`close`, `reset`, `half-close`, `vanish`), and how long after it began."""
    read_bytes: int = 65536
    read_pause: float = 0.0
    read_stops_at: int | None = None
    """After so many bytes it reads no more."""
    keep_pause: float = 0.0
    """How long it stays idle between two requests."""


def draw_visits(plan: Plan) -> list[Visit]:
    """Everybody who comes."""
    rng = rng_for(plan.seed, "clients")
    visits = []
    names = (f"c{n}" for n in itertools.count())
    sure = 0
    while sure < plan.requests:
        count = min(plan.requests - sure, rng.choice((1, 1, 1, 2, 4)))
        asks = [_draw_ask(rng, next(names), plan) for _ in range(count)]
        visit = _draw_visit(rng, asks, plan)
        visits.append(visit)
        # Whoever leaves, or stops reading, may not come to his second request.
        patient = visit.leaves is None and visit.read_stops_at is None
        sure += count if patient else 1
    return visits


def _draw_visit(rng: random.Random, asks: list[Ask], plan: Plan) -> Visit:
    rude = plan.rudeness
    visit = Visit(asks, at=rng.uniform(0, plan.span), pipelined=rng.random() < 0.2)
    visit.keep_pause = rng.choice((0.0, 0.0, 0.1, 4.5))
    if rng.random() < rude:
        how = rng.choice(("close", "close", "reset", "half-close", "vanish"))
        visit.leaves = (how, rng.choice((0.0, 0.01, 0.1, 1.0, 3.0)) * rng.random())
    if rng.random() < rude * 0.5:
        visit.read_bytes, visit.read_pause = rng.choice(((40, 0.001), (200, 0.02), (2000, 0.3)))
    if rng.random() < rude * 0.3:
        visit.read_stops_at = rng.choice((0, 0, 300, 2000))
    return visit


def _draw_ask(rng: random.Random, name: str, plan: Plan) -> Ask:
    chat, stream = rng.random() < 0.4, rng.random() < 0.6
    usage = stream and rng.random() < 0.4
    path = "/v1/chat/completions" if chat else "/v1/completions"
    body = draw_body(rng, plan.config.model, chat=chat)
    if stream:
        body["stream"] = True
    if usage:
        body["stream_options"] = {"include_usage": True}
    good, headers, raw = True, _JSON, b""
    if rng.random() < plan.rudeness * 0.3:
        good = False
        path, headers, raw = _spoil(rng, body, path)
    headers, raw = _frame(rng, headers, raw or msgspec.json.encode(body))
    for share, header in ((0.1, b"expect: 100-continue\r\n"), (0.05, b"connection: close\r\n")):
        if rng.random() < share:
            headers += header
    head = b"POST %b HTTP/1.1\r\nhost: r\r\nx-request-id: %b\r\n%b\r\n"
    head %= (path.encode(), name.encode(), headers)
    ask = Ask(name, path, head + raw, len(head), stream, usage, good)
    if rng.random() < plan.rudeness * 0.3:
        ask.pieces, ask.pause = rng.choice(((2, 0.3), (10, 0.02), (3, 2.0)))
    return ask


def draw_body(rng: random.Random, model: str, *, chat: bool) -> dict[str, Any]:
    """The body of a sound request."""
    body: dict[str, Any] = {"model": model}
    # The words differ, so that no engine ever has a prompt in its prefix cache by chance.
    words = f"{rng.getrandbits(48):012x} " + "hi " * rng.choice((1, 1, 10, 100, 1500))
    if chat:
        body["messages"] = [{"role": "user", "content": words}]
    else:
        ids = [rng.randrange(10, 50_000) for _ in range(rng.choice((1, 30)))]
        body["prompt"] = rng.choice((words, words, ids))
    field = rng.choice(("max_tokens", "max_completion_tokens" if chat else "max_tokens", None))
    if field:
        body[field] = rng.choice((1, 1, 2, 5, 20, 80))
    return body


def _frame(rng: random.Random, headers: bytes, raw: bytes) -> tuple[bytes, bytes]:
    """Headers that say how long the body is, unless they do already, and the body."""
    if b"content-length" in headers:
        return headers, raw
    if rng.random() < 0.1:
        chunks = [b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces(raw, 100)]
        return headers + b"transfer-encoding: chunked\r\n", b"".join(chunks) + b"0\r\n\r\n"
    return headers + b"content-length: %d\r\n" % len(raw), raw


def _spoil(rng: random.Random, body: dict[str, Any], path: str) -> tuple[str, bytes, bytes]:
    """Path, headers and perhaps bytes in the place of `body`, which may be changed."""
    headers, raw = _JSON, b""
    match rng.choice(("json", "model", "kv", "type", "path", "empty", "n", "huge")):
        case "json":
            raw = b'{"model": "m", '
        case "model":
            body["model"] = "other"
        case "kv":
            body["kv_transfer_params"] = {"do_remote_decode": True}
        case "type":
            headers = b"content-type: text/plain\r\n"
        case "path":
            path = NO_ROUTE
        case "empty":
            raw = b"\n"
        case "n":
            body["n"] = 2
        case "huge":
            headers += _TOO_LARGE
            raw = b" " * 1000
    return path, headers, raw


def pieces(raw: bytes, size: int) -> list[bytes]:
    """`raw` in parts of `size` bytes."""
    return [raw[at : at + size] for at in range(0, len(raw), size)]
