"""One emulated engine: the scheduler on Trio's clock, its identity, and its power switch."""

from __future__ import annotations

import math
import uuid
from typing import TYPE_CHECKING

import attrs
import trio
from trio.lowlevel import ParkingLot

from narwhal.emulator.bodies import DEAD
from narwhal.emulator.core import EngineCore, PrefillFinished, State, TokensProduced
from narwhal.emulator.faults import FaultBook
from narwhal.emulator.handoff import Connector
from narwhal.emulator.stats import Stats

if TYPE_CHECKING:
    from random import Random

    from narwhal.emulator.bodies import Refusal
    from narwhal.emulator.core import Sequence
    from narwhal.emulator.envelope import Choice
    from narwhal.emulator.handoff import Fleet
    from narwhal.emulator.settings import EngineSettings, TimeModel

SIDE_CHANNEL_PORT = 5600
"""Where vLLM's NIXL side channel starts counting."""
LAST_WORDS_S = 0.1
"""From the moment an engine dies to its refusing connections: its answers still get out."""


@attrs.frozen
class Outage:
    """A time in which the engine refuses connections."""

    seconds: float | None
    """None: until `EmulatedEngine.restart` is called."""
    new_process: bool
    """Whether it comes back as another process: its KV cache lost, its identity new."""


class Job:
    """One request's sequences, and the wake-up of the task that answers it.

    Tokens are not queued: what a token says is known from its number, so all that passes from
    the engine to the request is how many there are. However slow a client reads, its request
    holds one integer for each sequence, and the engine never waits for it; a real engine
    decodes on as well.
    """

    def __init__(self, choices: tuple[Choice, ...], sequences: tuple[Sequence, ...]) -> None:
        self.choices = choices
        self.sequences = sequences
        self.failure: Refusal | None = None
        """Set when the engine died under it."""
        self._fresh = False
        self._waiter = ParkingLot()

    @property
    def finished(self) -> bool:
        """Whether every sequence has all its tokens."""
        return all(sequence.state is State.FINISHED for sequence in self.sequences)

    def ready(self) -> Choice | None:
        """A choice with a token that was not shown; the one that lags most."""
        best = None
        for choice, sequence in zip(self.choices, self.sequences, strict=True):
            behind = choice.shown < sequence.produced
            if behind and (best is None or choice.shown < best.shown):
                best = choice
        return best

    def wake(self) -> None:
        """Something changed."""
        self._fresh = True
        self._waiter.unpark_all()

    async def progress(self) -> None:
        """Wait until something has changed since the last call."""
        if not self._fresh:
            await self._waiter.park()
        self._fresh = False


class EmulatedEngine:
    """One engine. Its scheduler is touched by synchronous calls alone, and advanced by `run`.

    `epoch` is the Unix time at which Trio's clock read zero; `random` makes its identities.
    """

    def __init__(
        self, settings: EngineSettings, fleet: Fleet, *, index: int, random: Random, epoch: float
    ) -> None:
        self.settings = settings
        self.fleet = fleet
        self.stats = Stats()
        self.faults = FaultBook()
        self.started_at = epoch
        self.core: EngineCore
        self.connector: Connector
        self._index = index
        self._random = random
        self._epoch = epoch
        self._jobs: dict[Sequence, Job] = {}
        self._changed = ParkingLot()
        self._outage: Outage | None = None
        self._outage_over = False  # as soon as it has begun, if it has not yet
        self._power = ParkingLot()
        self._begin_process()

    @property
    def iid(self) -> str:
        """The engine's name."""
        return self.settings.iid

    @property
    def idle(self) -> bool:
        """Whether it holds nothing: no request, no sequence, no KV block."""
        return not self._jobs and not self.stats.inflight.total() and self.core.idle

    def unix_time(self) -> float:
        """Unix time, as far as this engine is concerned."""
        return self._epoch + trio.current_time()

    def step_clock(self, seconds: float) -> None:
        """Set its wall clock forward, or back: what it says of times jumps, what it does not.

        When its process started was written down before and stays as it was.
        """
        self._epoch += seconds

    def new_id(self) -> str:
        """16 random hexadecimal digits, as vLLM numbers requests."""
        return f"{self._random.getrandbits(64):016x}"

    # Work

    def set_time(self, time: TimeModel) -> None:
        """Be as fast as `time` says from now on; prefills and steps that have begun go on."""
        self.core.time = time
        self._changed.unpark_all()

    def open(self, job: Job) -> bool:
        """Queue a job's sequences; False if the engine is too busy. Either way, `close` it."""
        now = trio.current_time()
        for sequence in job.sequences:
            if not self.core.submit(sequence, now):
                self.stats.rejections += 1
                return False
            self._jobs[sequence] = job
        self._changed.unpark_all()
        return True

    def close(self, job: Job) -> None:
        """Forget a job; what of it still runs is aborted. Idempotent."""
        now = trio.current_time()
        for sequence in job.sequences:
            if self._jobs.pop(sequence, None) is not None:
                self.core.abort(sequence, now)
        self._changed.unpark_all()

    async def run(self) -> None:
        """Advance the scheduler as time goes by; runs until cancelled, through outages too."""
        every = self.settings.stream_every
        while True:
            core = self.core
            at = core.next_event_at() if every == 1 else core.quiet_until(every)
            with trio.CancelScope(deadline=math.inf if at is None else at):
                await self._changed.park()
            self._advance()

    def _advance(self) -> None:
        for effect in self.core.advance(trio.current_time()):
            if isinstance(effect, TokensProduced):
                self.stats.tokens += len(effect.sequences)
                written = effect.step % self.settings.stream_every == 0
                for sequence in effect.sequences:
                    # Its end comes as an effect of its own.
                    if written or sequence.produced == 1:
                        self._wake(sequence)
            elif isinstance(effect, PrefillFinished):
                self.stats.prompt_tokens += effect.sequence.prompt_tokens
            else:
                self._finished(effect.sequence)

    def _wake(self, sequence: Sequence) -> None:
        job = self._jobs.get(sequence)
        if job is not None:
            job.wake()

    def _finished(self, sequence: Sequence) -> None:
        job = self._jobs.get(sequence)
        if job is not None:
            choice = job.choices[job.sequences.index(sequence)]
            self.stats.finished[choice.plan.finish_reason] += 1
            job.wake()

    # Identity and power

    @property
    def outage(self) -> Outage | None:
        """The outage that goes on, or is about to begin."""
        return self._outage

    def take_down(self, seconds: float | None = None, *, new_process: bool = False) -> None:
        """Drop all connections and refuse new ones for `seconds`, or until `restart`."""
        if self._outage is None:
            self._outage = Outage(seconds, new_process)
            self._outage_over = False
            self._power.unpark_all()

    def die(self) -> None:
        """End the process: requests fail, connections are refused until `restart`."""
        if self._outage is not None:
            return
        jobs = list(self._jobs.values())
        self._jobs.clear()
        self.end_process()
        for job in jobs:
            job.failure = DEAD
            job.wake()
        self.take_down(new_process=True)

    def restart(self) -> None:
        """End the outage, one that is only about to begin as well."""
        self._outage_over = True
        self._power.unpark_all()

    async def wait_for_outage(self) -> Outage:
        """Wait until the engine is to refuse connections."""
        while (outage := self._outage) is None:
            await self._power.park()
        if outage.new_process:
            await trio.sleep(LAST_WORDS_S)
        return outage

    async def wait_for_power(self, outage: Outage) -> None:
        """Wait until the outage is over, and come back."""
        with trio.move_on_after(math.inf if outage.seconds is None else outage.seconds):
            while not self._outage_over:
                await self._power.park()
        self._outage = None
        if outage.new_process:
            self.stats.restarts += 1
            self.started_at = self.unix_time()
            self._begin_process()
            self._changed.unpark_all()

    def began_serving(self) -> None:
        """The engine is up for the first time: this is when its process started."""
        self.started_at = self.unix_time()

    def end_process(self) -> None:
        """What the process held is lost, and other engines cannot reach it any more."""
        if self.connector.alive:
            self.fleet.leave(self.connector)
        self._jobs.clear()

    def _begin_process(self) -> None:
        self.core = EngineCore(self.settings, random=self._random)
        self.connector = Connector(
            engine_id=str(uuid.UUID(int=self._random.getrandbits(128), version=4)),
            host="127.0.0.1",
            port=SIDE_CHANNEL_PORT + self._index,
            core=self.core,
            changed=self._changed.unpark_all,
        )
        self.fleet.join(self.connector)
