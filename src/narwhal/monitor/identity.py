"""Which process answers at an engine's address, and whether it is what the contract says."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from narwhal.fleet import EngineState, contract
from narwhal.monitor.probing import Probed, Result

if TYPE_CHECKING:
    from collections.abc import Mapping

    from narwhal.config import FleetConfig
    from narwhal.engine import EngineClient, Served
    from narwhal.monitor.monitor import Watched
    from narwhal.monitor.probing import Identity, Prober
    from narwhal.telemetry import Telemetry


class Identities:
    """Asks engines who they are, and tells the router what follows.

    An engine's report is compared with `engine_contract` once for each of its processes, and
    again and again while it is not what the contract says. `/v1/models` is asked for that only
    if the contract has something that stands there.
    """

    def __init__(
        self,
        config: FleetConfig,
        clients: Mapping[str, EngineClient],
        watched: Watched,
        prober: Prober,
        telemetry: Telemetry,
    ) -> None:
        self._config = config
        self._clients = clients
        self._watched = watched
        self._prober = prober
        self._telemetry = telemetry
        self._compared: set[str] = set()
        """Engines whose present process was compared with the contract."""

    def unknown(self, iid: str) -> bool:
        """Whether there is a contract that the engine was never compared with."""
        return bool(self._config.engine_contract) and iid not in self._compared

    async def identify(self, iid: str) -> bool:
        """Ask which process it is, and compare it if need be; whether it is fit to be proved."""
        said = await self.who(iid)
        if isinstance(said, Probed):
            return said.result is not Result.GONE
        blocked = self._watched.health.standings.state(iid) is EngineState.BLOCKED
        if not (blocked or self.unknown(iid)):
            return True
        differs = await self.differs(iid, said)
        if isinstance(differs, Probed):
            return not blocked
        self._compared.add(iid)
        changes = self._watched.health.contract(iid, differs, trio.current_time())
        self._watched.apply(changes)
        return differs is None

    async def who(self, iid: str) -> Identity | Probed:
        """Ask which process it is, and take up that it is another one; what came instead."""
        said = await self._prober.identity(self._clients[iid])
        if isinstance(said, Probed):
            return said
        now = trio.current_time()
        restarted, changes = self._watched.health.seen(iid, said.incarnation, now)
        if restarted:
            self._compared.discard(iid)
            self._telemetry.engine_restarted(iid)
            self._watched.restarted(iid)
        self._watched.apply(changes)
        return said

    async def differs(self, iid: str, said: Identity) -> str | Probed | None:
        """How it differs from the contract, None if it does not; what came instead of a report."""
        wanted = self._config.engine_contract
        if not wanted:
            return None
        reported: dict[str, object] = {**said.process.cache, "version": said.incarnation.version}
        if said.process.kv_capacity_tokens is not None:
            reported["kv_capacity_tokens"] = said.process.kv_capacity_tokens
        if contract.needs(wanted, contract.FROM_MODELS):
            served = await self._prober.served(self._clients[iid])
            if isinstance(served, Probed):
                return served
            reported |= self._of_models(served)
        return contract.mismatch(wanted, reported)

    def _of_models(self, served: list[Served]) -> dict[str, object]:
        """The model that the contract wants if it is served, or else what is served instead."""
        wanted = (self._config.engine_contract or {}).get("model")
        for name in (wanted, self._config.model):
            for each in served:
                if name in (each.id, each.root):
                    told = (
                        {} if each.max_model_len is None else {"max_model_len": each.max_model_len}
                    )
                    return {"model": name, **told}
        return {"model": ", ".join(each.id for each in served)}
