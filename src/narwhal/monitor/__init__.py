"""Watching the engines: passes on a schedule, probes, and proof that an engine generates.

What follows from what is seen is decided in `narwhal.fleet`; here it is asked and waited for.
"""

from narwhal.monitor.lifecycle import Check, DrainStatus, Lifecycle, NotNow, Verdict
from narwhal.monitor.monitor import Monitor, Watched
from narwhal.monitor.probing import Probed, Prober, Result

__all__ = [
    "Check",
    "DrainStatus",
    "Lifecycle",
    "Monitor",
    "NotNow",
    "Probed",
    "Prober",
    "Result",
    "Verdict",
    "Watched",
]
