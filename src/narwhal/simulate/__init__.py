"""Worlds in memory and virtual time: a whole router under faults, from a seed, and judged.

`run_world(draw_plan(seed))` is all there is to it.
"""

from narwhal.simulate.evidence import Evidence, Violation
from narwhal.simulate.invariants import INVARIANTS, Invariant
from narwhal.simulate.plan import Plan, draw_plan
from narwhal.simulate.run import Judged, run_world
from narwhal.simulate.trace import Event, Trace

__all__ = [
    "INVARIANTS",
    "Event",
    "Evidence",
    "Invariant",
    "Judged",
    "Plan",
    "Trace",
    "Violation",
    "draw_plan",
    "run_world",
]
