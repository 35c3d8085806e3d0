"""The monitor: passes on a schedule, in stages, that look after every engine of the fleet."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Protocol

import trio

from narwhal.fleet import EngineState, Event
from narwhal.monitor.identity import Identities
from narwhal.monitor.probing import RESULTS, Prober, Result
from narwhal.monitor.role_stage import Movable, RoleStage
from narwhal.monitor.state_keeper import StageFailed
from narwhal.telemetry import Probe

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping
    from random import Random

    from narwhal.config import FleetConfig
    from narwhal.engine import EngineClient
    from narwhal.fleet import Health, Transition
    from narwhal.model import Role
    from narwhal.monitor.probing import Probed
    from narwhal.monitor.state_keeper import StateKeeper
    from narwhal.telemetry import Telemetry

logger = logging.getLogger("narwhal.monitor")

# An engine on probation that had no work for so many windows is tried again.
_SILENT_WINDOWS = 5


class Watched(Movable, Protocol):
    """What a monitor needs of its router. All of it is synchronous."""

    health: Health
    degraded: str | None
    """Why no new requests are to be taken, if none are; the monitor writes it."""

    def apply(self, changes: Iterable[Transition]) -> None:
        """Take up changes of engines' standings."""

    def role(self, iid: str) -> Role:
        """The engine's role now."""

    def residents(self, iid: str) -> int:
        """Legs that are on the engine now."""

    def observed(self, iid: str) -> tuple[float, float]:
        """What the engine's work took since the last call, and what was predicted; any unit."""

    def restarted(self, iid: str) -> None:
        """Another process answers there: what was known of the old one is over."""

    def proved(self, iid: str) -> None:
        """The engine was seen to generate: nothing is held against it any more."""


class Monitor:
    """Runs passes every `controller.monitor_interval_s`, on an absolute schedule.

    A pass is synchronous: its stages decide whom to ask, and start tasks that ask, at most one
    for an engine at a time. So no engine that hangs ever delays a pass. A stage that fails stops
    none of the others; `controller.monitor_failure_limit` such passes in a row stop admission
    until one goes well.
    """

    def __init__(
        self,
        config: FleetConfig,
        clients: Mapping[str, EngineClient],
        watched: Watched,
        *,
        telemetry: Telemetry,
        rng: Random,
        keeper: StateKeeper | None = None,
    ) -> None:
        """`keeper` keeps the state document, with the last stage of each pass."""
        self._config = config
        self._clients = clients
        self._watched = watched
        self._telemetry = telemetry
        self._rng = rng
        self._prober = Prober(config, rng)
        self.identities = Identities(config, clients, watched, self._prober, telemetry)
        self._nursery: trio.Nursery
        self._asking: set[str] = set()
        self._well: set[str] = set()
        """Engines whose `/health` was 200 when they were last asked."""
        self._strangers = set(clients)
        """Engines whose `/health` was never 200. They count as in service until they miss probes,
        so they are asked in every pass: a router that starts before its engines says so at once."""
        self._tried: dict[str, int] = {}
        """The pass in which an engine was last asked to prove itself, and since when it has to."""
        self._silent: dict[str, int] = {}
        """Passes in a row in which an engine was not seen at work."""
        self._failures = 0
        self._failing: set[str] = set()
        """Stages that failed in the last pass: what was logged is not logged again."""
        self._passes = 0
        self._stages: tuple[tuple[str, Callable[[], None]], ...] = (
            ("controller", RoleStage(watched, telemetry).one_pass),
            ("health", self._health),
            ("drains", self._drains),
            ("readmission", self._readmission),
            ("liveness", self._liveness),
        )
        if keeper is not None:
            self._stages += (("state", lambda: keeper.one_pass(self._nursery)),)

    @property
    def prober(self) -> Prober:
        """Who asks the engines."""
        return self._prober

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run passes until cancelled, which also ends what is being asked."""
        interval = self._config.controller.monitor_interval_s
        begun = trio.current_time()
        async with trio.open_nursery() as self._nursery:
            task_status.started()
            while True:
                # A pass that comes late is not made up for: the schedule stays as it is.
                self._passes = max(
                    self._passes + 1, int((trio.current_time() - begun) / interval) + 1
                )
                due = begun + self._passes * interval
                await trio.sleep_until(due)
                began = trio.current_time()
                passed = self.one_pass()
                self._telemetry.monitored(
                    late_s=began - due, took_s=trio.current_time() - began, failed=not passed
                )

    def one_pass(self) -> bool:
        """One pass, now; false if a stage of it failed."""
        failed = []
        for name, stage in self._stages:
            try:
                stage()
            except StageFailed as error:  # who raises it has logged the reason
                self._failing.add(name)
                failed.append(f"{name}: {error}")
            except Exception as error:
                if name not in self._failing:
                    logger.exception("the stage %r of a monitor pass failed", name)
                self._failing.add(name)
                failed.append(f"{name}: {type(error).__name__}")
            else:
                self._failing.discard(name)
        self._failures = self._failures + 1 if failed else 0
        if self._failures >= self._config.controller.monitor_failure_limit:
            text = f"{self._failures} monitor passes in a row failed: {', '.join(failed)}"
            self._watched.degraded = text
        elif not failed:
            self._watched.degraded = None
        return not failed

    # Stages

    def _health(self) -> None:
        """What engines took lately, over what their profiles say; and what has run out."""
        watched, now = self._watched, trio.current_time()
        drift = watched.health.drift
        watched.apply(watched.health.expire(now))
        for iid in self._clients:
            taken, predicted = watched.observed(iid)
            drift.observe(iid, taken, predicted, now)
            self._give_a_chance(iid, worked=predicted > 0)
        for finding in drift.judge(now):
            logger.info("%s: %s: %s", finding.iid, finding.kind, finding.text)
            watched.apply(watched.health.found(finding, now))

    def _give_a_chance(self, iid: str, *, worked: bool) -> None:
        """End a probation in which an engine gets no work: it could never show that it is well."""
        settings, drift = self._config.recovery.health, self._watched.health.drift
        silent = 0 if worked else self._silent.get(iid, 0) + 1
        self._silent[iid] = silent
        passes = _SILENT_WINDOWS * settings.window_s / self._config.controller.monitor_interval_s
        if drift.on_probation(iid) and silent >= passes:
            drift.try_again(iid)
            self._silent[iid] = 0

    def _drains(self) -> None:
        watched = self._watched
        for iid in self._clients:
            draining = watched.health.standings.state(iid) is EngineState.DRAINING
            if draining and not watched.residents(iid):
                watched.apply(watched.health.emptied(iid, trio.current_time()))

    def _readmission(self) -> None:
        """Ask engines that are out of service to prove themselves."""
        health = self._watched.health
        provable = health.to_be_proved()
        # A blocked one is asked what it is: it may be another process by now.
        waiting = [*provable, *health.blocked()]
        for iid in list(self._tried):
            if iid not in waiting:
                del self._tried[iid]
        for iid in waiting:
            job = self._prove if iid in provable else self.identities.identify
            if self._is_due(iid) and self._ask(iid, job):
                self._tried[iid] = self._passes

    def _is_due(self, iid: str) -> bool:
        if not self._watched.health.in_service(self._watched.role(iid)):
            return True  # any engine is better than none
        standings, settings = self._watched.health.standings, self._config.recovery.health
        if standings.cause(iid) is Event.EVICTED:
            # That it generates is known; it stays out for as long as it took to be found slow.
            out = trio.current_time() - standings.since(iid)
            if out < settings.evict_windows * settings.window_s:
                return False
        tried = self._tried.get(iid)
        return tried is None or self._passes - tried >= self._config.recovery.readmit_every

    def _liveness(self) -> None:
        """Ask engines in service whether they are well: each in its turn, or who is in doubt."""
        health, every = self._watched.health, self._config.recovery.liveness_every
        for place, iid in enumerate(self._clients):
            # Each has a pass of its own, so that they are not all asked at once.
            turn = (self._passes + place) % every == 0
            stranger = iid in self._strangers or self.identities.unknown(iid)
            doubtful = iid in health.to_probe or stranger
            if health.takes_work(iid) and (turn or doubtful):
                self._ask(iid, self._look_after)

    # Asking

    def _ask(self, iid: str, job: Callable[[str], Awaitable[object]]) -> bool:
        """Start to ask an engine; false if it is being asked, or too many are."""
        if iid in self._asking or len(self._asking) >= self._config.control_connections:
            return False
        self._asking.add(iid)
        self._nursery.start_soon(self._run, iid, job)
        return True

    async def _run(self, iid: str, job: Callable[[str], Awaitable[object]]) -> None:
        try:
            # Somewhere in the interval, so that routers of one fleet do not ask in one moment.
            await trio.sleep(self._rng.random() * self._config.controller.monitor_interval_s / 2)
            await job(iid)
        except Exception:
            logger.exception("asking %s failed inside the monitor", iid)
        finally:
            self._asking.discard(iid)

    async def _look_after(self, iid: str) -> None:
        """A liveness probe, and whether it is the process that it was."""
        health = self._watched.health
        probed = await self._probe(iid)
        now = trio.current_time()
        if probed.result in (Result.ILL, Result.GONE):
            self._watched.apply(health.missed(iid, now, probed.why))
            return
        health.to_probe.discard(iid)
        if probed.result is Result.WELL:
            health.answered(iid)
            await self.identities.identify(iid)

    async def _prove(self, iid: str) -> None:
        """Have an engine show that it is well and generates, before it gets work again."""
        health, watched = self._watched.health, self._watched
        probed = await self._probe(iid)
        if probed.result in (Result.ILL, Result.GONE):
            watched.apply(health.lost(iid, trio.current_time(), probed.why))
            return
        if probed.result is Result.UNSURE or not await self.identities.identify(iid):
            return
        partner = self._partner(iid)
        client = None if partner is None else self._clients[partner]
        probed = await self._prober.generation(self._clients[iid], client, watched.role(iid))
        self._telemetry.probed(Probe.VERIFICATION, RESULTS[probed.result])
        now = trio.current_time()
        match probed.result:
            case Result.WELL:
                if changes := health.verified(iid, now, probed.why):
                    watched.proved(iid)
                    watched.apply(changes)
            case Result.ILL:
                watched.apply(health.disproved(iid, now, probed.why))
            case Result.GONE:
                watched.apply(health.lost(iid, now, probed.why))
            case Result.UNSURE:
                logger.info("%s is not proved yet: %s", iid, probed.why)

    async def _probe(self, iid: str) -> Probed:
        probed = await self._prober.health(self._clients[iid])
        self._telemetry.probed(Probe.HEALTH, RESULTS[probed.result])
        if probed.result is Result.WELL:
            self._well.add(iid)
            self._strangers.discard(iid)
        else:
            self._well.discard(iid)
        return probed

    def _partner(self, iid: str) -> str | None:
        """A sound engine for the other leg of a proof: one in service, or at least one that is up.

        The other role's come first.
        """
        health, role = self._watched.health, self._watched.role(iid)
        others = sorted(
            (other for other in self._clients if other != iid),
            key=lambda other: self._watched.role(other) is role,
        )
        serving = [other for other in others if health.takes_work(other)]
        up = [other for other in others if other in self._well and other in health.to_be_proved()]
        return next(iter([*serving, *up]), None)
