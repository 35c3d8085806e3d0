"""A preflight from its first gate to its last."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import attrs
import trio

from narwhal.config import effective
from narwhal.model import Role
from narwhal.preflight import engine_gates, fleet_gates, handoff_gates, pairs, work_gates
from narwhal.preflight.calibrating import calibrate
from narwhal.preflight.gates import FLEET, About, Finding, Gate, Grade, pair_name
from narwhal.preflight.handoff_gates import Handover
from narwhal.preflight.ledger import Ledger
from narwhal.preflight.legs import Legs
from narwhal.preflight.release_gate import Release
from narwhal.preflight.view import View
from narwhal.profiles.store import ProfileStore

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
    from random import Random

    from narwhal.config import FleetConfig
    from narwhal.engine import EngineClient
    from narwhal.preflight.calibrating import Calibration
    from narwhal.profiles import Profile

LEASE_WAIT_S = 6.0
"""How long a forgotten handoff is watched unless somebody says otherwise: all but the lease of a
fleet takes a few seconds."""


@attrs.frozen(kw_only=True)
class Options:
    """What somebody asked for."""

    wait_s: float = 0.0
    """How long to wait for engines that do not answer yet."""
    repeats: int = 1
    """Handoffs of each engine, and of each pair."""
    kv: bool = True
    """Whether handoffs are made at all."""
    ring: bool = False
    """Whether a few pairs of engines stand for all."""
    lease_wait_s: float = LEASE_WAIT_S
    calibrate: bool = False
    """Whether to measure handoffs over the engines' context."""


@attrs.frozen(kw_only=True)
class Report:
    """What a preflight came to."""

    findings: tuple[Finding, ...]
    limits: tuple[effective.EffectiveLimit, ...]
    calibration: Calibration | None
    seconds: float

    @property
    def ok(self) -> bool:
        """Whether the fleet can take traffic: no gate failed."""
        return not any(finding.grade is Grade.FAIL for finding in self.findings)


@attrs.define(kw_only=True)
class Preflight:
    """Looks at a fleet, gate by gate, and changes nothing about it.

    Every question to an engine has a time limit of the fleet file, so that a preflight ends
    whatever engines do. A cancel closes the connections and releases KV cache that was handed
    over; what was found until then is in `report()`.
    """

    config: FleetConfig
    clients: Mapping[str, EngineClient]
    store: ProfileStore | tuple[str, ...] | None
    """The profile store, or what is wrong with it; None if there is no file."""
    rng: Random
    wall_clock: Callable[[], float]
    options: Options = attrs.field(factory=Options)
    on_finding: Callable[[Finding], None] = lambda _finding: None
    on_gate: Callable[[Gate], None] = lambda _gate: None
    ledger: Ledger = attrs.field(init=False)
    views: dict[str, View] = attrs.field(init=False)
    legs: Legs = attrs.field(init=False)
    calibration: Calibration | None = attrs.field(init=False, default=None)
    _began: float = attrs.field(init=False, factory=trio.current_time)

    def __attrs_post_init__(self) -> None:
        """Begin with nothing known."""
        self.ledger = Ledger(self.on_finding)
        self.legs = Legs(self.config, self.rng)
        self.views = {
            spec.iid: View(spec=spec, client=self.clients[spec.iid]) for spec in self.config.engines
        }

    def report(self) -> Report:
        """What was found so far."""
        return Report(
            findings=self.ledger.findings,
            limits=effective.limits(self.config),
            calibration=self.calibration,
            seconds=trio.current_time() - self._began,
        )

    async def run(self) -> None:
        """Go through all gates."""
        config = self.config
        self._fleet(Gate.CONFIG, fleet_gates.config_findings(config))
        await self._engines(Gate.REACH, self._reach)
        await self._engines(Gate.AUTH, partial(engine_gates.auth, config))
        await self._engines(Gate.IDENTITY, partial(engine_gates.identity, config))
        self.ledger.add(engine_gates.versions(self.views.values()))
        await self._contract()
        await self._engines(Gate.MODEL, partial(engine_gates.serves_model, config))
        self.ledger.add(engine_gates.contexts(self.views.values()))
        # After `model`, which tells the context that a profile is to cover.
        self._fleet(Gate.PROFILE, fleet_gates.profile_findings(config, self.store, self.views))
        await self._engines(Gate.PACE, self._pace)
        await self._engines(Gate.TOKENIZE, partial(work_gates.tokenize, config))
        self.ledger.add(work_gates.tokenizers([*self.views.values()]))
        await self._handoffs()
        self._fleet(Gate.SLO, fleet_gates.slo_findings(config, self._profiles(), self.views))
        if self.options.calibrate:
            await self._calibrate()

    async def _contract(self) -> None:
        if self.config.engine_contract:
            await self._engines(Gate.CONTRACT, partial(engine_gates.meets_contract, self.config))
        else:
            why = "the fleet file has no engine_contract"
            self._fleet(Gate.CONTRACT, [About(Gate.CONTRACT, FLEET).skipped(why)])

    def _profiles(self) -> dict[str, Profile]:
        return self.store.profiles if isinstance(self.store, ProfileStore) else {}

    # One gate

    def _fleet(self, gate: Gate, findings: Iterable[Finding]) -> None:
        self.on_gate(gate)
        self.ledger.add(findings)

    async def _engines(
        self,
        gate: Gate,
        look: Callable[[View], Awaitable[Finding | Iterable[Finding]]],
        among: Iterable[str] | None = None,
    ) -> None:
        """Look at all engines at once, but for those that an earlier gate held up."""
        self.on_gate(gate)

        async def one(view: View) -> None:
            found = await look(view)
            self.ledger.add([found] if isinstance(found, Finding) else found)

        async with trio.open_nursery() as nursery:
            for iid in self.views if among is None else among:
                view = self.views[iid]
                if (obstacle := self.ledger.obstacle(gate, iid)) is not None:
                    self.ledger.add([view.at(gate).skipped(_held_up(iid, obstacle))])
                else:
                    nursery.start_soon(one, view)

    async def _reach(self, view: View) -> Finding:
        return await engine_gates.reach(self.config, view, wait_s=self.options.wait_s)

    async def _pace(self, view: View) -> Iterable[Finding]:
        profile = self._profiles().get(view.iid)
        return await work_gates.pace(
            self.config, view, self.legs, profile, wall_clock=self.wall_clock
        )

    # Handoffs

    async def _handoffs(self) -> None:
        if (why := self._no_handoffs()) is not None:
            for gate in (Gate.PRODUCE, Gate.CONSUME, Gate.RELEASE):
                self._fleet(gate, [About(gate, FLEET).skipped(why)])
            return
        permitted = pairs.permitted_pairs(self.config)
        producers = pairs.engines_for(self.config, Role.PREFILL)
        partners = {iid: self._partner(iid, permitted) for iid in producers}
        alone = [iid for iid, partner in partners.items() if partner is None]
        self._fleet(
            Gate.PRODUCE,
            (
                self.views[iid].at(Gate.PRODUCE).skipped("no engine to decode for it got this far")
                for iid in alone
            ),
        )
        able = [iid for iid in producers if iid not in alone]
        await self._engines(Gate.PRODUCE, partial(self._produce, partners), able)
        self.ledger.add(handoff_gates.shared_channels(self.views[iid] for iid in able))
        await self._consume(pairs.ring_pairs(permitted) if self.options.ring else permitted)
        await self._engines(Gate.RELEASE, partial(self._release, partners), able)

    def _no_handoffs(self) -> str | None:
        """Why there is nothing to hand over, if so."""
        if not self.options.kv:
            return "--no-kv: no handoff is made"
        if not pairs.permitted_pairs(self.config):
            return "no engine ever hands over to another: each request is one plain leg"
        return None

    def _partner(self, producer: str, permitted: Sequence[pairs.Pair]) -> EngineClient | None:
        """An engine to decode for the producer, of those that are well."""
        for each, decoder in permitted:
            if each == producer and self.ledger.obstacle(Gate.CONSUME, decoder) is None:
                return self.clients[decoder]
        return None

    async def _produce(self, partners: Mapping[str, EngineClient | None], view: View) -> Finding:
        partner = partners[view.iid]
        assert partner is not None, "chosen so"  # noqa: S101 - invariant
        return await handoff_gates.produce(
            self.config, view, partner, self.legs, self.options.repeats
        )

    async def _consume(self, chosen: Sequence[pairs.Pair]) -> None:
        self.on_gate(Gate.CONSUME)
        fit = []
        for producer, decoder in chosen:
            about = About(Gate.CONSUME, pair_name(producer, decoder))
            if (held_up := self._held_up(producer, decoder)) is not None:
                self.ledger.add([about.skipped(held_up)])
            else:
                fit.append((producer, decoder))
        for each in pairs.rounds(fit):
            async with trio.open_nursery() as nursery:
                for producer, decoder in each:
                    nursery.start_soon(self._consume_one, producer, decoder)

    def _held_up(self, producer: str, decoder: str) -> str | None:
        # What `release` needs is that the engine produces.
        for gate, iid in ((Gate.RELEASE, producer), (Gate.CONSUME, decoder)):
            if (obstacle := self.ledger.obstacle(gate, iid)) is not None:
                return _held_up(iid, obstacle)
        if self.views[producer].side_channel is None:
            return f"{producer} handed nothing over at `{Gate.PRODUCE}`"
        return None

    async def _consume_one(self, producer: str, decoder: str) -> None:
        handover = Handover(self.config, self.views[producer], self.views[decoder], self.legs)
        self.ledger.add([await handover.consume(self.options.repeats)])

    async def _release(
        self, partners: Mapping[str, EngineClient | None], view: View
    ) -> Iterable[Finding]:
        partner = partners[view.iid]
        assert partner is not None, "chosen so"  # noqa: S101 - invariant
        release = Release(self.config, view, partner, self.legs, self.options.lease_wait_s)
        return await release.run()

    # Calibration

    async def _calibrate(self) -> None:
        """Measure handoffs between the pairs that got through `consume`."""
        well = {
            finding.subject
            for finding in self.ledger.findings
            if finding.gate is Gate.CONSUME and finding.grade in (Grade.PASS, Grade.WARN)
        }
        chosen = [
            (self.views[producer], self.views[decoder])
            for producer, decoder in pairs.permitted_pairs(self.config)
            if pair_name(producer, decoder) in well
        ]
        self.calibration = await calibrate(
            self.config, self.legs, chosen, self.rng, repeats=max(self.options.repeats, 3)
        )


def _held_up(iid: str, obstacle: Gate) -> str:
    return f"{iid} did not get through `{obstacle}`"
