"""One engine measured from beginning to end."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import attrs

from narwhal.engine import Prompts
from narwhal.profiler.measuring import (
    measure_batch,
    measure_handoff,
    measure_interval,
    measure_prefill,
)
from narwhal.profiler.stopping import Reason
from narwhal.profiler.subject import Subject
from narwhal.profiler.sweep import Sweep, Wanted, plan_sweep
from narwhal.profiler.texts import TEXTS
from narwhal.profiles import EngineSamples, Refused, fit_prefill, medians, refit_row

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from random import Random

    from narwhal.config import FleetConfig
    from narwhal.engine import EngineClient
    from narwhal.profiler.subject import Facts
    from narwhal.profiles import (
        DecodeSample,
        HandoffSample,
        PrefillCurve,
        PrefillSample,
        ProfileRow,
    )

HANDOFF_REPEATS = 3
# Before anything counts: the first requests of a process make it compile, and open connections.
_WARM_PREFILLS = 2
_WARM_TOKENS = 16
# The first stream of a batch gets tokens while the prompts of the others are prefilled: as many
# as it may need by the model, and as many again.
_SPARE = 2.0
_SPARE_TOKENS = 16
# What a token of a batch weighs against one of a prompt, for an estimate of the time left.
_TOKEN_WEIGHT = 200


@attrs.frozen(kw_only=True)
class Progress:
    """How far the measuring of one engine is."""

    iid: str
    doing: str
    done: float
    """Share of the work that is done, 0 to 1, by tokens."""


@attrs.frozen(kw_only=True)
class EngineProfile:
    """What was measured on an engine, and what became of it."""

    samples: EngineSamples
    row: ProfileRow
    left_out: tuple[str, ...]
    """Batches that were asked for and not measured, and why."""


async def profile_engine(
    config: FleetConfig,
    client: EngineClient,
    *,
    producer: EngineClient | None,
    wanted: Wanted,
    rng: Random,
    texts: Sequence[str] = TEXTS,
    report: Callable[[Progress], None] = lambda _progress: None,
) -> EngineProfile:
    """Measure one engine that has nothing else to do, and fit its profile.

    `producer` is an engine that hands KV over to it; without one, or if it hands nothing over,
    handoffs are not measured. It has to be idle as well. Prompts are drawn from `rng`; `texts`
    are counted for `engine.chars_per_token`. `report` is called before each step.

    Raises `ProfilingStopped` as soon as it is clear that there will be no profile: the engine is
    busy, too small, does not answer, restarts, or does not follow the model. That, and a cancel,
    leave the engines idle: connections are closed, and handed-over KV cache is released.
    """
    subject = Subject(config, client, rng)
    facts = await subject.facts(texts)
    sweep = plan_sweep(wanted, facts.room)
    if isinstance(sweep, str):
        raise subject.stopped(Reason.TOO_SHORT, sweep)
    source = None if producer is None else Subject(config, producer, rng)
    run = _Run(
        subject=subject,
        source=source,
        facts=facts,
        sweep=sweep,
        prompts=Prompts(config.model, facts.ids, rng),
        report=report,
    )
    samples = await run.measure()
    await subject.check_same(facts.engine)
    row = refit_row(samples)
    if isinstance(row, Refused):
        raise subject.stopped(Reason.BAD_FIT, row.text)
    return EngineProfile(samples=samples, row=row, left_out=(*sweep.left_out, *run.left_out))


@attrs.define(kw_only=True)
class _Run:
    """The measurements of one engine, in their order."""

    subject: Subject
    source: Subject | None
    facts: Facts
    sweep: Sweep
    prompts: Prompts
    report: Callable[[Progress], None]
    left_out: list[str] = attrs.field(factory=list)
    done: float = 0.0

    async def measure(self) -> EngineSamples:
        subject, facts = self.subject, self.facts
        for each in filter(None, (subject, self.source)):
            await each.watch()
        interval = await self._warm_up()
        prefill = await self._prefills()
        curve = fit_prefill(medians(prefill))
        if isinstance(curve, Refused):
            raise subject.stopped(Reason.BAD_FIT, curve.text)
        decode = await self._batches(curve.value, interval)
        handoff = await self._handoffs()
        return EngineSamples(
            engine=facts.engine,
            prefill=tuple(prefill),
            decode=tuple(decode),
            handoff=tuple(handoff),
            text=facts.text,
        )

    async def _warm_up(self) -> float:
        shortest = self.sweep.prefill_lens[0]
        self._say("warming up", 0.0)
        for _ in range(_WARM_PREFILLS):
            await measure_prefill(self.subject, self.prompts, shortest)
        return await measure_interval(self.subject, self.prompts, shortest, _WARM_TOKENS)

    async def _prefills(self) -> list[PrefillSample]:
        samples = []
        for tokens in self.sweep.prefill_lens:
            for _ in range(self.sweep.prefill_repeats):
                self._say(f"prefill of {tokens} tokens", tokens)
                samples.append(await measure_prefill(self.subject, self.prompts, tokens))
            await self.subject.check_alone()
        return samples

    async def _batches(self, curve: PrefillCurve, interval: float) -> list[DecodeSample]:
        samples, wanted = [], self.sweep.decode_tokens
        for requests, tokens in self.sweep.batches:
            self._say(f"{requests} streams over {tokens} tokens", self._weight(requests, tokens))
            lead = requests * curve.seconds(tokens) / interval
            spare = min(math.ceil(_SPARE * lead) + _SPARE_TOKENS, self._spare(requests, tokens))
            sample = await measure_batch(
                self.subject, self.prompts, requests, tokens, wanted=wanted, spare=spare
            )
            if sample is None:
                text = f"{requests} requests of {tokens} tokens: they never decoded all at one time"
                self.left_out.append(text)
            else:
                samples.append(sample)
            await self.subject.check_alone()
        return samples

    def _spare(self, requests: int, tokens: int) -> int:
        """Tokens that each stream of a batch may get beyond those that are measured."""
        room = self.facts.room
        most = room.context_tokens
        if room.kv_tokens is not None:
            most = min(most, room.kv_tokens // requests)
        return most - tokens - self.sweep.decode_tokens

    async def _handoffs(self) -> list[HandoffSample]:
        samples: list[HandoffSample] = []
        source = self.source
        if source is None:
            return samples
        for tokens in self.sweep.handoff_lens:
            for _ in range(HANDOFF_REPEATS):
                self._say(f"handoff of {tokens} tokens", 2 * tokens)
                sample = await measure_handoff(self.subject, source, self.prompts, tokens)
                if sample is None:
                    return []
                samples.append(sample)
            await self.subject.check_alone()
            await source.check_alone()
        return samples

    def _say(self, doing: str, weight: float) -> None:
        self.report(Progress(iid=self.subject.iid, doing=doing, done=self.done / self._weigh()))
        self.done += weight

    def _weight(self, requests: int, tokens: int) -> float:
        return requests * tokens + _TOKEN_WEIGHT * self.sweep.decode_tokens

    def _weigh(self) -> float:
        sweep = self.sweep
        prefills = sweep.prefill_repeats * sum(sweep.prefill_lens)
        batches = sum(self._weight(*batch) for batch in sweep.batches)
        handoffs = 2 * HANDOFF_REPEATS * sum(sweep.handoff_lens) if self.source else 0
        return prefills + batches + handoffs
