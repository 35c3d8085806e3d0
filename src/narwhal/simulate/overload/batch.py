"""All arms at all loads, on as many processors as there are."""

from __future__ import annotations

import random
from functools import cached_property, partial
from itertools import islice
from typing import TYPE_CHECKING

import attrs

from narwhal.emulator import TimeModel
from narwhal.simulate.overload.arms import Arm, profiles_of
from narwhal.simulate.overload.capacity import Capacity, capacity_of
from narwhal.simulate.overload.demand import Demand, draw_demand
from narwhal.simulate.overload.figures import Figures, figures_of
from narwhal.simulate.overload.run import Load, run_load
from narwhal.simulate.processes import in_order
from narwhal.testing import MemoryFleet, fleet_config

if TYPE_CHECKING:
    from collections.abc import Iterator

    from narwhal.config import FleetConfig

LOADS = (0.7, 1.0, 1.5, 3.0)
REQUESTS = 1000
OFF = 0.1
PREFILL, DECODE = 2, 2
"""Engines of the default fleet. Prefill is the scarcer phase, by so much that it is the queue for
it that fills up: a prompt that waits there has its place in decode already."""
TTFT_S, TPOT_S = 2.0, 0.03
WARM_UP_S = 20.0
"""Ten times the TTFT target: queues are as long as they will be, and what answers turn out to be
is known."""


@attrs.frozen(kw_only=True)
class Point:
    """One run of an experiment."""

    arm: Arm
    load: float


@attrs.frozen(kw_only=True, slots=False)
class Experiment:
    """What is varied, and what is the same in every run."""

    seed: int = 0
    loads: tuple[float, ...] = LOADS
    """Multiples of capacity, each positive."""
    requests: int = REQUESTS
    """Requests of each run that are counted, at least 1."""
    off: float = OFF
    """By how much coefficients are off, from 0 to less than 1."""
    arms: tuple[Arm, ...] = tuple(Arm)
    prefill: int = PREFILL
    decode: int = DECODE
    warm_up_s: float = WARM_UP_S
    """Virtual time under load before anything is counted."""

    @property
    def points(self) -> list[Point]:
        """Every run, by arm and load."""
        return [Point(arm=arm, load=load) for arm in self.arms for load in self.loads]

    @cached_property
    def demand(self) -> tuple[Demand, ...]:
        """The requests that are counted, the same in every run."""
        return tuple(islice(draw_demand(random.Random(f"demand {self.seed}")), self.requests))

    @cached_property
    def capacity(self) -> Capacity:
        """Of this fleet, for those requests."""
        return capacity_of(
            self.demand, TimeModel(), prefill=self.prefill, decode=self.decode, tpot_s=TPOT_S
        )

    def config(self, arm: Arm) -> FleetConfig:
        """The fleet file's value; everything but targets and admission is as it is by default."""
        return fleet_config(
            prefill=self.prefill,
            decode=self.decode,
            slo={"ttft_s": TTFT_S, "tpot_s": TPOT_S},
            serving={"admission": "predictive" if arm.predictive else "open"},
        )


def run_point(experiment: Experiment, point: Point) -> Figures:
    """One run, summed up."""
    config = experiment.config(point.arm)
    profiles = profiles_of(
        point.arm,
        MemoryFleet(config).profiles,
        off=experiment.off,
        rng=random.Random(f"profiles {experiment.seed}"),
    )
    load = Load(
        seed=experiment.seed,
        counted=experiment.demand,
        rate=point.load * experiment.capacity.rate,
        warm_up_s=experiment.warm_up_s,
    )
    outcome = run_load(config, load, profiles)
    return figures_of(
        point.arm,
        point.load,
        outcome.clients,
        outcome.rows,
        slo=config.slo,
        seconds=load.seconds,
    )


def run_overload(experiment: Experiment, *, jobs: int = 1) -> Iterator[Figures]:
    """Every run in the order of `experiment.points`, on `jobs` processes.

    Blocks between two runs. How many processes there are makes no difference to the figures.
    """
    return in_order(partial(run_point, experiment), experiment.points, jobs=jobs)
