"""Running a world in virtual time, and judging it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import trio
from trio.testing import MockClock

# Each registers its invariants.
from narwhal.simulate import account_invariants, client_invariants, engine_invariants
from narwhal.simulate.evidence import Violation
from narwhal.simulate.invariants import violations
from narwhal.simulate.plan import rng_for
from narwhal.simulate.trace import Trace
from narwhal.simulate.watchdog import Stuck, watchdog
from narwhal.simulate.world import World
from narwhal.testing import StepJitter, StepLimit, run_seeded

if TYPE_CHECKING:
    from narwhal.simulate.evidence import Evidence
    from narwhal.simulate.plan import Plan

__all__ = ["Judged", "account_invariants", "client_invariants", "engine_invariants", "run_world"]

# The busiest worlds take a few hundred thousand. One that takes this many goes round in circles.
MOST_STEPS = 10_000_000
# Virtual time in which any world is over: an hour of clients, deadlines, leases, and then some.
MOST_SECONDS = 20_000.0
# Real time for a world, which takes a second or two: what takes this long is stuck in a step.
MOST_REAL_SECONDS = 60.0
ENDS = "a world comes to its end"


@attrs.frozen(kw_only=True)
class Judged:
    """A world that was run, and what is wrong with it."""

    plan: Plan
    evidence: Evidence | None
    """None if it did not come to its end."""
    violations: tuple[Violation, ...]
    trace: Trace
    steps: int
    seconds: float
    """Virtual time that passed."""

    @property
    def passed(self) -> bool:
        """Whether every invariant held."""
        return not self.violations


def run_world(plan: Plan) -> Judged:
    """Run the world of a plan to its end and judge it; the same plan gives the same result.

    Never raises for anything that happens in the world: that is one of the violations.
    """
    clock = MockClock(autojump_threshold=0)
    trace = Trace()
    scope = trio.CancelScope()
    limit = StepLimit(MOST_STEPS, lambda: scope.cancel(reason="it goes round in circles"))
    instruments: list[trio.abc.Instrument] = [limit]
    if plan.jitter:
        instruments.append(StepJitter(clock, rng_for(plan.seed, "jitter"), plan.jitter))
    evidence: Evidence | None = None
    seconds = 0.0

    async def main() -> None:
        nonlocal evidence, seconds
        try:
            with scope, trio.fail_after(MOST_SECONDS):
                evidence = await World(plan, trace).play()
        finally:
            seconds = trio.current_time()

    found: list[Violation] = []
    try:
        with watchdog(MOST_REAL_SECONDS):
            run_seeded(main, seed=plan.seed, clock=clock, instruments=instruments)
    except (Exception, Stuck, BaseExceptionGroup) as error:  # noqa: BLE001 - it is a finding
        evidence = None
        found.append(Violation(ENDS, _explain(error), at=seconds))
    if evidence is not None:
        found += violations(evidence)
    elif not found:
        found.append(Violation(ENDS, f"not within {MOST_STEPS} steps", at=seconds))
    return Judged(
        plan=plan,
        evidence=evidence,
        violations=tuple(found),
        trace=trace,
        steps=limit.steps,
        seconds=seconds,
    )


def _explain(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    where = ""
    if traceback is not None:
        where = f" in {traceback.tb_frame.f_code.co_qualname}, line {traceback.tb_lineno}"
    return f"{type(error).__name__}: {error}{where}"
