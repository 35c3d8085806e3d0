"""Which engines take which legs now: their roles, and what is held against them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from narwhal.fleet import EngineState, Health, Trust
from narwhal.model import FailureClass, NoEngine, Phase, Role
from narwhal.placement import Candidate, eligible

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from narwhal.config import Recovery
    from narwhal.fleet import Incarnation, Transition

_ROLES = {Phase.PREFILL: Role.PREFILL, Phase.DECODE: Role.DECODE}


class Roster:
    """The engines of a fleet, by what they are offered for and whether they are in service.

    When only one role has engines in service, or the fleet has only one, its engines take both
    phases, and each request runs whole on one of them.

    `told` is called with every change of an engine's standing, synchronously.
    """

    def __init__(
        self,
        roles: Mapping[str, Role],
        recovery: Recovery,
        *,
        told: Callable[[Transition], None],
    ) -> None:
        self.roles = dict(roles)
        self.trust = Trust()
        self.health = Health(self.roles, recovery)
        self._told = told
        self._in_service: dict[Phase, Sequence[str]] = {}
        self.working: frozenset[str] = frozenset()
        """The engines in service, of either role."""
        self.splits = False
        """Whether both roles are in service. If not, one engine runs both phases of a request."""
        self._look_again()

    def takers(self, phase: Phase) -> Sequence[str]:
        """The engines in service that take legs of `phase`."""
        return self._in_service[phase]

    def apply(self, changes: Iterable[Transition]) -> bool:
        """Take up what changed of engines' standings; whether anything did."""
        changes = list(changes)
        if not changes:
            return False
        self._look_again()
        for change in changes:
            self._told(change)
        return True

    def move(self, iid: str, role: Role) -> None:
        """Give an engine another role, for new placements; what it has it keeps.

        Whether it is in service is another matter, and does not change.
        """
        self.roles[iid] = role
        self._look_again()

    def restore(
        self,
        states: Mapping[str, tuple[EngineState, str]],
        incarnations: Mapping[str, Incarnation],
    ) -> None:
        """Begin with engines as an earlier router left them: state, reason, and process."""
        now = trio.current_time()
        for iid, (state, reason) in states.items():
            if state is not EngineState.SERVING:
                self.health.standings.restore(iid, state, now, reason)
        self.health.incarnations.update(incarnations)
        self._look_again()

    def _look_again(self) -> None:
        by_phase = {phase: self.health.in_service(role) for phase, role in _ROLES.items()}
        self.working = frozenset(iid for iids in by_phase.values() for iid in iids)
        self.splits = all(by_phase.values())
        if not self.splits:
            anybody = [iid for iids in by_phase.values() for iid in iids]  # in their order
            by_phase = dict.fromkeys(by_phase, anybody)
        self._in_service = dict(by_phase)

    # For a leg

    def live(self, phase: Phase, exclude: Collection[str], now: float) -> list[str]:
        """The engines that a leg may go to now: in service, not quarantined, not excluded."""
        quarantines = self.health.standings.quarantines(now)
        candidates = [Candidate(iid, 0.0, iid not in quarantines) for iid in self.takers(phase)]
        return [candidate.iid for candidate in eligible(candidates, exclude=exclude)]

    def required(self, phase: Phase, *, begun: bool = False) -> Sequence[str]:
        """The engines that take legs of `phase`; raises `NoEngine` if there is none.

        Engines that are being drained take those of requests that were admitted before, where
        these have nowhere else to go: when nothing is in service; and, when nothing that decodes
        is, the decode of one whose prefill has `begun`.
        """
        takers = self._in_service[phase]
        if not takers or (begun and phase is Phase.DECODE and not self.splits):
            takers = self._draining(phase) or takers
        if not takers:
            raise NoEngine("no engine is in service")
        return takers

    def _draining(self, phase: Phase) -> Sequence[str]:
        """Engines that are being drained; those of the role, if there are any."""
        state = self.health.standings.state
        draining = [iid for iid in self.roles if state(iid) is EngineState.DRAINING]
        return [iid for iid in draining if self.roles[iid] is _ROLES[phase]] or (
            [] if self.takers(phase) else draining
        )

    def changes_at(self, phase: Phase) -> float:
        """When what is held against one of them ends next; Trio's clock."""
        now = trio.current_time()
        self.apply(self.health.expire(now))
        doubts = self.trust.changes_at(self.takers(phase), phase, now)
        return min(doubts, self.health.standings.next_expiry())

    def alternatives(self, phase: Phase, exclude: Collection[str]) -> bool:
        """Whether a leg of `phase` has an engine to go to that is not in `exclude`."""
        return any(iid not in exclude for iid in self.takers(phase))

    # How legs went

    def failed(
        self, iid: str, phase: Phase, failure: FailureClass, retry_after: float | None
    ) -> None:
        """A leg of `phase` failed on `iid`: trust the engine less, and count it."""
        now = trio.current_time()
        self.trust.failed(iid, phase, failure, now, retry_after=retry_after)
        # Counting tokens is a side line: an engine that is slow to count may generate well.
        if phase is not Phase.TOKENIZE or failure is FailureClass.CONNECTION:
            self.apply(self.health.failed(iid, phase, failure, now))

    def succeeded(self, iid: str, phase: Phase) -> None:
        """A leg of `phase` went well on `iid`."""
        self.trust.succeeded(iid, phase)
        self.health.succeeded(iid, phase)
