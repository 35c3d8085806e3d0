"""What the router knows of its engines: the work resident on each, and how far each is trusted.

Pure: every method takes `now` where time matters, nothing waits, nothing is read from a clock.
"""

from narwhal.fleet.backlog import Backlog, filled_to
from narwhal.fleet.ledger import UNPLACED, Claim, Ledger, Reservation
from narwhal.fleet.orphans import Orphans
from narwhal.fleet.pace import DECODE_MEMORY, DECODE_PRIOR, Caution, Pace, Steps
from narwhal.fleet.trust import Trust

__all__ = [
    "DECODE_MEMORY",
    "DECODE_PRIOR",
    "UNPLACED",
    "Backlog",
    "Caution",
    "Claim",
    "Ledger",
    "Orphans",
    "Pace",
    "Reservation",
    "Steps",
    "Trust",
    "filled_to",
]
