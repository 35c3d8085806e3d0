"""Many worlds, on as many processors as there are, and what they come to."""

from __future__ import annotations

import time
from collections import Counter
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING

import attrs

from narwhal.simulate.plan import ENGINES, REQUESTS, draw_plan
from narwhal.simulate.processes import in_order
from narwhal.simulate.run import run_world

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from narwhal.config import FleetConfig
    from narwhal.simulate.evidence import Evidence, Violation
    from narwhal.simulate.run import Judged

LAST_EVENTS = 25
"""Events before a violation that are kept for a person to read."""
MOST_VIOLATIONS = 5
"""Violations of a world that are kept; one fault breaks many invariants."""


@attrs.frozen(kw_only=True)
class Size:
    """How large worlds are made, and of what."""

    requests: int = REQUESTS
    engines: int = ENGINES
    config: FleetConfig | None = None
    """A fleet, in the place of one drawn from the seed."""


@attrs.frozen
class Broken:
    """A violation, and what went before it."""

    violation: Violation
    events: tuple[str, ...]
    """Lines of the trace."""


@attrs.frozen(kw_only=True)
class Summary:
    """One world in figures."""

    seed: int
    requests: int = 0
    """Requests that reached a terminal."""
    engines: int
    terminals: Mapping[str, int] = attrs.field(factory=dict)
    limits: Mapping[str, int] = attrs.field(factory=dict)
    retries: int = 0
    legs: int = 0
    kv_released: int = 0
    kv_orphaned: int = 0
    leaks: int = 0
    """Whatever was not given back, of any kind."""
    virtual_s: float
    real_s: float
    steps: int
    digest: str
    """A hash of the trace: equal for equal runs."""
    violations: int = 0
    broken: tuple[Broken, ...] = ()


def run_seed(seed: int, size: Size) -> Summary:
    """Run the world of a seed and sum it up."""
    began = time.perf_counter()
    plan = draw_plan(seed, config=size.config, requests=size.requests, engines=size.engines)
    judged = run_world(plan)
    return summarize(judged, real_s=time.perf_counter() - began)


def run_seeds(
    first: int, runs: int, size: Size, *, jobs: int, fail_fast: bool = False
) -> Iterator[Summary]:
    """Run the worlds of `runs` seeds from `first`, in order, on `jobs` processes.

    Blocks between two worlds. A world that fails stops the others only with `fail_fast`.
    """
    worlds = in_order(partial(run_seed, size=size), range(first, first + runs), jobs=jobs)
    with closing(worlds):
        yield from _until_failure(worlds, fail_fast)


def _until_failure(summaries: Iterator[Summary], fail_fast: bool) -> Iterator[Summary]:
    for each in summaries:
        yield each
        if fail_fast and each.violations:
            return


def summarize(judged: Judged, *, real_s: float) -> Summary:
    """A world's figures, and of its violations the first ones."""
    plan, evidence = judged.plan, judged.evidence
    base = Summary(
        seed=plan.seed,
        engines=len(plan.config.engines),
        virtual_s=judged.seconds,
        real_s=real_s,
        steps=judged.steps,
        digest=judged.trace.digest(),
        violations=len(judged.violations),
        broken=tuple(_broken(judged, each) for each in judged.violations[:MOST_VIOLATIONS]),
    )
    return base if evidence is None else _with_figures(base, evidence)


def _with_figures(base: Summary, evidence: Evidence) -> Summary:
    rows, totals = evidence.rows, evidence.totals
    return attrs.evolve(
        base,
        requests=len(rows),
        terminals=_counted(str(row.terminal) for row in rows),
        limits=_counted(str(limit) for row in rows for limit in row.limits_fired),
        retries=totals.retries,
        legs=len(evidence.legs),
        kv_released=totals.kv_released,
        kv_orphaned=totals.kv_orphaned,
        leaks=sum(evidence.rest.values()) + evidence.open_streams + (not evidence.engines_idle),
    )


def _broken(judged: Judged, violation: Violation) -> Broken:
    events = judged.trace.last(LAST_EVENTS, about=violation.about, until=violation.at)
    return Broken(violation, tuple(event.line().decode() for event in events))


def _counted(names: Iterator[str]) -> dict[str, int]:
    return dict(sorted(Counter(names).items()))


def total(summaries: list[Summary]) -> dict[str, object]:
    """All figures added up, for a person or as JSON."""
    terminals: Counter[str] = Counter()
    limits: Counter[str] = Counter()
    for each in summaries:
        terminals.update(each.terminals)
        limits.update(each.limits)
    return {
        "worlds": len(summaries),
        "failed": sum(bool(each.violations) for each in summaries),
        "requests": sum(each.requests for each in summaries),
        "legs": sum(each.legs for each in summaries),
        "terminals": dict(sorted(terminals.items())),
        "limits": dict(sorted(limits.items())),
        "retries": sum(each.retries for each in summaries),
        "kv_released": sum(each.kv_released for each in summaries),
        "kv_orphaned": sum(each.kv_orphaned for each in summaries),
        "leaks": sum(each.leaks for each in summaries),
        "virtual_s": round(sum(each.virtual_s for each in summaries), 3),
        "real_s": round(sum(each.real_s for each in summaries), 3),
    }
