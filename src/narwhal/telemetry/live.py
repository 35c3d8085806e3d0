"""The router as it describes itself when somebody asks: a scrape, or the state document.

The router gives one value, `LiveState`; `/metrics` and `/narwhal/state` both show that value, so
that they cannot disagree, and nothing is written on the hot path for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import attrs

from narwhal.fleet import EngineState

if TYPE_CHECKING:
    from collections.abc import Mapping

    from narwhal.model import FailureClass, Phase, Role
    from narwhal.telemetry.kinds import Pool
    from narwhal.telemetry.roles_view import RolesView


Readings = dict[str, dict[tuple[str, ...], float]]
"""Values by metric (without prefix) and by label values in the catalogue's order."""


@attrs.frozen
class PoolView:
    """One connection pool of an engine."""

    idle: int
    busy: int
    waiting: int


@attrs.frozen(kw_only=True)
class DrainView:
    """A drain that an operator asked for. Times are seconds."""

    since_s: float
    deadline_s: float | None
    """Left; below zero when it has passed. None: there is none."""
    overdue: bool
    process_start_s: float | None
    """Unix time, of the process that was drained; None: not known."""


@attrs.frozen(kw_only=True)
class EngineView:
    """One engine as the router sees it now. Mappings have entries for prefill and decode."""

    iid: str
    role: Role
    pin: bool
    state: EngineState = EngineState.SERVING
    state_s: float | None = None
    """Seconds in that state; None: always."""
    reason: str = ""
    """Why it is in that state; empty if it always was."""
    streaks: Mapping[FailureClass, int] = attrs.field(factory=dict)
    """Failures in a row."""
    version: str | None = None
    """Of its process, where that was asked; Unix time of the process' start beside it."""
    process_start_s: float | None = None
    drain: DrainView | None = None
    """None: it is in nobody's hands but the router's."""
    suspicion: str
    """Which legs are rather given to others for the moment, in a few words."""
    seats: Mapping[Phase, int]
    seat_limit: Mapping[Phase, int] = attrs.field(factory=dict)
    """Empty, or 0 in a phase: no limit."""
    residents: Mapping[Phase, int]
    reserved_tokens: int
    """KV tokens that its residents will hold at their ends."""
    backlog_s: float = 0.0
    """Predicted seconds of its resident prefills."""
    pace: Mapping[Phase, float] = attrs.field(factory=dict)
    """What its work takes over what its profile says, of late; empty: not known."""
    orphan_tokens: int = 0
    """KV tokens of handoffs it still holds though no decode will fetch them."""
    pools: Mapping[Pool, PoolView] = attrs.field(factory=dict)


@attrs.frozen(kw_only=True)
class LiveState:
    """The router as it is now."""

    ready: bool = False
    not_ready: tuple[str, ...] = ()
    """Why it is not, a sentence each."""
    draining: bool = False
    admission_seats: int = 0
    """Requests that are admitted at a time."""
    admitted: int = 0
    """Those that are admitted now."""
    queue_capacity: int = 0
    """Requests that may wait to be admitted."""
    waiting: int = 0
    """Requests waiting to be admitted."""
    seats_waited_for: Mapping[Phase, int] = attrs.field(factory=dict)
    """Legs of admitted requests that wait for a seat."""
    retained: int = 0
    """Requests held in memory."""
    retry_credits: float = 0.0
    degraded: str | None = None
    """What goes wrong in the monitor, if that stops admission."""
    engines: tuple[EngineView, ...] = ()
    roles: RolesView | None = None
    takers: Mapping[Phase, tuple[str, ...]] = attrs.field(factory=dict)
    """The engines that take legs of each phase, by `iid`; an engine may take both."""


class StateSource(Protocol):
    """Whoever can describe the router: synchronous, cheap, and without side effects."""

    def live_state(self) -> LiveState:
        """Return the state now. Called once a scrape and once a state document."""
