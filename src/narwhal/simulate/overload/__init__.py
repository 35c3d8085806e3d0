"""Offered load against what is served in time: the real router over engines in virtual time.

`run_overload(Experiment())` yields the figures of every arm at every load.
"""

from narwhal.simulate.overload.arms import Arm, profiles_of
from narwhal.simulate.overload.batch import Experiment, Point, run_overload, run_point
from narwhal.simulate.overload.capacity import Capacity, capacity_of
from narwhal.simulate.overload.demand import Demand, draw_demand
from narwhal.simulate.overload.figures import Figures

__all__ = [
    "Arm",
    "Capacity",
    "Demand",
    "Experiment",
    "Figures",
    "Point",
    "capacity_of",
    "draw_demand",
    "profiles_of",
    "run_overload",
    "run_point",
]
