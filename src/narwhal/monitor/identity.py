"""Which process answers at an engine's address, and whether it is what the contract says."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from narwhal.fleet import EngineState, contract
from narwhal.monitor.probing import Probed, Result

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from narwhal.config import FleetConfig
    from narwhal.engine import EngineClient, Process, Served
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
        served: list[Served] | None = None
        if contract.needs(wanted, contract.FROM_MODELS):
            asked = await self._prober.served(self._clients[iid])
            if isinstance(asked, Probed):
                return asked
            served = asked
        version = said.incarnation.version
        reported = reported_facts(self._config, version, said.process, served)
        return contract.mismatch(wanted, reported)


def reported_facts(
    config: FleetConfig, version: str, process: Process, served: Sequence[Served] | None
) -> dict[str, object]:
    """What an engine reports of itself under the names of `engine_contract`.

    `served` is what `/v1/models` lists, None if it was not asked for.
    """
    reported: dict[str, object] = {**process.cache, "version": version}
    if process.kv_capacity_tokens is not None:
        reported["kv_capacity_tokens"] = process.kv_capacity_tokens
    return reported if served is None else reported | _of_models(config, served)


def _of_models(config: FleetConfig, served: Sequence[Served]) -> dict[str, object]:
    """The model that the contract wants if it is served, or else what is served instead."""
    wanted = (config.engine_contract or {}).get("model")
    for name in (wanted, config.model):
        for each in served:
            if name in (each.id, each.root):
                told = {} if each.max_model_len is None else {"max_model_len": each.max_model_len}
                return {"model": name, **told}
    return {"model": ", ".join(each.id for each in served)}
