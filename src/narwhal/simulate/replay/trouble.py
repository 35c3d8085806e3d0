"""What happens to the engines of a replay."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from narwhal.emulator.faults import Fault, Hang, Status
from narwhal.simulate.incidents import IncidentKind, slow_down, take_down

if TYPE_CHECKING:
    from narwhal.simulate.incidents import Incident
    from narwhal.testing import MemoryFleet

_ON_LEGS = {IncidentKind.BUSY: Fault([Status(503)]), IncidentKind.HANG: Fault([Hang()])}


async def bring_about(fleet: MemoryFleet, incident: Incident, began: float) -> None:
    """Wait for the incident's time, let it happen, and end it. `began` is when time 0 was."""
    await trio.sleep_until(began + incident.at)
    engine = fleet[incident.engine]
    fault = _ON_LEGS.get(incident.kind)
    if fault is not None:
        fleet.fail_with(fault, iid=incident.engine)
        await trio.sleep(incident.seconds)
        fleet.fail_with(iid=incident.engine)
    elif incident.kind is IncidentKind.SLOW:
        await slow_down(engine, incident.seconds)
    else:
        await take_down(engine, incident)
