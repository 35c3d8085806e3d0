"""What follows from a fleet's settings: derived sizes, and the limits that end up holding.

Pure functions of a `FleetConfig`, for `config show`, for preflight and for the router itself.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

import attrs

from narwhal.config.bounds import number
from narwhal.model import Limit

if TYPE_CHECKING:
    from narwhal.config.fleet import FleetConfig

CONTROL_CONNECTIONS_PER_ENGINE = 2
MIN_CONTROL_CONNECTIONS = 4


def control_connections(config: FleetConfig) -> int:
    """Connections kept apart for probes and recovery: as set, or derived when that is 0."""
    derived = max(CONTROL_CONNECTIONS_PER_ENGINE * len(config.engines), MIN_CONTROL_CONNECTIONS)
    return config.engine.control_connections or derived


def retained_limit(config: FleetConfig) -> int:
    """Completion requests held at one time, in whatever state; the next one is turned away."""
    return config.serving.max_connections + config.serving.queue_capacity


class Source(StrEnum):
    """Where the seconds of a limit come from."""

    OWN = "own setting"
    REQUEST = "request deadline"
    """The request's own deadline comes first, or is all there is."""
    OFF = "not used"


@attrs.frozen(kw_only=True)
class EffectiveLimit:
    """One limit as it will hold for a fleet."""

    limit: Limit
    field: str
    """The setting it comes from."""
    seconds: float | None
    """What it comes to; `None` if it is not used."""
    source: Source
    begins: str
    ends: str
    fires: str
    """What happens when it is reached."""

    @property
    def bound(self) -> str:
        """The limit's length for a person to read."""
        if self.seconds is None:
            return str(self.source)
        seconds = f"{number(self.seconds)} s"
        return seconds if self.source is Source.OWN else f"{self.source} ({seconds})"


@attrs.frozen
class _Shape:
    """What of a limit is the same for every fleet."""

    limit: Limit
    field: str
    begins: str
    ends: str
    fires: str
    of_request: bool = True
    """Whether the request's deadline lies around it."""


# The order in which a request meets them.
_SHAPES = (
    _Shape(
        Limit.REQUEST,
        "serving.request_timeout_s",
        "request head read",
        "last byte handed to the kernel",
        "504 `request_expired`; in a stream, a last event with `code: expired`; a client that "
        "does not read is cut off",
    ),
    _Shape(
        Limit.TOKENIZE,
        "engine.tokenize_timeout_s",
        "count asked for",
        "count received",
        "the characters are counted instead",
    ),
    _Shape(
        Limit.QUEUE,
        "serving.queue_timeout_s",
        "request starts to wait",
        "request admitted",
        "504 `queue_expired`",
    ),
    _Shape(
        Limit.POOL,
        "engine.pool_timeout_s",
        "leg needs a connection",
        "connection taken from the pool",
        "503 `pool_exhausted`: not tried again, not held against the engine",
    ),
    _Shape(
        Limit.CONNECT,
        "engine.connect_timeout_s",
        "TCP connect",
        "connected",
        "the leg failed to connect; another attempt may follow",
    ),
    _Shape(
        Limit.PREFILL,
        "serving.prefill_timeout_s",
        "prefill request starts",
        "its answer read",
        "the prefill leg failed; another attempt may follow",
    ),
    _Shape(
        Limit.HANDOFF,
        "serving.handoff_timeout_s",
        "prefill request starts",
        "decode request written",
        "the handoff is dropped: a fresh prefill, or 504 `handoff_expired`",
    ),
    _Shape(
        Limit.FIRST_TOKEN,
        "engine.first_token_timeout_s",
        "before the decode connection",
        "first generated token",
        "the decode leg failed, and counts against the engine; another attempt may follow",
    ),
    _Shape(
        Limit.READ_GAP,
        "engine.decode_read_timeout_s",
        "first token, and again every chunk",
        "next chunk, of whatever it consists",
        "the stream failed: a last event with an error",
    ),
    _Shape(
        Limit.HEALTH,
        "engine.health_timeout_s",
        "probe starts",
        "its answer",
        "the probe failed",
        of_request=False,
    ),
    _Shape(
        Limit.GRACE,
        "serving.graceful_timeout_s",
        "router told to stop",
        "last running request done",
        "what still runs is ended",
        of_request=False,
    ),
)


FIELDS = {shape.limit: shape.field for shape in _SHAPES}
"""The setting behind each limit."""


def configured_seconds(config: FleetConfig, limit: Limit) -> float:
    """What the setting behind a limit says, in seconds, whatever else bounds it."""
    section, name = FIELDS[limit].split(".")
    return float(getattr(getattr(config, section), name))


def limits(config: FleetConfig) -> tuple[EffectiveLimit, ...]:
    """Every limit as it will hold, in the order a request meets them.

    A limit inside a request never outlasts the request: its `seconds` are at most
    `serving.request_timeout_s`, counted as if it began when the request did.
    """
    return tuple(_effective(shape, config) for shape in _SHAPES)


def _effective(shape: _Shape, config: FleetConfig) -> EffectiveLimit:
    own = configured_seconds(config, shape.limit)
    request = config.serving.request_timeout_s
    seconds: float | None
    if _unused(shape.limit, config):
        seconds, source = None, Source.OFF
    elif not shape.of_request or shape.limit is Limit.REQUEST:
        seconds, source = own, Source.OWN
    elif own == 0 or own > request:
        seconds, source = request, Source.REQUEST
    else:
        seconds, source = own, Source.OWN
    fires = shape.fires
    if shape.limit is Limit.HANDOFF:
        lease = number(config.engine.kv_lease_s)
        fires += (
            f"; so is one whose lease, engine.kv_lease_s ({lease} s), ends before a first token"
        )
    return EffectiveLimit(
        limit=shape.limit,
        field=shape.field,
        seconds=seconds,
        source=source,
        begins=shape.begins,
        ends=shape.ends,
        fires=fires,
    )


def _unused(limit: Limit, config: FleetConfig) -> bool:
    if limit is Limit.TOKENIZE:
        return not config.engine.tokenize
    return limit is Limit.QUEUE and config.serving.queue_capacity == 0
