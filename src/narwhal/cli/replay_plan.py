"""From what was asked for to the replays that it takes, and their running."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from narwhal.cli.progress import bar
from narwhal.cli.running import fail, fail_config
from narwhal.model import ConfigError
from narwhal.simulate.replay.batch import run_replays
from narwhal.simulate.replay.replay import Replay
from narwhal.simulate.replay.run import run_replay
from narwhal.simulate.replay.traces import read_trace
from narwhal.simulate.replay.workload import Shape, shape

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from narwhal.cli.progress import Advance
    from narwhal.cli.replay_options import TraceFile
    from narwhal.config import FleetConfig
    from narwhal.profiles import Profile
    from narwhal.simulate.replay.arrivals import Arrival
    from narwhal.simulate.replay.results import Result
    from narwhal.simulate.replay.traces import Trace

# What a shape calls its parts, and what they are called here.
_OPTIONS = {
    "Shape.start_s or .seconds": "--limit",
    "Shape.phases": "--phases",
    "Shape.rates": "--rates",
    "Shape.phase_s": "--phase-s",
    "Shape.scale": "--rate",
    "Shape.smooth": "--smooth",
}


@attrs.frozen(kw_only=True)
class Arm:
    """One way to run the fleet."""

    name: str
    config: FleetConfig


@attrs.frozen(kw_only=True)
class Workload:
    """The requests to replay, and where they come from."""

    traces: Mapping[str, Trace]
    shape: Shape
    arrivals: Mapping[int, tuple[Arrival, ...]]
    """By seed; a seed makes a difference where phases take slices of traces."""


@attrs.frozen(kw_only=True)
class Plan:
    """All replays that were asked for: every arm with every seed."""

    workload: Workload
    arms: tuple[Arm, ...]
    truth: Mapping[str, Profile]
    believed: Mapping[str, Profile] | None = None
    score_ttft_s: float | None = None
    """The target that first tokens are judged by; None is the fleet's own."""

    @property
    def seeds(self) -> tuple[int, ...]:
        """In the order in which they were given."""
        return tuple(self.workload.arrivals)

    @property
    def replays(self) -> tuple[Replay, ...]:
        """By arm, and for each by seed."""
        return tuple(
            Replay(
                config=arm.config,
                truth=self.truth,
                believed=self.believed,
                arrivals=arrivals,
                seed=seed,
                arm=arm.name,
                ttft_s=self.score_ttft_s,
            )
            for arm in self.arms
            for seed, arrivals in self.workload.arrivals.items()
        )


def read_workload(files: Sequence[TraceFile], wanted: Shape, seeds: Sequence[int]) -> Workload:
    """Read all traces and shape them, once for each seed; exits with what is wrong with them."""
    names = [file.name for file in files]
    for name in names:
        if names.count(name) > 1:
            raise fail(f"--trace: two traces are called {name}; give one of them as NAME=FILE")
    try:
        traces = {file.name: read_trace(file.path, kind=file.name) for file in files}
    except ConfigError as error:
        raise fail(*(f"--trace: {problem}" for problem in error.problems)) from error
    demand = {name: trace.arrivals for name, trace in traces.items()}
    try:
        arrivals = {seed: shape(demand, attrs.evolve(wanted, seed=seed)) for seed in seeds}
    except ConfigError as error:
        raise fail_config(ConfigError([_as_options(text) for text in error.problems])) from error
    return Workload(traces=traces, shape=wanted, arrivals=arrivals)


def _as_options(problem: str) -> str:
    for name, option in _OPTIONS.items():
        problem = problem.replace(name, option)
    return problem


def run_plan(plan: Plan, *, jobs: int, shown: bool) -> dict[str, list[Result]]:
    """The results of every arm, by its name, while a bar counts requests. Blocks."""
    replays = plan.replays
    requests = sum(len(replay.arrivals) for replay in replays)
    results: dict[str, list[Result]] = {}
    with bar("requests", requests, shown=shown) as advance:
        for result in _results(replays, jobs, advance):
            results.setdefault(result.arm, []).append(result)
    return results


def _results(replays: Sequence[Replay], jobs: int, advance: Advance) -> Iterator[Result]:
    if jobs == 1 or len(replays) == 1:
        for replay in replays:
            yield _watched(replay, advance)
        return
    for result in run_replays(replays, jobs=jobs):
        advance(len(result.requests))
        yield result


def _watched(replay: Replay, advance: Advance) -> Result:
    """One replay in this process, which can tell how far it is."""
    told = 0

    def progress(ended: int) -> None:
        nonlocal told
        advance(ended - told)
        told = ended

    result = run_replay(replay, progress=progress)
    progress(len(result.requests))
    return result


def unlike(arms: Iterable[Arm]) -> tuple[Arm, ...]:
    """The arms in their order, each name once."""
    return tuple({arm.name: arm for arm in arms}.values())
