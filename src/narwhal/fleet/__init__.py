"""What the router knows of its engines: the work resident on each, and how far each is trusted.

Pure: every method takes `now` where time matters, nothing waits, nothing is read from a clock.
"""

from narwhal.fleet import contract
from narwhal.fleet.backlog import Backlog, filled_to
from narwhal.fleet.drift import Drift
from narwhal.fleet.drift_record import Finding, FindingKind
from narwhal.fleet.health import Health, Incarnation
from narwhal.fleet.ledger import UNPLACED, Claim, Ledger, Reservation
from narwhal.fleet.orphans import Orphans
from narwhal.fleet.pace import DECODE_MEMORY, DECODE_PRIOR, Caution, Pace, Steps
from narwhal.fleet.standing import (
    OPERATORS,
    TAKES_WORK,
    TO_BE_PROVED,
    TRANSITIONS,
    EngineState,
    Event,
    Standings,
    Transition,
)
from narwhal.fleet.streaks import REMEDIES, Remedy, Streaks
from narwhal.fleet.trust import Trust

__all__ = [
    "DECODE_MEMORY",
    "DECODE_PRIOR",
    "OPERATORS",
    "REMEDIES",
    "TAKES_WORK",
    "TO_BE_PROVED",
    "TRANSITIONS",
    "UNPLACED",
    "Backlog",
    "Caution",
    "Claim",
    "Drift",
    "EngineState",
    "Event",
    "Finding",
    "FindingKind",
    "Health",
    "Incarnation",
    "Ledger",
    "Orphans",
    "Pace",
    "Remedy",
    "Reservation",
    "Standings",
    "Steps",
    "Streaks",
    "Transition",
    "Trust",
    "contract",
    "filled_to",
]
