"""The fleet of a replay, looked at now and then."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import trio

from narwhal.model import Phase
from narwhal.simulate.replay.results import Move, Sample

if TYPE_CHECKING:
    from collections.abc import Callable

    from narwhal.router import Router

    Loads = Callable[[Router], tuple[float | None, float | None]]
    """The loads of prefill and decode over their targets, as the controller has them."""


def no_loads(router: Router) -> tuple[float | None, float | None]:  # noqa: ARG001 - a Loads
    """Those of a router without a controller."""
    return None, None


@attrs.define
class Watch:
    """Samples of one router, and the changes of roles that they show."""

    router: Router
    began: float
    """Trio's clock when the replay began."""
    loads: Loads
    samples: list[Sample] = attrs.field(factory=list)
    moves: list[Move] = attrs.field(factory=list)
    _roles: dict[str, str] = attrs.field(factory=dict)

    def __attrs_post_init__(self) -> None:
        """Nothing has moved yet."""
        self._roles = self._look()

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
        prefill_load, decode_load = self.loads(self.router)
        waiting = core.queue.waiting + sum(desk.waiting for desk in core.desks.values())
        self.samples.append(
            Sample(
                at=at,
                prefill=len(core.roster.takers(Phase.PREFILL)),
                decode=len(core.roster.takers(Phase.DECODE)),
                queue=waiting,
                prefill_load=prefill_load,
                decode_load=decode_load,
            )
        )
        roles = self._look()
        for iid, role in roles.items():
            if role != self._roles[iid]:
                self.moves.append(Move(at=at, iid=iid, to=role, rule=""))
        self._roles = roles

    def _look(self) -> dict[str, str]:
        core = self.router.core
        return {spec.iid: core.role(spec.iid).value for spec in self.router.config.engines}
