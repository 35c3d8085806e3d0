"""What an emulated engine counts, for tests and for `/emulator/stats`."""

from __future__ import annotations

from collections import Counter, deque
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Self

import attrs
import msgspec
import trio

from narwhal.emulator.core import Leg

if TYPE_CHECKING:
    from types import TracebackType

    from narwhal.emulator.faults import Fault
    from narwhal.emulator.handoff import Pull

REMEMBERED_REQUESTS = 64
"""Requests kept as they came, for tests to look at: the latest ones."""


class Outcome(StrEnum):
    """How a leg ended. Each ends in one way, so seen = done + failed + aborted + inflight."""

    DONE = "done"
    """Answered in full."""
    FAILED = "failed"
    """Refused, failed by the engine, or ended by a fault's script."""
    ABORTED = "aborted"
    """The client went away, or the connection was dropped under it."""


@attrs.frozen
class Seen:
    """A request as it arrived."""

    at: float
    path: str
    headers: dict[str, str]
    raw: bytes

    @property
    def body(self) -> dict[str, Any]:
        """The body's JSON object."""
        body: dict[str, Any] = msgspec.json.decode(self.raw)
        return body


@attrs.define(eq=False, kw_only=True)
class Record:
    """One leg, as its engine saw it. On exit it is counted; unless told otherwise, as aborted."""

    engine: str
    leg: Leg
    request_id: str
    """The request's `x-request-id`, if it had one."""
    peer: tuple[object, ...] | None
    """The address of the connection's other end."""
    began: float
    """When its body had been read: Trio's clock."""
    ended: float | None = None
    outcome: Outcome = Outcome.ABORTED
    fault: Fault | None = None
    """What acted on it."""
    names: str | None = None
    """Of a decode leg: the name of the KV cache that it was sent with."""
    pull: Pull | None = None
    """Of a decode leg that was run: how fetching the KV cache went."""
    handle: str | None = None
    """Of a prefill leg that finished: the name of the KV cache it left for a decoder."""
    status: int | None = None
    answered: float | None = None
    """When its head was sent."""
    sent: bytearray = attrs.field(factory=bytearray, repr=False)
    """The answer's body, as far as it was written."""
    last_sent: float | None = None
    """When something was last written to it."""
    _stats: Stats = attrs.field(repr=False)

    def answer(self, status: int) -> None:
        """Its head is being sent."""
        self.status, self.answered = status, trio.current_time()

    def write(self, data: bytes) -> None:
        """So much of its body is being sent."""
        self.sent += data
        self.last_sent = trio.current_time()

    def __enter__(self) -> Self:
        stats = self._stats
        stats.legs["seen", self.leg] += 1
        stats.inflight[self.leg] += 1
        stats.max_inflight = max(stats.max_inflight, stats.inflight.total())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.ended = trio.current_time()
        self._stats.inflight[self.leg] -= 1
        self._stats.legs[self.outcome.value, self.leg] += 1


class Stats:
    """Counters of one engine since its start or the last reset, restarts included."""

    def __init__(self) -> None:
        self.inflight: Counter[Leg] = Counter()
        self.requests: deque[Seen] = deque(maxlen=REMEMBERED_REQUESTS)
        self.records: list[Record] | None = None
        """If it is a list, every leg is added to it, with all that it answered."""
        self.reset()

    def reset(self) -> None:
        """Zero everything but what is in flight."""
        self.legs: Counter[tuple[str, Leg]] = Counter()
        self.max_inflight = self.inflight.total()
        self.tokens = 0
        """Tokens generated, whether or not somebody read them."""
        self.prompt_tokens = 0
        self.pulled_tokens = 0
        """Prompt tokens that came from another engine."""
        self.rejections = 0
        """Requests turned away with 503."""
        self.finished: Counter[str] = Counter()
        """Finished sequences by finish reason."""
        self.restarts = 0
        self.routes: Counter[str] = Counter()
        """Requests by path."""
        self.requests.clear()

    def leg(
        self, leg: Leg, *, engine: str, request_id: str, peer: tuple[object, ...] | None
    ) -> Record:
        """Count a leg; use as a context manager around all of its life."""
        now = trio.current_time()
        record = Record(
            stats=self, engine=engine, leg=leg, request_id=request_id, peer=peer, began=now
        )
        if self.records is not None:
            self.records.append(record)
        return record

    def count(self, what: str, leg: Leg) -> int:
        """`seen`, or an `Outcome`, of one kind of leg."""
        return self.legs[what, leg]

    def as_dict(self) -> dict[str, Any]:
        """Everything, flat, for JSON."""
        counts: dict[str, Any] = {
            f"{what}_{leg}": self.legs[what, leg] for what in ("seen", *Outcome) for leg in Leg
        }
        return counts | {
            "inflight": self.inflight.total(),
            "max_inflight": self.max_inflight,
            "tokens": self.tokens,
            "prompt_tokens": self.prompt_tokens,
            "pulled_tokens": self.pulled_tokens,
            "rejections": self.rejections,
            "finished": dict(self.finished),
            "restarts": self.restarts,
            "routes": dict(self.routes),
        }
