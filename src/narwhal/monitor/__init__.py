"""Watching the engines: passes on a schedule, probes, and proof that an engine generates.

What a router knows of them is kept in a file here, for the next one to resume.

What follows from what is seen is decided in `narwhal.fleet`; here it is asked and waited for.
"""

from narwhal.monitor.identity import reported_facts
from narwhal.monitor.lifecycle import Check, DrainStatus, Lifecycle, NotNow, Verdict
from narwhal.monitor.monitor import Monitor, Watched
from narwhal.monitor.probing import Probed, Prober, Result
from narwhal.monitor.resume import check_fits, standing, with_roles
from narwhal.monitor.state_document import EngineRecord, SavedState, parse_state, state_bytes
from narwhal.monitor.state_file import StateFile, StateStore, load_state
from narwhal.monitor.state_keeper import StageFailed, StateKeeper

__all__ = [
    "Check",
    "DrainStatus",
    "EngineRecord",
    "Lifecycle",
    "Monitor",
    "NotNow",
    "Probed",
    "Prober",
    "Result",
    "SavedState",
    "StageFailed",
    "StateFile",
    "StateKeeper",
    "StateStore",
    "Verdict",
    "Watched",
    "check_fits",
    "load_state",
    "parse_state",
    "reported_facts",
    "standing",
    "state_bytes",
    "with_roles",
]
