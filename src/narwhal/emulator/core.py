"""One engine's scheduler, without I/O: time is an argument, effects are return values.

Guarantees, whatever the order of calls:

- prefills start in the order of submission, one at a time, and never idle while one could run;
- all decoding sequences step together, one token each per step;
- seats and KV blocks are held from a sequence's start to its end, and come back exactly once;
- a call with time `now` sees every event up to and including `now` as having happened, in
  order, at its own time: a caller that is late changes no event.

The calls must have non-decreasing times.
"""

from __future__ import annotations

import heapq
import math
from collections import OrderedDict
from enum import Enum, StrEnum
from typing import TYPE_CHECKING

import attrs

from narwhal.emulator.blocks import BlockPool

if TYPE_CHECKING:
    from random import Random

    from narwhal.emulator.settings import EngineSettings

# Handles whose uses are still counted after they are gone; more than are ever in flight.
REMEMBERED_HANDLES = 4096


class Leg(StrEnum):
    """What a request asks of the engine."""

    PREFILL = "prefill"
    """Compute the prompt's KV cache and keep it for a decoder."""
    DECODE = "decode"
    """Fetch the prompt's KV cache from another engine and generate."""
    WHOLE = "whole"
    """Both, without a handoff."""


class State(Enum):
    """Where a sequence stands."""

    NEW = 0
    WAITING = 1
    PREFILLING = 2
    DECODING = 3
    FINISHED = 4
    ABORTED = 5


@attrs.define(eq=False, kw_only=True)
class Sequence:
    """One prompt with one answer. What it will say is not the scheduler's business."""

    request_id: str
    leg: Leg
    prompt_tokens: int
    output_tokens: int
    """Tokens it generates before it finishes, at least 1."""
    digest: int
    """Stands for the prompt's contents in the KV blocks."""
    prefill_tokens: int | None = None
    """Prompt tokens that have to be computed; None: all (a prompt's second sample: 0)."""
    keeps_kv: bool = True
    """A prefill leg leaves a handle behind; false stages a connector that forgets to."""

    produced: int = 0
    state: State = State.NEW
    ticket: int = 0
    blocks: list[int] = attrs.field(factory=list)
    handle: KvHandle | None = None
    """Set when a prefill leg finishes."""


@attrs.frozen(eq=False)
class KvHandle:
    """A prefilled KV cache that waits for its decoder."""

    request_id: str
    blocks: tuple[int, ...]
    tokens: int
    expires: float


@attrs.frozen
class PrefillFinished:
    """The prompt's KV cache is complete; the first token came at the same moment."""

    at: float
    sequence: Sequence


@attrs.frozen
class TokensProduced:
    """Each of `sequences` got one token; `produced` already counts it."""

    at: float
    sequences: tuple[Sequence, ...]
    step: int = 0
    """Decode steps of the engine so far; 0 for the first token of a prefill."""


@attrs.frozen
class SequenceFinished:
    """The sequence has all its tokens and holds nothing any more, but for its handle."""

    at: float
    sequence: Sequence


Effect = PrefillFinished | TokensProduced | SequenceFinished


class EngineCore:
    """Schedules sequences on one engine. See the module for what it guarantees."""

    def __init__(self, settings: EngineSettings, *, random: Random | None = None) -> None:
        """`random` is what `settings.noise` is drawn from; without it there is none."""
        self.settings = settings
        self.time = settings.time
        """May be replaced; prefills and steps that have begun keep their length."""
        self.lease_s = settings.lease_s
        self.pool = BlockPool(settings.block_size, settings.kv_capacity_tokens)
        self.handles: dict[str, KvHandle] = {}
        self.uses: OrderedDict[str, int] = OrderedDict()
        """How often each handle was named by a decoder, for the latest handles."""
        self.released = 0
        self.expired = 0
        self.late_notifications = 0
        """Decoders that named a handle this engine did not hold any more."""
        self._random = random if settings.noise else None
        self._now = -math.inf
        self._ticket = 0
        self._effects: list[Effect] = []
        self._waiting_prefill: OrderedDict[int, Sequence] = OrderedDict()
        self._waiting_decode: OrderedDict[int, Sequence] = OrderedDict()
        self._prefilling: Sequence | None = None
        self._prefill_ends = math.inf
        self._active: dict[int, Sequence] = {}
        self._stepping: tuple[Sequence, ...] = ()
        self._steps = 0
        self._step_ends = math.inf
        self._resident = 0
        self._leases: list[tuple[float, int, str]] = []

    # What the engine is doing

    @property
    def running(self) -> int:
        """Sequences that hold a seat."""
        return len(self._active) + (self._prefilling is not None)

    @property
    def waiting(self) -> int:
        """Sequences that wait for a seat, for KV blocks or for the prefill before them."""
        return len(self._waiting_prefill) + len(self._waiting_decode)

    @property
    def resident_tokens(self) -> int:
        """KV tokens of the sequences that decode."""
        return self._resident

    @property
    def idle(self) -> bool:
        """Whether nothing runs, waits, or is kept for a decoder."""
        return not (self.running or self.waiting or self.handles or self.pool.used)

    # The calls

    def submit(self, sequence: Sequence, now: float) -> bool:
        """Queue a new sequence; False if the engine is too busy (`max_num_queued_reqs`)."""
        if sequence.state is not State.NEW or sequence.output_tokens < 1:
            raise ValueError("a sequence is submitted once, and has at least one token to give")
        self._settle(now)
        limit = self.settings.max_num_queued_reqs
        if limit is not None and self.running + self.waiting >= limit:
            return False
        self._ticket += 1
        sequence.ticket = self._ticket
        sequence.state = State.WAITING
        decode = sequence.leg is Leg.DECODE
        (self._waiting_decode if decode else self._waiting_prefill)[sequence.ticket] = sequence
        self._start_waiting(now)
        return True

    def abort(self, sequence: Sequence, now: float) -> None:
        """Forget the sequence and free what it holds, at once; no effect on a finished one."""
        self._settle(now)
        if sequence.state is State.WAITING:
            self._waiting_prefill.pop(sequence.ticket, None)
            self._waiting_decode.pop(sequence.ticket, None)
        elif sequence.state is State.PREFILLING:
            self._prefilling = None
            self._prefill_ends = math.inf
            self._free(sequence)
        elif sequence.state is State.DECODING:
            self._leave_batch(sequence)
            self._free(sequence)
            if not self._active:
                self._step_ends = math.inf
        else:
            return
        sequence.state = State.ABORTED
        self._start_waiting(now)

    def notify(self, request_id: str, now: float) -> bool:
        """A decoder has read the KV cache of `request_id`: free it. False if it is gone."""
        self._settle(now)
        if request_id in self.uses:
            self.uses[request_id] += 1
        handle = self.handles.pop(request_id, None)
        if handle is None:
            self.late_notifications += 1
            return False
        self.released += 1
        self.pool.give_back(handle.blocks)
        self._start_waiting(now)
        return True

    def next_event_at(self) -> float | None:
        """When to call `advance` next if nothing else is called before; None: never."""
        if self._effects:
            return self._now
        at = min(self._prefill_ends, self._step_ends, self._lease_ends())
        return None if at == math.inf else at

    def quiet_until(self, every: int) -> float | None:
        """As `next_event_at`, for a caller who does not care for each of the steps.

        Before that time no sequence begins or ends, or gets its first token, and no step has a
        number that `every` divides. The time of such an event may be a little later. It holds
        until the next call that changes something, or until `time` is replaced.
        """
        at = self.next_event_at()
        if at != self._step_ends or self._random is not None:
            return at
        steps = every - self._steps % every
        for sequence in self._active.values():
            left = sequence.output_tokens - sequence.produced if sequence.produced else 1
            steps = min(steps, left)
        # Steps only become longer: nobody leaves meanwhile, and every one of them adds tokens.
        at += (steps - 1) * self._step_seconds()
        return min(at, self._prefill_ends, self._lease_ends())

    def advance(self, now: float) -> list[Effect]:
        """Everything that happened up to `now` and was not returned before, in order."""
        self._settle(now)
        effects, self._effects = self._effects, []
        return effects

    def reset_counters(self) -> None:
        """Zero the counters; what runs, waits and is kept stays."""
        self.released = self.expired = self.late_notifications = 0
        self.uses = OrderedDict.fromkeys(self.handles, 0)

    # Events

    def _lease_ends(self) -> float:
        leases = self._leases
        while leases and leases[0][2] not in self.handles:
            heapq.heappop(leases)
        return leases[0][0] if leases else math.inf

    def _settle(self, now: float) -> None:
        if now < self._now:
            raise ValueError(f"time ran backwards, from {self._now} to {now}")
        while True:
            lease_ends = self._lease_ends()
            at = min(self._prefill_ends, self._step_ends, lease_ends)
            if at > now or at == math.inf:
                break
            if at == self._prefill_ends:
                self._end_prefill(at)
            elif at == self._step_ends:
                self._end_step(at)
            else:
                self._end_lease()
            self._start_waiting(at)
        self._now = now

    def _end_prefill(self, at: float) -> None:
        sequence = self._prefilling
        assert sequence is not None, "a prefill ends only while one runs"  # noqa: S101 - invariant
        self._prefilling = None
        self._prefill_ends = math.inf
        sequence.produced = 1
        self._effects.append(PrefillFinished(at, sequence))
        self._effects.append(TokensProduced(at, (sequence,)))
        if sequence.output_tokens == 1:
            self._finish(sequence, at)
        else:
            self._join_batch(sequence)

    def _end_step(self, at: float) -> None:
        # Those that joined during the step wait for the next; those that left got nothing.
        members = tuple(s for s in self._stepping if s.state is State.DECODING)
        self._step_ends = math.inf
        for sequence in members:
            sequence.produced += 1
        self._resident += len(members)
        self._steps += 1
        self._effects.append(TokensProduced(at, members, self._steps))
        for sequence in members:
            if sequence.produced >= sequence.output_tokens:
                self._leave_batch(sequence)
                self._finish(sequence, at)

    def _end_lease(self) -> None:
        _, _, request_id = heapq.heappop(self._leases)
        handle = self.handles.pop(request_id)
        self.expired += 1
        self.pool.give_back(handle.blocks)

    def _finish(self, sequence: Sequence, at: float) -> None:
        sequence.state = State.FINISHED
        if sequence.leg is Leg.PREFILL and sequence.keeps_kv:
            self._stage(sequence, at)
        self._free(sequence)
        self._effects.append(SequenceFinished(at, sequence))

    def _stage(self, sequence: Sequence, at: float) -> None:
        kept = self.pool.needed(sequence.prompt_tokens)
        handle = KvHandle(
            sequence.request_id,
            tuple(sequence.blocks[:kept]),
            sequence.prompt_tokens,
            at + self.lease_s,
        )
        del sequence.blocks[:kept]
        sequence.handle = handle
        self.handles[handle.request_id] = handle
        self.uses[handle.request_id] = 0
        if len(self.uses) > REMEMBERED_HANDLES:
            self.uses.popitem(last=False)
        heapq.heappush(self._leases, (handle.expires, sequence.ticket, handle.request_id))

    def _free(self, sequence: Sequence) -> None:
        self.pool.give_back(sequence.blocks)
        sequence.blocks = []

    # Scheduling

    def _join_batch(self, sequence: Sequence) -> None:
        sequence.state = State.DECODING
        self._active[sequence.ticket] = sequence
        self._resident += sequence.prompt_tokens + sequence.produced

    def _leave_batch(self, sequence: Sequence) -> None:
        del self._active[sequence.ticket]
        self._resident -= sequence.prompt_tokens + sequence.produced

    def _next_waiting(self) -> Sequence | None:
        """The first in line that waits for nothing but a seat and KV blocks."""
        first = next(iter(self._waiting_decode.values()), None)
        if self._prefilling is None and self._waiting_prefill:
            head = next(iter(self._waiting_prefill.values()))
            if first is None or head.ticket < first.ticket:
                first = head
        return first

    def _start_waiting(self, at: float) -> None:
        while (sequence := self._next_waiting()) is not None:
            # Room for the whole answer is set aside at the start: an engine would preempt
            # instead, which would make times depend on more than the model of time.
            blocks = self.pool.needed(sequence.prompt_tokens + sequence.output_tokens)
            if self.running >= self.settings.max_num_seqs or not self.pool.fits(blocks):
                break  # nobody overtakes the first in line
            sequence.blocks = self.pool.take(blocks, sequence.digest)
            if sequence.leg is Leg.DECODE:
                del self._waiting_decode[sequence.ticket]
                self._join_batch(sequence)
            else:
                del self._waiting_prefill[sequence.ticket]
                self._start_prefill(sequence, at)
        if self._active and self._step_ends == math.inf:
            self._stepping = tuple(self._active.values())
            step = self._step_seconds()
            if self._prefilling is not None:
                step += self.time.chunk_seconds()
            self._step_ends = at + self._noisy(step)

    def _step_seconds(self) -> float:
        """A step of the batch as it is, without a prompt's chunk."""
        return self.time.step_seconds(len(self._active), self._resident)

    def _start_prefill(self, sequence: Sequence, at: float) -> None:
        tokens = sequence.prefill_tokens
        if tokens is None:
            tokens = sequence.prompt_tokens
        sequence.state = State.PREFILLING
        self._prefilling = sequence
        seconds = self.time.prefill_seconds(tokens)
        if self._active:
            seconds += self.time.waiting_seconds(tokens, self._step_seconds())
        self._prefill_ends = at + self._noisy(seconds)

    def _noisy(self, seconds: float) -> float:
        if self._random is None:
            return seconds
        deviations = max(-3.0, min(3.0, self._random.gauss(0.0, 1.0)))
        return seconds * (1.0 + self.settings.noise * deviations)
