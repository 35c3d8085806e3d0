"""The stage of a monitor pass that asks role control, and does what it decides."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Protocol

import trio

from narwhal.roles import Gate, Verdict

if TYPE_CHECKING:
    from narwhal.model import Role
    from narwhal.roles import Decision, RoleController, Snapshot
    from narwhal.telemetry import Telemetry

logger = logging.getLogger("narwhal.monitor")


class Movable(Protocol):
    """What role control needs of a router. All of it is synchronous."""

    controller: RoleController

    def snapshot(self) -> Snapshot:
        """The fleet now."""

    def move(self, iid: str, role: Role) -> None:
        """Give an engine another role: for new placements at once, residents stay."""


class RoleStage:
    """Between the controller and the fleet. At most one engine moves in a pass."""

    def __init__(self, movable: Movable, telemetry: Telemetry) -> None:
        self._movable = movable
        self._telemetry = telemetry
        self._said: tuple[object, ...] | None = None

    def one_pass(self) -> None:
        """Ask, move, and say so."""
        movable = self._movable
        decision = movable.controller.decide(movable.snapshot(), trio.current_time())
        if decision.gate is Gate.NOT_DUE:
            return
        self._telemetry.decided(decision)
        if (flip := decision.made) is not None:
            movable.move(flip.iid, flip.to)
        self._log(decision)

    def _log(self, decision: Decision) -> None:
        """Each proposal once, until another comes of it."""
        says = (decision.verdict, decision.rule, decision.iid, decision.proposed)
        if decision.verdict is Verdict.MOVED:
            logger.info("%s moves to %s: %s", decision.iid, decision.to, decision.reason)
        elif decision.verdict is Verdict.ADVISED and says != self._said:
            logger.info("%s would move to %s: %s", decision.iid, decision.to, decision.reason)
        self._said = says
