"""What role control has to say of itself, as a value."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from narwhal.router.snapshot import snapshot_of
from narwhal.telemetry import RolesView

if TYPE_CHECKING:
    from narwhal.router.core import Core


def roles_view(core: Core) -> RolesView:
    """Role control now. It changes nothing."""
    controller, now = core.controller, trio.current_time()
    short, long = controller.estimates(now)
    return RolesView(
        now=now,
        advisory=core.config.controller.advisory,
        preset=core.config.controller.preset,
        decision=controller.last_evaluated,
        proposal=controller.last_proposed,
        evidence=controller.evidence.state(now),
        short=short,
        long=long,
        flips=tuple(controller.flips),
        corrections={iid: controller.corrections.of(iid) for iid in core.ledger.iids},
        breaches=controller.breaches(snapshot_of(core).split),
    )
