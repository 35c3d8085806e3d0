"""What a seed stands for: a fleet, its settings, who comes, and what goes wrong how often.

Everything about a world that is not decided in the moment is decided here, so a plan can be
read, printed, and changed by hand. Each concern draws from a source of its own (`rng_for`): more
clients do not make other engines.
"""

from __future__ import annotations

import random
from math import inf
from typing import TYPE_CHECKING

import attrs

from narwhal.simulate.incidents import Incident, draw_incidents
from narwhal.simulate.settings import draw_config

if TYPE_CHECKING:
    from narwhal.config import FleetConfig

REQUESTS = 200
"""Requests over HTTP of a world, at least; the embedded ones come on top."""
ENGINES = 4
"""Engines of a drawn fleet, at least."""
HEAD_BYTES = 1000
BODY_BYTES = 5500
"""The largest request that is drawn, so that its time on a slow line can be allowed for."""
EXTENSIONS = ("respond", "write", "write_nowait", "on_gone", "flush", "abort")
_WRITING = frozenset({"write", "write_nowait", "flush"})


@attrs.frozen(kw_only=True)
class Lines:
    """What connections go through. Each draws its own, up to these."""

    delay_s: float
    bytes_per_s: float
    segmented: bool
    """Whether what is written at once arrives in pieces."""
    buffer_bytes: int


@attrs.frozen(kw_only=True)
class Plan:
    """A world to be. Times in seconds, shares between 0 and 1."""

    seed: int
    config: FleetConfig
    lines: Lines
    requests: int
    span: float
    """Clients come within this time."""
    speed: float
    """How many times as fast as usual the engines are."""
    leg_faults: float
    """Share of engine legs that go wrong."""
    line_faults: float
    """Share of engine connections that go wrong."""
    rudeness: float
    """Share of client connections that do not behave."""
    jitter: float
    """The longest that one step of a task takes."""
    incidents: tuple[Incident, ...]
    callers: int
    """Requests from within the application."""
    extensions: frozenset[str] | None
    """Which of its server's extensions the application is offered; None for all of them."""
    ending: str
    """`quiet`, or what happens in the middle of everything: `drain`; `stop`, which closes the
    server as well; `leave`, the end of the router's block."""
    end_at: float
    grace: float

    @property
    def peaceful(self) -> bool:
        """Whether engines do nothing worse than to close idle connections."""
        return not (self.leg_faults or self.line_faults or self.incidents)

    @property
    def instant(self) -> bool:
        """Whether both ends of a connection see everything at the same moment."""
        lines = self.lines
        return not (self.jitter or lines.delay_s or lines.segmented) and lines.bytes_per_s == inf

    @property
    def slack(self) -> float:
        """By how much times may be off because steps take time, and so do bytes."""
        on_the_line = 4 * (HEAD_BYTES + BODY_BYTES) / self.lines.bytes_per_s
        return 1e-6 + 40 * self.jitter + 4 * self.lines.delay_s + on_the_line


def rng_for(seed: int, concern: str) -> random.Random:
    """The source of chance for one concern of one world."""
    return random.Random(f"{concern} {seed}")


def draw_plan(
    seed: int,
    *,
    config: FleetConfig | None = None,
    requests: int = REQUESTS,
    engines: int = ENGINES,
) -> Plan:
    """The world of `seed`: at least `requests` requests and `engines` engines.

    With a `config` the fleet and its settings are that, and everything else is as without.
    """
    rng = rng_for(seed, "plan")
    drawn = draw_config(rng_for(seed, "settings"), engines=engines)
    config = config or drawn
    span = rng.choice((0.0, 0.5, 5.0, 30.0, 300.0, 3600.0))
    iids = [spec.iid for spec in config.engines]
    return Plan(
        seed=seed,
        config=config,
        lines=_draw_lines(rng),
        requests=requests + rng.randrange(1 + requests // 10),
        span=span,
        speed=rng.choice((1.0, 5.0, 20.0)),
        leg_faults=rng.choice((0.0, 0.1, 0.3, 0.5)),
        line_faults=rng.choice((0.0, 0.0, 0.05, 0.3)),
        rudeness=rng.choice((0.0, 0.2, 0.6)),
        jitter=rng.choice((0.0, 1e-6, 1e-4, 5e-3)),
        incidents=draw_incidents(rng_for(seed, "incidents"), iids, span),
        callers=rng.choice((0, 0, 10, 40)),
        extensions=_draw_extensions(rng),
        ending=rng.choice((*["quiet"] * 9, "drain", "stop", "leave")),
        end_at=rng.choice((0.1, 1.0, max(1.0, span))) * rng.random(),
        grace=rng.choice((0.0, 0.5, 5.0)),
    )


def _draw_lines(rng: random.Random) -> Lines:
    segmented = rng.random() < 0.3
    return Lines(
        delay_s=rng.choice((0.0, 0.0, 0.001, 0.03)),
        # Without a bandwidth all segments of a write would arrive at once.
        bytes_per_s=rng.choice((1e7, 3e5)) if segmented else rng.choice((inf, inf, 1e7)),
        segmented=segmented,
        buffer_bytes=rng.choice((200, 600, 4096, 65536, 65536, 65536)),
    )


def _draw_extensions(rng: random.Random) -> frozenset[str] | None:
    """Other servers have none of them; any part of them should do as well."""
    kind = rng.random()
    if kind < 0.7:
        return None
    if kind < 0.9:
        return frozenset()
    offered = {name for name in EXTENSIONS if rng.random() < 0.5}
    if offered & _WRITING:  # one set: what one of them leaves, another has to send
        offered |= _WRITING
    return frozenset(offered)
