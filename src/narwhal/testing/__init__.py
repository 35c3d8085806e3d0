"""What a program needs to test itself against a router: engines in memory, and time that jumps.

Nothing in here opens a socket, sleeps, or looks at a clock or a source of randomness that it was
not given: a test that uses it takes no time, and runs the same way each time.
"""

from narwhal.emulator import Fault, TimeModel, parse_fault
from narwhal.testing.clock import run_seeded, seeded_scheduler
from narwhal.testing.fleet import MemoryFleet, fleet_config, open_fleet
from narwhal.testing.steps import AtStep, StepJitter, StepLimit

__all__ = [
    "AtStep",
    "Fault",
    "MemoryFleet",
    "StepJitter",
    "StepLimit",
    "TimeModel",
    "fleet_config",
    "open_fleet",
    "parse_fault",
    "run_seeded",
    "seeded_scheduler",
]
