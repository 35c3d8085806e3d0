"""What the journal records: one frozen value a row, and nothing that a prompt could hide in.

A request's row is the single source of its counters, its line in the journal and its place among
the recent outcomes of the state document. No row has a field for prompt text, generated text,
keys or addresses; the two texts that come from outside (the client's id, an engine's code) pass
`clean_text`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import attrs

from narwhal.model import Phase

if TYPE_CHECKING:
    from collections.abc import Mapping

    from narwhal.fleet import EngineState, Event
    from narwhal.model import FailureClass, Limit, Role, Route, Terminal, TtftScope
    from narwhal.placement import Why
    from narwhal.roles import Rule, Split, Verdict
    from narwhal.telemetry.kinds import AttemptResult, Change

SCHEMA = 1
"""Version of the row format, in every `start` row. A field that changes meaning raises it."""

MAX_TEXT = 128
"""Characters kept of a text from outside: a UUID with a generous prefix fits."""

_UNSAFE = re.compile(r"[^A-Za-z0-9._:/@+=-]")


def clean_text(text: str | bytes | None) -> str | None:
    """Return `text` as it may be logged: at most `MAX_TEXT` harmless ASCII characters.

    Everything else becomes `_`, so a client's id can neither forge a line nor steer a terminal.
    """
    if text is None:
        return None
    if isinstance(text, bytes):
        text = text[:MAX_TEXT].decode("latin-1")
    return _UNSAFE.sub("_", text[:MAX_TEXT])


@attrs.frozen(kw_only=True)
class AttemptRow:
    """One attempt of a request. Times in seconds; `None` where it did not get that far."""

    n: int
    """Counted from 1."""
    prefill: str | None
    """The engine of each leg, by `iid`; one plain leg has the same in both."""
    prefill_why: Why | None = None
    """What settled that choice."""
    prefill_runner_up: str | None = None
    """The engine that came second."""
    decode: str | None = None
    decode_why: Why | None = None
    decode_runner_up: str | None = None
    result: AttemptResult
    code: str | None = attrs.field(default=None, converter=clean_text)
    phase: Phase | None = None
    """Where it ended, unless it completed."""
    engine: str | None = None
    """Whose leg failed."""
    failure: FailureClass | None = None
    limit: Limit | None = None
    engine_status: int | None = None
    """What the engine answered, if that was the failure."""
    prefill_s: float | None = None
    """Start of the prefill request to the end of its answer."""
    handoff_age_s: float | None = None
    """Start of the prefill request to the decode request written."""
    first_token_s: float | None = None
    """Looking for a decode connection to the first generated token."""


@attrs.frozen(kw_only=True)
class RequestRow:
    """One original request, written when it reached its terminal."""

    ts: float
    """When it ended: wall clock, seconds since 1970."""
    arrival: float
    """When its head had been read: the router's monotonic clock, seconds."""
    request_id: str
    client_request_id: str | None = attrs.field(default=None, converter=clean_text)
    route: Route
    stream: bool = False
    terminal: Terminal
    status: int | None
    """The status that the client was sent; 499 (or `None`) if it left before there was one."""
    code: str | None = attrs.field(default=None, converter=clean_text)
    limit: Limit | None = None
    """The limit that ended it."""
    limits_fired: tuple[Limit, ...] = ()
    """Every limit that fired on the way, in order, `limit` included."""
    prompt_tokens: int | None = None
    prompt_exact: bool = False
    """Whether an engine counted the prompt, or its characters were."""
    max_tokens: int | None = None
    completion_tokens: int = 0
    tokens_counted: int = 0
    """How many of `completion_tokens` were added to `tokens_total` while they were relayed."""
    attempts: tuple[AttemptRow, ...] = ()
    spent: Mapping[Phase, float]
    """Seconds by phase; they sum to the request's lifetime."""
    ttft_s: float | None = None
    """Arrival to the first token handed to the client."""
    prefill_ttft_s: float | None = None
    """Arrival to the end of the prefill that the answer was generated from."""
    first_token_ttft_s: float | None = None
    """Arrival to the first token that an engine generated for the answer, streamed or not."""
    projected_ttft_s: float | None = None
    """What admission projected, if it was priced: of the two above the one that
    `slo.ttft_scope` names."""
    tpot_s: float | None = None
    """Mean time between output tokens, if there were two or more."""
    projected_tpot_s: float | None = None
    """What was projected when the last decode was placed, if there are profiles."""
    tokenize_fallback: bool = False
    """Whether the prompt was to be counted by an engine, and was not."""

    @property
    def request_s(self) -> float:
        """Arrival to the end, in seconds."""
        return sum(self.spent.values())

    @property
    def queue_wait_s(self) -> float | None:
        """Seconds it waited to be admitted; `None` if it did not wait."""
        return self.spent.get(Phase.QUEUE)


@attrs.frozen
class EngineSummary:
    """What a `start` row says of an engine: no address."""

    iid: str
    role: Role
    pin: bool


@attrs.frozen(kw_only=True)
class StartRow:
    """The router began to serve, or (`rotated`) goes on in another file, which has to say as much.

    So each file of a journal says what its rows are to be measured by.
    """

    ts: float
    rotated: bool = False
    version: str
    model: str
    ttft_s: float
    ttft_scope: TtftScope
    tpot_s: float
    engines: tuple[EngineSummary, ...]


@attrs.frozen(kw_only=True)
class EngineRow:
    """An engine's state changed."""

    ts: float
    engine: str
    source: EngineState
    target: EngineState
    cause: Event
    reason: str


@attrs.frozen(kw_only=True)
class RoleRow:
    """An engine changed its role, or would have."""

    ts: float
    engine: str
    to: Role
    verdict: Verdict
    rule: Rule
    split: Split
    proposed: Split
    reason: str


@attrs.frozen(kw_only=True)
class RouterRow:
    """The router as a whole changed."""

    ts: float
    change: Change
    reason: str = ""


@attrs.frozen(kw_only=True)
class StopRow:
    """The router stopped; the totals let a reader check that no row is missing."""

    ts: float
    uptime_s: float
    terminals: Mapping[Terminal, int]
    dropped: int
    """Rows lost since the start."""


Row = RequestRow | StartRow | EngineRow | RoleRow | RouterRow | StopRow
