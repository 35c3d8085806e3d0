"""Engines that serve Poisson arrivals, in steps of a second, for a controller that moves them.

A prefill engine works through its queue in order. A decode engine gives each of its streams a
token an interval, where the interval is that of the profile for what it holds; a step's interval
is that of its beginning. An engine that was moved finishes what it has, beside what is new. No
request is refused, and handing over takes no time. Time is a number.
"""

from __future__ import annotations

from heapq import heappop, heappush
from random import Random

import attrs
from role_scenes import PROFILE, controller_of

from narwhal.model import Role
from narwhal.roles import EngineNow, Flip, RoleController, Snapshot, Verdict


@attrs.frozen
class Mix:
    """Requests a second, and the means of their lengths."""

    rate: float
    prompt: float
    output: float


@attrs.define
class Engine:
    """One engine."""

    role: Role
    free_at: float = 0.0
    """When its queue of prefills is done."""
    steps: float = 0.0
    """Tokens that a stream would have had that was there from the start."""
    streams: list[tuple[float, int, int]] = attrs.field(factory=list)
    """Each by the step it ends at: a number of its own, and the KV tokens it holds."""
    kv_tokens: int = 0

    def decode(self) -> None:
        """A second."""
        if not self.streams:
            return
        self.steps += 1.0 / PROFILE.decode_interval(len(self.streams), self.kv_tokens)
        while self.streams and self.streams[0][0] <= self.steps:
            self.kv_tokens -= heappop(self.streams)[2]


class FleetSim:
    """Half of the engines prefill at first."""

    def __init__(self, preset: str, seed: int, *, engines: int = 8) -> None:
        half = engines // 2
        self.controller: RoleController = controller_of(half, half, preset=preset)
        iids = [f"p{n}" for n in range(half)] + [f"d{n}" for n in range(half)]
        roles = {"p": Role.PREFILL, "d": Role.DECODE}
        self.engines = {iid: Engine(roles[iid[0]]) for iid in iids}
        self.now = 0.0
        self.flips: list[Flip] = []
        self._random = Random(seed)
        self._coming: list[tuple[float, int, int, int]] = []
        self._count = 0

    def _pool(self, role: Role) -> list[Engine]:
        return [engine for engine in self.engines.values() if engine.role is role]

    def _arrive(self, mix: Mix, at: float) -> None:
        draw = self._random.lognormvariate
        prompt, output = (
            max(1, round(each * draw(-0.125, 0.5))) for each in (mix.prompt, mix.output)
        )
        self.controller.offered(prompt, output, at)
        engine = min(self._pool(Role.PREFILL), key=lambda engine: engine.free_at)
        engine.free_at = max(engine.free_at, at) + PROFILE.prefill_seconds(prompt)
        self._count += 1
        heappush(self._coming, (engine.free_at, self._count, prompt, output))

    def _place(self) -> None:
        """Give the prefills that are done a decode engine each."""
        while self._coming and self._coming[0][0] <= self.now:
            _, number, prompt, output = heappop(self._coming)
            engine = min(self._pool(Role.DECODE), key=lambda engine: engine.kv_tokens)
            held = prompt + output // 2
            engine.kv_tokens += held
            heappush(engine.streams, (engine.steps + output, number, held))

    def _snapshot(self) -> Snapshot:
        return Snapshot(
            engines=tuple(
                EngineNow(
                    iid=iid,
                    role=engine.role,
                    prefill_s=max(0.0, engine.free_at - self.now),
                    decodes=len(engine.streams),
                    kv_tokens=engine.kv_tokens,
                )
                for iid, engine in self.engines.items()
            ),
            pending=len(self._coming),
            pending_tokens=sum(prompt + output // 2 for _, _, prompt, output in self._coming),
        )

    def run(self, mix: Mix, seconds: int) -> None:
        """Requests of this mix for so long, with a pass each second."""
        next_at = self.now + self._random.expovariate(mix.rate)
        for _ in range(seconds):
            self.now += 1.0
            while next_at < self.now:
                self._arrive(mix, next_at)
                next_at += self._random.expovariate(mix.rate)
            for engine in self.engines.values():
                engine.decode()
            self._place()
            decision = self.controller.decide(self._snapshot(), self.now)
            if decision.verdict is Verdict.MOVED:
                assert decision.iid is not None
                assert decision.to is not None
                self.engines[decision.iid].role = decision.to
                self.flips.append(self.controller.flips[-1])
