"""The lines of a journal as values: what `narwhal.telemetry.journal` writes, read again.

Strict about what is there and lenient about what is not: fields that a reader does not need may be
missing, and events that it does not know are none of its business.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from narwhal.model import Limit, Phase, Route, Terminal, TtftScope
from narwhal.telemetry.rows import SCHEMA

# A time of day after the year 2286, a request of thirty years and a prompt of a billion tokens
# are mistakes, and would spoil every sum they are in.
Moment = Annotated[float, Meta(ge=0, le=1e10)]
Seconds = Annotated[float, Meta(ge=0, le=1e9)]
Tokens = Annotated[int, Meta(ge=0, le=1_000_000_000)]


class SchemaError(Exception):
    """A journal of a format that this version cannot read; the message says what to do."""


class AttemptLine(msgspec.Struct, frozen=True, gc=False):
    """One attempt of a request."""

    prefill: str | None = None
    decode: str | None = None
    code: str | None = None
    engine: str | None = None
    failure: str | None = None
    prefill_s: Seconds | None = None
    handoff_age_s: Seconds | None = None
    first_token_s: Seconds | None = None


class RequestLine(msgspec.Struct, frozen=True, tag_field="event", tag="request"):
    """One original request."""

    ts: Moment
    request_s: Seconds
    terminal: Terminal
    spent_s: dict[Phase, Seconds]
    route: Route | None = None
    stream: bool = False
    code: str | None = None
    limit: Limit | None = None
    limits_fired: tuple[Limit, ...] = ()
    prompt_tokens: Tokens | None = None
    completion_tokens: Tokens = 0
    ttft_s: Seconds | None = None
    prefill_ttft_s: Seconds | None = None
    first_token_ttft_s: Seconds | None = None
    projected_ttft_s: Seconds | None = None
    tpot_s: Seconds | None = None
    projected_tpot_s: Seconds | None = None
    attempts: tuple[AttemptLine, ...] = ()


class SloLine(msgspec.Struct, frozen=True):
    """The targets."""

    ttft_s: Seconds
    tpot_s: Seconds
    ttft_scope: TtftScope = TtftScope.PREFILL


class EngineOfFleet(msgspec.Struct, frozen=True):
    """An engine, as it was when the file was begun."""

    iid: str
    role: str


class StartLine(msgspec.Struct, frozen=True, tag_field="event", tag="start"):
    """The router began to serve."""

    ts: Moment
    schema: int
    model: str
    slo: SloLine
    version: str = ""
    engines: tuple[EngineOfFleet, ...] = ()


class RotatedLine(StartLine, frozen=True, tag_field="event", tag="rotated"):
    """It went on in another file."""


class StopLine(msgspec.Struct, frozen=True, tag_field="event", tag="stop"):
    """It stopped."""

    ts: Moment
    dropped: Tokens = 0


class EngineLine(msgspec.Struct, frozen=True, tag_field="event", tag="engine"):
    """An engine's state changed."""

    ts: Moment
    engine: str
    source: str = msgspec.field(name="from")
    target: str = msgspec.field(name="to")
    cause: str = ""
    reason: str = ""


class RoleLine(msgspec.Struct, frozen=True, tag_field="event", tag="role"):
    """An engine changed its role, or would have."""

    ts: Moment
    engine: str
    to: str
    verdict: str
    rule: str = ""
    split: str = ""
    proposed: str = ""
    reason: str = ""


class RouterLine(msgspec.Struct, frozen=True, tag_field="event", tag="router"):
    """The router as a whole changed."""

    ts: Moment
    change: str
    reason: str = ""


Line = RequestLine | StartLine | RotatedLine | StopLine | EngineLine | RoleLine | RouterLine


class _Event(msgspec.Struct):
    event: str


_KNOWN = frozenset({"request", "start", "rotated", "stop", "engine", "role", "router"})
_line = msgspec.json.Decoder(Line)
_event = msgspec.json.Decoder(_Event)


def parse(line: bytes) -> Line | None:
    """One line; None for an event that this version does not know.

    Raises `ValueError` with what is wrong for a line that is no row, and `SchemaError` for a
    journal of another format.
    """
    try:
        found = _line.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        _check_unknown(line, error)
        return None
    if isinstance(found, StartLine) and found.schema != SCHEMA:
        raise SchemaError(
            f"the journal's rows are of format {found.schema}, and this version reads {SCHEMA}; "
            "use the version that wrote them"
        )
    return found


def _check_unknown(line: bytes, error: Exception) -> None:
    """Raises `ValueError`, unless the line is a whole row of a kind that is not known here."""
    try:
        event = _event.decode(line).event
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise ValueError(str(error)) from error
    if event in _KNOWN:
        raise ValueError(str(error)) from error
