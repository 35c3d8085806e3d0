"""Which requests are traced, the ids of their spans, and those that wait to be sent."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import attrs

from narwhal.wire.trace_context import make_context

if TYPE_CHECKING:
    from random import Random

    from narwhal.model import Phase
    from narwhal.telemetry.rows import RequestRow
    from narwhal.wire.trace_context import TraceContext

# Places of spans within a request: an attempt's own, those of its legs, and all others.
_LEGS = {"release": 0, "prefill": 1, "handoff": 2, "decode": 3}
_OTHERS = 1 << 16
# Of an id the lower half decides, as the SDKs have it.
_HALF = 1 << 64


@attrs.frozen(kw_only=True)
class Trace:
    """The trace that a request is part of, and the id of each span that it will have.

    The ids follow from the one of the root, so that a leg can be told of its parent before there
    is a span, and nothing has to be kept until there is.
    """

    trace_id: int
    root_id: int
    parent: TraceContext | None = None
    """What the client sent."""
    sampled: bool = True

    def attempt_id(self, n: int) -> int:
        """The span of attempt `n`."""
        return self.root_id ^ (n << 3)

    def leg_id(self, n: int, leg: str) -> int:
        """The span of a phase on an engine; what frees a handoff belongs to the attempt."""
        return self.root_id ^ (n << 3 | _LEGS[leg])

    def other_id(self, index: int) -> int:
        """The span of another phase, the `index`th of the request."""
        return self.root_id ^ (_OTHERS + index)

    def context_of(self, n: int, leg: str) -> TraceContext:
        """What the engine of a leg is sent. A trace that is not recorded passes unchanged."""
        if not self.sampled and self.parent is not None:
            return self.parent
        return make_context(
            self.trace_id,
            self.leg_id(n, leg),
            sampled=self.sampled,
            tracestate=None if self.parent is None else self.parent.tracestate,
        )


@attrs.frozen(kw_only=True)
class TracedRequest:
    """A traced request that has ended: what its spans are made of, on another thread."""

    row: RequestRow
    marks: tuple[tuple[Phase, float], ...]
    """Each phase with the moment it was entered at, on the clock of `row.arrival`."""
    trace: Trace
    http: bool


def begin_trace(context: TraceContext | None, *, ratio: float, rng: Random) -> Trace:
    """Decide on a new request: what its caller decided, or else one in `1 / ratio`.

    The decision follows from the trace's id as everywhere, so that all who decide by the same
    ratio keep the same traces.
    """
    # An id of nothing but zeros is none; and no place within a request may make one.
    root_id = rng.getrandbits(64) | 1 << 63
    if context is not None:
        return Trace(
            trace_id=context.trace_id, root_id=root_id, parent=context, sampled=context.sampled
        )
    trace_id = rng.getrandbits(128) | 1
    sampled = trace_id % _HALF < round(ratio * _HALF)
    return Trace(trace_id=trace_id, root_id=root_id, sampled=sampled)


class Traces:
    """Traced requests on their way out, oldest first; full, it drops what is newest."""

    def __init__(self, *, ratio: float, capacity: int, rng: Random) -> None:
        self._ratio = ratio
        self._capacity = capacity
        self._rng = rng
        self._ended: deque[TracedRequest] = deque()

    def __len__(self) -> int:
        return len(self._ended)

    def begin(self, context: TraceContext | None) -> Trace:
        """The trace of a request that begins; `context` is what its client sent."""
        return begin_trace(context, ratio=self._ratio, rng=self._rng)

    def ended_nowait(self, request: TracedRequest) -> bool:
        """Take a request that ended; false if it is lost, because the buffer is full."""
        if len(self._ended) >= self._capacity:
            return False
        self._ended.append(request)
        return True

    def drain(self, most: int) -> list[TracedRequest]:
        """Take at most `most` of the oldest out of the buffer."""
        return [self._ended.popleft() for _ in range(min(most, len(self._ended)))]
