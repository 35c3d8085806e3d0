"""How a request gets its seat: priced, admitted or kept waiting, and priced again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from narwhal.admission import Cause, Refused
from narwhal.model import Limit, Phase
from narwhal.router import outcomes
from narwhal.router.queue import Admission

if TYPE_CHECKING:
    from narwhal.model import Outcome
    from narwhal.router.life import RequestLife


async def admit(life: RequestLife) -> Outcome | None:
    """Get a seat; None if it has one, and then `core.queue.leave` is owed.

    Waits at most `serving.queue_timeout_s`, and with predictive admission no longer than an idle
    engine could still be in time. A cancel leaves the line.
    """
    core = life.core
    if (refused := _judge(life)) is not None:
        return refused
    verdict, hopeless = core.queue.admit_nowait(), False
    if verdict is None:
        life.watch.enter(Phase.QUEUE, trio.current_time())
        too_late = trio.CancelScope(deadline=core.gate.hopeless_at(life))
        with trio.move_on_after(core.config.serving.queue_timeout_s), too_late:
            verdict = await core.queue.admit(core.prices.mean_prefill_s(life.prompt_tokens))
        hopeless = too_late.cancelled_caught
    match verdict:
        case Admission.SEAT:
            return _judge_again(life)
        case Admission.FULL:
            return outcomes.queue_full(core.config, core.drain_seconds())
        case Admission.CLOSED:
            return outcomes.draining()
        case None if hopeless:
            # What it has waited and what it takes on an idle engine are the whole budget by now.
            return _refuse(
                life,
                Refused(
                    cause=Cause.BACKLOG,
                    projected_s=core.prices.targets.budget_s,
                    retry_after=core.drain_seconds(),
                ),
            )
        case None:
            life.record.fired(Limit.QUEUE)
            return outcomes.queue_expired(core.config)


def _judge(life: RequestLife, *, waited: bool = False) -> Outcome | None:
    """The refusal, if the request is projected to miss its targets."""
    verdict = life.core.gate.judge(life, waited=waited)
    if isinstance(verdict, Refused):
        return _refuse(life, verdict)
    if verdict is not None:
        life.record.projected_ttft_s = verdict.projected_s
        life.whole = verdict.whole
    return None


def _judge_again(life: RequestLife) -> Outcome | None:
    """The same with a seat: what was in time when it came may be too late by now."""
    refused = _judge(life, waited=True) if life.watch.phase is Phase.QUEUE else None
    if refused is not None:
        life.core.queue.leave()
    return refused


def _refuse(life: RequestLife, refusal: Refused) -> Outcome:
    life.core.telemetry.refused(refusal.cause)
    if refusal.cause is Cause.BACKLOG:
        life.core.controller.breached()
    return outcomes.refused(life.core.config, refusal, life.prompt_tokens)
