"""Measuring live engines: what a router has to know of their speed, found out with requests.

Talks to engines as the router does, with the same clients and the same bodies. Fitting and
keeping what was measured is the business of `narwhal.profiles`.
"""

from narwhal.profiler.profiling import EngineProfile, Progress, profile_engine
from narwhal.profiler.stopping import ProfilingStopped, Reason
from narwhal.profiler.sweep import Room, Sweep, Wanted, plan_sweep
from narwhal.profiler.texts import TEXTS

__all__ = [
    "TEXTS",
    "EngineProfile",
    "ProfilingStopped",
    "Progress",
    "Reason",
    "Room",
    "Sweep",
    "Wanted",
    "plan_sweep",
    "profile_engine",
]
