"""The checks of a readmission: what an engine has to show before it serves again."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

import attrs
import trio

from narwhal.monitor.probing import RESULTS, Probed, Result
from narwhal.telemetry import Probe

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from narwhal.config import FleetConfig
    from narwhal.engine import EngineClient
    from narwhal.fleet import Incarnation
    from narwhal.monitor.identity import Identities
    from narwhal.monitor.monitor import Watched
    from narwhal.monitor.probing import Identity, Prober
    from narwhal.telemetry import Telemetry

# A partner may be at fault itself, which says nothing of the engine: so another one is asked.
_MOST_PARTNERS = 3

_AS_IS = 'readmit it as it is (--same-process; over HTTP, "same_process": true)'

DRAINED_ANEW = "it was taken out of service again while it was checked"


class Check(StrEnum):
    """What is checked, in this order; the first comes again at the end."""

    HEALTH = "health"
    """`/health` is 200."""
    MODEL = "model"
    """It serves the fleet's model."""
    IDENTITY = "identity"
    """It is another process than the one that was drained."""
    CONTRACT = "contract"
    """It reports what `engine_contract` says."""
    GENERATION = "generation"
    """It generates by itself."""
    TRANSFER = "transfer"
    """It generates with an engine in service, KV cache handed over between the two."""


@attrs.frozen(kw_only=True)
class Verdict:
    """What came of a readmission."""

    passed: tuple[Check, ...]
    """In order; `health` stands there twice if all were."""
    skipped: tuple[Check, ...] = ()
    """`transfer`, if no engine was in service to hand KV cache over with."""
    failed: Check | None = None
    reason: str = ""
    """Why it failed, for people."""


class Readmission:
    """One run of the checks on one engine; it changes no state of the engine.

    Each question has the bound of its kind: `engine.health_timeout_s`, or
    `engine.first_token_timeout_s` for each leg. A cancel ends it at once, with connections closed
    and KV cache released.
    """

    def __init__(
        self,
        iid: str,
        config: FleetConfig,
        clients: Mapping[str, EngineClient],
        watched: Watched,
        *,
        prober: Prober,
        identities: Identities,
        telemetry: Telemetry,
        drained: Incarnation | None,
        same_process: bool,
    ) -> None:
        """`drained` is the process that was drained, None if it is not known."""
        self.iid = iid
        self.check = Check.HEALTH
        """The check that is under way."""
        self.scope = trio.CancelScope()
        """Cancelled if the engine is drained anew meanwhile."""
        self._config = config
        self._clients = clients
        self._client = clients[iid]
        self._watched = watched
        self._prober = prober
        self._identities = identities
        self._telemetry = telemetry
        self._drained = drained
        self._same_process = same_process
        self._said: Identity
        self._skipped: list[Check] = []

    async def run(self) -> Verdict:
        """Run the checks up to the first that fails."""
        passed: list[Check] = []
        steps: tuple[tuple[Check, Callable[[], Awaitable[str | None]]], ...] = (
            (Check.HEALTH, self._health),
            (Check.MODEL, self._model),
            (Check.IDENTITY, self._identity),
            (Check.CONTRACT, self._contract),
            (Check.GENERATION, self._generation),
            (Check.TRANSFER, self._transfer),
            (Check.HEALTH, self._health),
        )
        with self.scope:
            for self.check, step in steps:
                if (reason := await step()) is not None:
                    return self._verdict(passed, failed=self.check, reason=reason)
                if self.check not in self._skipped:
                    passed.append(self.check)
            return self._verdict(passed)
        return self._verdict(passed, failed=self.check, reason=DRAINED_ANEW)

    def _verdict(
        self, passed: list[Check], *, failed: Check | None = None, reason: str = ""
    ) -> Verdict:
        skipped = tuple(self._skipped)
        return Verdict(passed=tuple(passed), skipped=skipped, failed=failed, reason=reason)

    # Each returns why it failed

    async def _health(self) -> str | None:
        probed = await self._prober.health(self._client)
        self._telemetry.probed(Probe.HEALTH, RESULTS[probed.result])
        return _unless_well(probed)

    async def _model(self) -> str | None:
        served = await self._prober.served(self._client)
        if isinstance(served, Probed):
            return served.why
        names = [each.id for each in served]
        if self._config.model in names:
            return None
        shown = ", ".join(f'"{name}"' for name in names) or "none"
        return (
            f'it serves {shown}, and the fleet serves "{self._config.model}": start it with that '
            "model, under that name"
        )

    async def _identity(self) -> str | None:
        said = await self._identities.who(self.iid)
        if isinstance(said, Probed):
            return said.why
        self._said = said
        if self._same_process or self._drained is None:
            return None
        before, now = self._drained.process_start_s, said.incarnation.process_start_s
        if before is None or now is None:
            return (
                "it does not say when its process started (process_start_time_seconds in "
                "/metrics), so whether it was restarted is not known: if that does not matter, "
                f"{_AS_IS}"
            )
        if now > before:
            return None
        if now == before:
            found = f"it is still the process that was drained, started at {now:.3f} (Unix time)"
        else:
            found = (
                f"its process started at {now:.3f} (Unix time), before the one that was drained "
                f"({before:.3f})"
            )
        return f"{found}: restart it, or {_AS_IS}"

    async def _contract(self) -> str | None:
        differs = await self._identities.differs(self.iid, self._said)
        return differs.why if isinstance(differs, Probed) else differs

    async def _generation(self) -> str | None:
        return _unless_well(await self._prove(None))

    async def _transfer(self) -> str | None:
        partners = self._partners()[:_MOST_PARTNERS]
        if not partners:
            self._skipped.append(Check.TRANSFER)
            return None
        reasons = []
        for partner in partners:
            probed = await self._prove(self._clients[partner])
            if probed.result is Result.WELL:
                return None
            reasons.append(f"with {partner}: {probed.why}")
            if probed.result is not Result.UNSURE:
                break
        return "; ".join(reasons)

    async def _prove(self, partner: EngineClient | None) -> Probed:
        role = self._watched.role(self.iid)
        probed = await self._prober.generation(self._client, partner, role)
        self._telemetry.probed(Probe.VERIFICATION, RESULTS[probed.result])
        return probed

    def _partners(self) -> list[str]:
        """Engines in service, those of the other role first: it works with them."""
        health, role = self._watched.health, self._watched.role
        serving = [each for each in self._clients if each != self.iid and health.takes_work(each)]
        return sorted(serving, key=lambda each: role(each) is role(self.iid))


def _unless_well(probed: Probed) -> str | None:
    return None if probed.result is Result.WELL else probed.why
