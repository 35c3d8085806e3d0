"""W3C trace context: what a client's `traceparent` and `tracestate` say, and what is sent on."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from collections.abc import Iterable

PARENT = b"traceparent"
STATE = b"tracestate"

MOST_STATE = 512
"""Characters of `tracestate` that everybody is to propagate, by the specification."""

# Four fields, as version 00 has them; version ff and ids of nothing but zeros are invalid.
_PARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
# Anything else could forge a header line, or is none by the specification.
_STATE = re.compile(r"[\x20-\x7e]+")


@attrs.frozen
class TraceContext:
    """A trace that something is part of: the headers are valid, and can be sent as they are."""

    traceparent: str
    tracestate: str | None = None

    @property
    def trace_id(self) -> int:
        """The whole trace's, 128 bits."""
        return int(self.traceparent[3:35], 16)

    @property
    def span_id(self) -> int:
        """That of the span which is the parent of what receives this, 64 bits."""
        return int(self.traceparent[36:52], 16)

    @property
    def sampled(self) -> bool:
        """Whether the caller may have recorded its part of the trace."""
        return bool(int(self.traceparent[53:55], 16) & 1)

    @property
    def head(self) -> bytes:
        """The header lines."""
        lines = f"traceparent: {self.traceparent}\r\n"
        if self.tracestate is not None:
            lines += f"tracestate: {self.tracestate}\r\n"
        return lines.encode("ascii")


def make_context(
    trace_id: int, span_id: int, *, sampled: bool, tracestate: str | None = None
) -> TraceContext:
    """The context to send to what is to be a child of the span."""
    return TraceContext(f"00-{trace_id:032x}-{span_id:016x}-{sampled:02x}", tracestate)


def read_context(headers: Iterable[tuple[bytes, bytes]]) -> TraceContext | None:
    """The context in a request's headers; None unless it has one `traceparent`, and that is valid.

    Names are in lower case. A `tracestate` that cannot be sent on is dropped, and of one that is
    too long the members at its end.
    """
    parents, states = [], []
    for name, value in headers:
        if name == PARENT:
            parents.append(value.decode("latin-1"))
        elif name == STATE:
            states.append(value.decode("latin-1"))
    if len(parents) != 1 or _PARENT.fullmatch(parents[0]) is None:
        return None
    return TraceContext(parents[0], _joined(states))


def _joined(states: list[str]) -> str | None:
    state = ",".join(states).strip(" ")
    if len(state) > MOST_STATE:
        # In one step: a client chooses how many members there are.
        state = state[: MOST_STATE + 1].rpartition(",")[0].rstrip(" ")
    return state if _STATE.fullmatch(state) else None
