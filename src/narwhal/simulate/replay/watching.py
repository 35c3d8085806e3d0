"""The fleet of a replay, looked at now and then."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import attrs
import trio

from narwhal.model import Phase
from narwhal.simulate.replay.results import Move, Sample

if TYPE_CHECKING:
    from collections.abc import Callable

    from narwhal.roles import Decision
    from narwhal.router import Router


@attrs.define
class Watch:
    """Samples of one router, and every decision of its role control."""

    router: Router
    began: float
    """Trio's clock when the replay began."""
    samples: list[Sample] = attrs.field(factory=list)
    moves: list[Move] = attrs.field(factory=list)
    decisions: Counter[str] = attrs.field(factory=Counter)
    """By `rule/gate`."""

    def __attrs_post_init__(self) -> None:
        """Hear of decisions from now on."""
        self.router.telemetry.watch_roles(self._decided)

    def _decided(self, decision: Decision) -> None:
        self.decisions[f"{decision.rule}/{decision.gate}"] += 1
        if (flip := decision.made) is not None:
            at = flip.at - self.began
            self.moves.append(Move(at=at, iid=flip.iid, to=flip.to, rule=flip.rule))

    async def run(self, every_s: float, told: Callable[[], None]) -> None:
        """Take a sample now and every `every_s` seconds, until cancelled; `told` after each."""
        at = self.began
        while True:
            self.sample()
            told()
            at += every_s
            await trio.sleep_until(at)

    def sample(self) -> None:
        """Look once."""
        core = self.router.core
        at = trio.current_time() - self.began
        decided = core.controller.last_evaluated
        waiting = core.queue.waiting + sum(desk.waiting for desk in core.desks.values())
        self.samples.append(
            Sample(
                at=at,
                prefill=len(core.roster.takers(Phase.PREFILL)),
                decode=len(core.roster.takers(Phase.DECODE)),
                queue=waiting,
                prefill_load=None if decided is None else decided.prefill_load,
                decode_load=None if decided is None else decided.decode_load,
            )
        )
