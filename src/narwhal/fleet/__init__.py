"""What the router knows of its engines: what is resident on each, its standing, and its drift.

Pure: every method takes `now` where time matters, nothing waits, nothing is read from a clock.
"""

from narwhal.fleet.backlog import Backlog
from narwhal.fleet.drift import Drift
from narwhal.fleet.drift_record import Finding, FindingKind
from narwhal.fleet.ledger import UNPLACED, Claim, Ledger, Reservation
from narwhal.fleet.orphans import Orphans
from narwhal.fleet.trust import Trust

__all__ = [
    "UNPLACED",
    "Backlog",
    "Claim",
    "Drift",
    "Finding",
    "FindingKind",
    "Ledger",
    "Orphans",
    "Reservation",
    "Trust",
]
