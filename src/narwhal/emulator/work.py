"""One completion request at work on its engine."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

import trio

from narwhal.emulator.bodies import BUSY, DEAD, FAILED
from narwhal.emulator.core import Sequence
from narwhal.emulator.engine import Job
from narwhal.emulator.envelope import Choice, Envelope
from narwhal.emulator.faults import LEFT_OUT, Kv, NoFinish, NoKv, NoPull, NoUsage
from narwhal.emulator.handoff import Verdict
from narwhal.emulator.plan import make_plan
from narwhal.emulator.tokens import digest
from narwhal.model import Route

if TYPE_CHECKING:
    from narwhal.emulator.bodies import Refusal
    from narwhal.emulator.engine import EmulatedEngine
    from narwhal.emulator.faults import Fault
    from narwhal.emulator.handoff import Descriptor, Pull
    from narwhal.emulator.requests import EngineRequest

_PREFIXES = {Route.COMPLETIONS: "cmpl-", Route.CHAT: "chatcmpl-"}


class Work:
    """Runs a request; `close` it in any case.

    A decode leg fetches its KV cache right here, at its arrival: from then on the producer is
    free, whatever becomes of the leg. The engine's own work begins with `begin`.
    """

    def __init__(
        self, engine: EmulatedEngine, request: EngineRequest, name: str, fault: Fault | None
    ) -> None:
        self.request = request
        self.envelope = Envelope(
            request_id=_PREFIXES[request.route] + name,
            created=int(engine.unix_time()),
            model=engine.settings.model,
            fingerprint=f"vllm-{engine.settings.version}",
            request=request,
            finish=not _has(fault, NoFinish),
            usage=not _has(fault, NoUsage),
        )
        self._engine = engine
        self._fault = fault
        self._digests = [digest(prompt.ids) for prompt in request.prompts]
        self._salt = 0 if engine.settings.repeatable else zlib.crc32(name.encode())
        self.pull = self._fetch()
        """How fetching its KV cache went; None for a request that has none to fetch."""
        self.job = self._make_job()
        self._begun = False
        self._refusal: Refusal | None = None

    async def begin(self) -> Refusal | None:
        """Let the engine begin; what it answers instead, if it does not. Idempotent.

        Waits only for its KV cache to be there, or to show that it will not be.
        """
        if not self._begun:
            self._begun = True
            self._refusal = await self._start()
        return self._refusal

    async def finish(self) -> Refusal | None:
        """Wait until all tokens are there; what to answer instead, if the engine died."""
        while not self.job.finished:
            if self.job.failure is not None:
                return self.job.failure
            await self.job.progress()
        return None

    def close(self) -> None:
        """Free what the request still holds of the engine."""
        self._engine.close(self.job)

    @property
    def handle(self) -> str | None:
        """The name of the KV cache that a finished prefill leg left for a decoder."""
        handle = self.job.sequences[self.request.samples - 1].handle
        return None if handle is None else handle.request_id

    def kv_transfer_params(self) -> Descriptor | None:
        """What a finished prefill leg tells about its KV cache.

        With several prompts or samples it is one cache of several, as with a real engine: the
        last sample of the first prompt. The others stay where they are until their leases end.
        """
        handle = self.job.sequences[self.request.samples - 1].handle
        if handle is None:
            return None
        descriptor = self._engine.connector.describe(handle)
        for action in self._fault.actions if self._fault is not None else ():
            if isinstance(action, Kv):
                if action.value is LEFT_OUT:
                    descriptor.pop(action.name, None)
                else:
                    descriptor[action.name] = action.value
        return descriptor

    def _fetch(self) -> Pull | None:
        engine, params = self._engine, self.request.descriptor
        if params is None or _has(self._fault, NoPull):
            return None
        tokens = len(self.request.prompts[0].ids)
        now = trio.current_time()
        pull = engine.fleet.pull(engine.connector, params, self._digests[0], tokens, now)
        engine.stats.pulled_tokens += pull.tokens
        return pull

    def _make_job(self) -> Job:
        request = self.request
        garbled = self.pull is not None and self.pull.verdict is Verdict.WRONG
        choices: list[Choice] = []
        sequences: list[Sequence] = []
        for prompt, wish, seed in zip(request.prompts, request.wish, self._digests, strict=True):
            for sample in range(request.samples):
                plan = make_plan(wish, seed ^ self._salt, sample=sample, garbled=garbled)
                place = len(choices)
                choices.append(Choice(place, prompt, plan))
                sequences.append(
                    Sequence(
                        request_id=f"{self.envelope.request_id}-{place}-{self._engine.new_id()[:8]}",
                        leg=request.leg,
                        prompt_tokens=len(prompt.ids),
                        output_tokens=plan.length,
                        digest=seed,
                        prefill_tokens=0 if sample else None,
                        keeps_kv=not _has(self._fault, NoKv),
                    )
                )
        return Job(tuple(choices), tuple(sequences))

    async def _start(self) -> Refusal | None:
        pull, engine = self.pull, self._engine
        if pull is not None and pull.verdict not in (Verdict.RIGHT, Verdict.WRONG):
            await trio.sleep(pull.delay)
            if pull.verdict is Verdict.FAILED:
                return FAILED
            engine.die()
            return DEAD
        if pull is not None and (copying := engine.core.time.handoff_seconds(pull.tokens)):
            await trio.sleep(copying)
        if engine.outage is not None:
            return DEAD
        return None if engine.open(self.job) else BUSY


def _has(fault: Fault | None, kind: type[NoFinish | NoUsage | NoKv | NoPull]) -> bool:
    return fault is not None and fault.has(kind)
