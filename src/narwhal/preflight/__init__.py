"""Preflight: whether a fleet can take traffic, found out by asking its engines.

Goes through gates in order, from the fleet file to a handoff between every two engines that may
hand over, and says of each what was seen, what was expected and what to do. Talks to engines as
the router does, with the same clients and the same bodies. Nothing about the fleet is changed.
"""

from narwhal.preflight.calibrating import Calibration, Timing
from narwhal.preflight.gates import FLEET, Finding, Gate, Grade
from narwhal.preflight.ledger import count
from narwhal.preflight.run import LEASE_WAIT_S, Options, Preflight, Report

__all__ = [
    "FLEET",
    "LEASE_WAIT_S",
    "Calibration",
    "Finding",
    "Gate",
    "Grade",
    "Options",
    "Preflight",
    "Report",
    "Timing",
    "count",
]
