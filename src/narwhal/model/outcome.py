"""How an attempt failed, and how a request ended, as values."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from narwhal.model.enums import FailureClass, Limit, Phase, Terminal


@attrs.frozen(kw_only=True)
class Failure:
    """Why one attempt of a request did not succeed."""

    phase: Phase
    """The leg it happened in."""
    failure: FailureClass
    engine: str | None
    """`iid` of the engine whose leg failed, `None` where none was involved."""
    status: int
    """What a client would be told if this ended the request."""
    code: str
    message: str
    """Fit for a client: names settings and engines by `iid`, never an address."""
    limit: Limit | None = None
    engine_status: int | None = None
    """The status the engine answered with, where it answered."""
    retry_after: float | None = None
    """Seconds, if the engine asked for a pause."""
    transient: bool = True
    """Whether another attempt could end differently."""
    visible: bool = False
    """Whether the client had been sent output; such a failure is never retried."""
    passthrough: bytes | None = None
    """An engine's own error body (4xx), to be given to the client as it is."""


@attrs.frozen(kw_only=True)
class Outcome:
    """The one terminal of an original request; error body, journal and counters derive from it."""

    terminal: Terminal
    status: int
    code: str | None = None
    """Stable and machine-readable; `None` when the request completed."""
    message: str = ""
    error_type: str = ""
    """The `type` of the OpenAI error object."""
    param: str | None = None
    limit: Limit | None = None
    retry_after: int | None = None
    """Whole seconds, at least 1; only where waiting helps."""
    passthrough: bytes | None = None
