"""Incidents: an engine that is in trouble for a while, whatever the legs in it do."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

import attrs
import trio

from narwhal.emulator.faults import Fault, Hang, Status

if TYPE_CHECKING:
    import random
    from collections.abc import Sequence

    from narwhal.emulator import EmulatedEngine
    from narwhal.simulate.faults import DrawnFaults
    from narwhal.simulate.network import SimulatedNetwork
    from narwhal.simulate.trace import Trace

# Of an engine in the state `SLOW`; enough for time limits of any length to fire.
_SLOWER = 20.0
# A bad step of a wall clock: the next process of the engine seems older than the one before.
_CLOCK_STEP_S = -3600.0
_FLAPS = 4


class IncidentKind(StrEnum):
    """What happens to the engine."""

    REFUSE = "refuse"
    """Connections drop and are refused; the same process comes back."""
    FLAP = "flap"
    """The same, several times in short order."""
    RESTART = "restart"
    """The process ends and another comes up at the address: KV cache lost, identity new."""
    DIE = "die"
    """The process fails what it is doing, then ends; somebody starts another one later."""
    BUSY = "busy"
    """Every leg is answered 503."""
    HANG = "hang"
    """No leg is answered; `/health` is."""
    SLOW = "slow"
    """Everything takes much longer."""
    CLOCK = "clock"
    """Its wall clock steps back, and then it restarts: a new process with an earlier start."""
    VANISH = "vanish"
    """The network to it is gone without a word, and comes back for new connections."""


@attrs.frozen(kw_only=True)
class Incident:
    """One engine's trouble."""

    at: float
    engine: str
    kind: IncidentKind
    seconds: float


def draw_incidents(rng: random.Random, iids: Sequence[str], span: float) -> tuple[Incident, ...]:
    """Any number of incidents, none half the time, in the time in which clients come."""
    count = rng.choice((0, 0, 0, 1, 3, 10))
    drawn = [
        Incident(
            at=rng.uniform(0, max(1.0, span)),
            engine=rng.choice(iids),
            kind=rng.choice(list(IncidentKind)),
            seconds=rng.choice((0.01, 0.1, 2.0, 20.0)),
        )
        for _ in range(count)
    ]
    return tuple(sorted(drawn, key=lambda incident: incident.at))


class Troublemaker:
    """Brings incidents about, one task for each."""

    def __init__(
        self,
        engines: Sequence[EmulatedEngine],
        faults: dict[str, DrawnFaults],
        network: SimulatedNetwork,
        trace: Trace,
    ) -> None:
        self._engines = {engine.iid: engine for engine in engines}
        self._faults = faults
        self._network = network
        self._trace = trace

    async def bring_about(self, incident: Incident) -> None:
        """Wait for the incident's time, let it happen, and end it."""
        await trio.sleep(incident.at)
        self._trace.add(
            "incident", engine=incident.engine, kind=incident.kind, seconds=incident.seconds
        )
        engine = self._engines[incident.engine]
        match incident.kind:
            case IncidentKind.BUSY:
                await self._all_legs(incident, Fault([Status(503)]))
            case IncidentKind.HANG:
                await self._all_legs(incident, Fault([Hang()]))
            case IncidentKind.SLOW:
                await slow_down(engine, incident.seconds)
            case IncidentKind.VANISH:
                await self._network.vanish(incident.engine, incident.seconds)
            case _:
                await take_down(engine, incident)

    async def _all_legs(self, incident: Incident, fault: Fault) -> None:
        faults = self._faults[incident.engine]
        faults.all_legs = fault
        await trio.sleep(incident.seconds)
        faults.all_legs = None


async def slow_down(engine: EmulatedEngine, seconds: float) -> None:
    """Let all that the engine begins within `seconds` take much longer."""
    usual = engine.core.time
    engine.set_time(usual.faster(1 / _SLOWER))
    await trio.sleep(seconds)
    engine.set_time(usual)


async def take_down(engine: EmulatedEngine, incident: Incident) -> None:
    """Bring about one of the incidents in which the engine's connections drop, and end it."""
    seconds = incident.seconds
    match incident.kind:
        case IncidentKind.REFUSE:
            engine.take_down(seconds)
        case IncidentKind.FLAP:
            for _ in range(_FLAPS):
                engine.take_down(seconds / _FLAPS)
                await trio.sleep(2 * seconds / _FLAPS)
        case IncidentKind.RESTART:
            engine.take_down(seconds, new_process=True)
        case IncidentKind.CLOCK:
            engine.step_clock(_CLOCK_STEP_S)
            engine.take_down(seconds, new_process=True)
        case IncidentKind.DIE:
            engine.die()
            await trio.sleep(seconds)
            engine.restart()
