"""What a replay shows: what became of each request, and what the fleet looked like meanwhile."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from collections.abc import Mapping

    from narwhal.model import Terminal
    from narwhal.simulate.replay.arrivals import Arrival


@attrs.frozen(kw_only=True)
class Served:
    """One request, as its client saw it."""

    arrival: Arrival
    terminal: Terminal
    code: str | None = None
    """Why, unless it completed."""
    first_token_s: float | None = None
    """From its arrival to the first token at the client."""
    tpot_s: float | None = None
    """Mean time between its tokens; `None` unless it had them all, 0 for a single token."""
    attained: bool = False
    """Completed, with the first token and the mean interval within their targets."""


@attrs.frozen(kw_only=True)
class Sample:
    """The fleet at one moment."""

    at: float
    """Virtual seconds since the replay began."""
    prefill: int
    """Engines in service that take prefills."""
    decode: int
    """Engines in service that take decodes."""
    queue: int
    """Requests that wait for admission or for a place."""
    prefill_load: float | None = None
    """Measured load of the pool over its target, by the controller; `None` without one."""
    decode_load: float | None = None


@attrs.frozen(kw_only=True)
class Move:
    """An engine changed its role."""

    at: float
    iid: str
    to: str
    """`prefill` or `decode`."""
    rule: str
    """The rule of the controller that moved it."""


@attrs.frozen(kw_only=True)
class Result:
    """One replay."""

    arm: str
    """What was replayed: `controller`, a split such as `4P4D`, `aggregated`, `advisory`, ...."""
    seed: int
    requests: tuple[Served, ...]
    """In the order of arrival."""
    samples: tuple[Sample, ...]
    moves: tuple[Move, ...]
    decisions: Mapping[str, int]
    """Passes of the controller, by `rule/gate`."""
    virtual_s: float
    real_s: float
