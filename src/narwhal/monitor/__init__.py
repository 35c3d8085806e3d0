"""Watching the engines: passes on a schedule, probes, and proof that an engine generates.

What follows from what is seen is decided in `narwhal.fleet`; here it is asked and waited for.
"""

from narwhal.monitor.monitor import Monitor, Watched
from narwhal.monitor.probing import Probed, Prober, Result

__all__ = ["Monitor", "Probed", "Prober", "Result", "Watched"]
