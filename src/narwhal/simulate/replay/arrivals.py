"""One request of a trace: when it came, and how much it asked for. No text."""

from __future__ import annotations

import attrs


@attrs.frozen(kw_only=True)
class Arrival:
    """A request, as a trace tells it."""

    at: float
    """Seconds since the trace begins, 0 or more."""
    prompt: int
    """Prompt tokens, at least 1."""
    output: int
    """Tokens that it was answered with, at least 1."""
    cap: int | None = None
    """Its `max_tokens`, at least `output`; `None` if the trace does not say. A replay then asks
    for exactly `output`, unless it is told otherwise."""
    kind: str = ""
    """The trace or the phase that it is of; results are told apart by it."""
