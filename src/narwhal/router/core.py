"""What the requests of one router share: engines, seats, credits, trust, telemetry."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import trio

from narwhal.config.serving import Admission
from narwhal.fleet import UNPLACED, Ledger, Orphans
from narwhal.model import FailureClass, Phase, Role
from narwhal.placement import Candidate, Choice, Why, choose, eligible
from narwhal.retry import Credits, RetryPolicy
from narwhal.roles import RoleController
from narwhal.router.drain import ServiceTime
from narwhal.router.errands import Errands
from narwhal.router.gate import Gate
from narwhal.router.lives import Lives
from narwhal.router.prices import Price, Prices
from narwhal.router.queue import AdmissionQueue
from narwhal.router.releases import Releases
from narwhal.router.roster import Roster
from narwhal.router.seats import SeatDesk
from narwhal.router.snapshot import snapshot_of
from narwhal.telemetry import Change

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
    from random import Random

    from narwhal.config import FleetConfig
    from narwhal.engine import EngineClient
    from narwhal.fleet import Transition
    from narwhal.profiles import Profile
    from narwhal.roles import Snapshot
    from narwhal.router.life import RequestLife
    from narwhal.router.seats import Place
    from narwhal.router.tracing import Tracing
    from narwhal.telemetry import Telemetry


class Core:
    """Shared state of one router. One task at a time touches it: there is no await in here."""

    def __init__(
        self,
        config: FleetConfig,
        engines: Mapping[str, EngineClient],
        telemetry: Telemetry,
        *,
        rng: Random,
        wall_clock: Callable[[], float],
        profiles: Mapping[str, Profile] | None = None,
    ) -> None:
        serving = config.serving
        self.config = config
        self.engines = engines
        self.telemetry = telemetry
        self.rng = rng
        self.now: Callable[[], float] = trio.lowlevel.current_clock().current_time
        """Trio's time, by the shortest way: it is asked for thirty times a request."""
        self.wall_clock = wall_clock
        self.tracing: Tracing | None = None
        """Set where requests are traced."""
        self.wall_ahead_s = wall_clock() - self.now()
        """What dates moments of Trio's clock; taken once, so that each has one date."""
        self.ledger = Ledger(engines)
        self.orphans = Orphans()
        self.prices = Prices(config, self.ledger, self.orphans, profiles)
        self.predictive = serving.admission is Admission.PREDICTIVE
        self.gate = Gate(self)
        self.roster = Roster(
            {iid: engine.role for iid, engine in engines.items()},
            config.recovery,
            told=lambda change: telemetry.engine_changed(change, ts=wall_clock()),
        )
        self.health = self.roster.health
        self.prices.penalty_s = self.health.drift.penalty_s
        self.queue = AdmissionQueue(serving.max_connections, serving.queue_capacity)
        per_engine = {
            Phase.PREFILL: serving.prefill_concurrency,
            Phase.DECODE: serving.decode_concurrency,
        }
        self.desks = {
            phase: SeatDesk(phase, limit, self.ledger, waited=telemetry.waited_for_seat)
            for phase, limit in per_engine.items()
        }
        self.handing_over = dict.fromkeys(engines, 0)
        """KV caches on each engine that a request will have pulled by its decode."""
        self.decodes_to_come = 0
        """Attempts whose decode leg, on another engine than the prefill, has no place yet."""
        self.counting = dict.fromkeys(engines, 0)
        self.credits = Credits(serving.retry_budget, serving.retry_replenish)
        self.retry = RetryPolicy(
            max_attempts=serving.max_attempts,
            base_s=serving.retry_base_s,
            cap_s=serving.retry_cap_s,
        )
        self.errands = Errands()
        self.releases = Releases(self)
        self.lives = Lives()
        self.retained = 0
        self.retained_limit = serving.max_connections + serving.queue_capacity
        self.draining = False
        self._degraded: str | None = None
        self.service = ServiceTime()
        self.controller = RoleController(config, self.prices.mean)

    # Ingress

    def retain_nowait(self) -> bool:
        """Take one of the places of requests whose bodies, waits or answers are held."""
        if self.retained >= self.retained_limit:
            return False
        self.retained += 1
        return True

    def forget(self) -> None:
        """Give that place back."""
        self.retained -= 1

    def new_id(self) -> str:
        """An id nobody has seen before, from the router's own randomness."""
        return f"req-{self.rng.getrandbits(128):032x}"

    # Placement

    def pick(
        self,
        phase: Phase,
        exclude: Collection[str] = (),
        *,
        life: RequestLife | None = None,
        whole: bool = False,
    ) -> Choice | None:
        """The engine for a leg of `phase` now, or None if all that would do are full.

        A leg of no request takes no place, so a full engine will do, and no price. A `whole` leg
        has a place of `phase` and runs both. Raises `NoEngine` if none is in service.
        """
        now = self.now()
        takers = self.roster.required(phase, begun=life is not None and not whole)
        prices = self._prices(phase, takers, life, now, whole=whole)
        desk = self.desks[phase]
        limited = life is not None and desk.per_engine
        doubts = self.roster.trust.doubts(phase, now)
        quarantines = self.health.standings.quarantines(now)
        candidates = [
            Candidate(
                iid,
                price.cost,
                iid not in quarantines,
                iid in doubts,
                desk.free(iid) if limited else math.inf,
                price.meets,
            )
            for iid, price in zip(takers, prices, strict=True)
        ]
        choice = choose(eligible(candidates, exclude=exclude))
        if choice is not None and life is not None:
            self.roster.trust.placed(choice.iid, phase, now)
            interval_s = prices[takers.index(choice.iid)].interval_s
            if interval_s is not None:
                life.record.projected_tpot_s = interval_s
            if choice.why is Why.UNSERVED:
                self.telemetry.unserved(phase)
        return choice

    def _prices(
        self,
        phase: Phase,
        iids: Sequence[str],
        life: RequestLife | None,
        now: float,
        *,
        whole: bool,
    ) -> list[Price]:
        """What a leg costs on each engine. Without profiles, an engine costs what legs it has."""
        prices = self.prices
        if life is None or not prices.known:
            return [Price(self.ledger.residents(iid, phase)) for iid in iids]
        if whole and self.predictive:
            return prices.wholes(iids, life, now)
        if phase is Phase.DECODE:
            return prices.decodes(iids, life, now)
        return prices.prefills(iids, life, now, decoders=self.roster.takers(Phase.DECODE))

    def take_nowait(
        self, phase: Phase, life: RequestLife, exclude: Collection[str]
    ) -> Place | None:
        """A place for a leg of `phase` on the engine that suits best; None if it has to wait."""
        desk = self.desks[phase]
        if desk.waiting:
            return None
        choice = self.pick(phase, exclude, life=life)
        if choice is None:
            return None
        return desk.place(choice, self.prices.claim(choice.iid, phase, life))

    async def take(
        self,
        phase: Phase,
        life: RequestLife,
        exclude: Collection[str],
        *,
        whole: bool = False,
    ) -> Place:
        """Wait for a place for a leg of `phase`, on whatever engine suits best when it is free."""
        prefills = phase is Phase.PREFILL
        return await self.desks[phase].take(
            lambda: self.pick(phase, exclude, life=life, whole=whole),
            lambda iid: self.prices.claim(iid, phase, life),
            key=frozenset(exclude),
            again_at=lambda: self.roster.changes_at(phase),
            seconds=self.prices.mean_prefill_s(life.prompt_tokens) if prefills else 0.0,
        )

    async def take_on(self, iid: str, phase: Phase, life: RequestLife) -> Place:
        """Wait for a place on this very engine."""
        desk = self.desks[phase]

        def pick() -> Choice | None:
            return Choice(iid, Why.ONLY) if desk.free(iid) > 0 else None

        return await desk.take(pick, lambda iid: self.prices.claim(iid, phase, life), key=iid)

    def expect_decode(self, life: RequestLife) -> None:
        """Claim what the decode of a request that is being prefilled will take, of no engine.

        Nothing, where nothing is priced by it.
        """
        if self.prices.known:
            claim = self.prices.claim(UNPLACED, Phase.DECODE, life)
            life.expected_decode = self.ledger.reserve(UNPLACED, Phase.DECODE, claim, self.now())

    def decode_placed(self, life: RequestLife) -> None:
        """Give that claim back: the decode has an engine, or will never have one."""
        if life.expected_decode is not None:
            life.expected_decode.release(self.now())
            life.expected_decode = None

    def pick_counter(self) -> EngineClient:
        """The engine to count tokens on: the one counting least, doubtful ones last."""
        now, roster, counting = self.now(), self.roster, self.counting
        doubts, working = roster.trust.doubts(Phase.TOKENIZE, now), roster.working
        iid = min([(iid not in working, iid in doubts, counting[iid], iid) for iid in counting])[-1]
        roster.trust.placed(iid, Phase.TOKENIZE, now)
        return self.engines[iid]

    def blame(
        self, iid: str, phase: Phase, failure: FailureClass, retry_after: float | None = None
    ) -> None:
        """A leg of `phase` failed on `iid`; count it, and trust the engine less.

        What went wrong in the router itself is no news of the engine. Legs that wait may choose
        differently now: once all are doubtful, one that is free will do.
        """
        if failure is FailureClass.LOCAL:
            return
        self.telemetry.engine_failed(iid, failure)
        self.roster.failed(iid, phase, failure, retry_after)
        self.choose_again()

    # What the monitor asks and tells

    def apply(self, changes: Iterable[Transition]) -> None:
        """Take up changes of engines' standings."""
        if self.roster.apply(changes):
            self.choose_again()

    def role(self, iid: str) -> Role:
        """The engine's role now."""
        return self.roster.roles[iid]

    @property
    def degraded(self) -> str | None:
        """Why no new requests are taken, if the monitor says so."""
        return self._degraded

    @degraded.setter
    def degraded(self, why: str | None) -> None:
        """Its beginning and its end are in the journal."""
        begins, ends = why and not self._degraded, self._degraded and not why
        self._degraded = why
        if begins or ends:
            change = Change.DEGRADED if begins else Change.RECOVERED
            self.telemetry.router_changed(change, ts=self.wall_clock(), reason=why or "")

    def snapshot(self) -> Snapshot:
        """The fleet as role control looks at it, which hears how fast tokens were of late."""
        for iid in self.ledger.iids:
            self.controller.corrections.observe(iid, *self.prices.paces.fresh_gaps(iid))
        return snapshot_of(self)

    def move(self, iid: str, role: Role) -> None:
        """Give an engine another role: for new placements at once, residents stay."""
        self.roster.move(iid, role)
        self.choose_again()

    def residents(self, iid: str) -> int:
        """Work on the engine, and what can go nowhere else: it is empty when there is none.

        That is its legs, and handoffs that it holds for decodes to come. The last decode engines
        have those decodes to come as well; and with no engine in service at all, what was
        admitted may still need any of them.
        """
        legs = sum(self.ledger.residents(iid, phase) for phase in self.ledger.PHASES)
        own = legs + self.handing_over[iid]
        if not self.roster.splits and self.role(iid) is Role.DECODE:
            own += self.decodes_to_come
        return own if self.roster.takers(Phase.PREFILL) else max(own, self.queue.admitted)

    def observed(self, iid: str) -> tuple[float, float]:
        """What the engine's work took since the last call, and what its profile says."""
        interval = self.config.controller.monitor_interval_s
        return self.prices.paces.fresh(iid, self.role(iid), interval)

    def restarted(self, iid: str) -> None:
        """Another process answers there: what the old one was and held is gone."""
        self.proved(iid)
        self.orphans.forget(iid)
        self.prices.paces.forget(iid)
        self.controller.restarted(iid)

    def proved(self, iid: str) -> None:
        """The engine was seen to generate: nothing is held against it any more."""
        self.roster.trust.forget(iid)

    def choose_again(self) -> None:
        """Legs that wait may choose differently now."""
        for desk in self.desks.values():
            desk.serve_waiters()

    def drain_seconds(self) -> int:
        """When a newcomer can expect a seat: whole seconds, at least 1."""
        return self.service.drain_s(waiting=self.queue.waiting, seats=self.queue.seats)

    # Shutdown

    def stop_admitting(self) -> None:
        """Take no new work, turn away what waits in the queue; what was admitted goes on."""
        if not self.draining:
            self.telemetry.router_changed(Change.DRAINING, ts=self.wall_clock())
        self.draining = True
        self.queue.close()
