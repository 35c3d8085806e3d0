"""`RoleController`: one pass after the other, from snapshots to decisions."""

from __future__ import annotations

from collections import deque
from math import ceil, inf, sqrt
from typing import TYPE_CHECKING

import attrs

from narwhal.config.control import SourceGuard
from narwhal.model import Role
from narwhal.roles.candidates import candidate
from narwhal.roles.confirmations import Confirmations
from narwhal.roles.correction import Corrections
from narwhal.roles.decision import Decision, Flip, Gate, Rule, Verdict
from narwhal.roles.demand import DemandHistory, Estimate
from narwhal.roles.evidence import Evidence, Risk, rising
from narwhal.roles.loads import Targets, decode_load, demand_of, prefill_load, project

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from narwhal.config import FleetConfig
    from narwhal.profiles import Profile
    from narwhal.roles.loads import Demand, Projection
    from narwhal.roles.snapshot import Snapshot, Split

# Passes are a little early or late; a tenth of a millisecond is no reason to wait for another.
_EARLY_S = 1e-4


class RoleController:
    """Decides which engine changes its role, one in a pass at the most.

    Told of offers and risks as they come, and asked with a snapshot in each monitor pass. Pure:
    the time is an argument, the same calls give the same decisions, and the order of engines
    makes no difference. A decision of `Verdict.MOVED` counts as made.
    """

    def __init__(self, config: FleetConfig, profile: Profile | None) -> None:
        """`profile` is the mean over the configured engines; without one only floors are kept."""
        self._controller = config.controller
        self._thresholds = config.controller.thresholds
        self._settings = config.controller.reactive
        self._profile = profile
        self.targets = Targets(
            ttft_s=config.slo.ttft_s,
            tpot_s=config.slo.tpot_s,
            utilization=self._settings.utilization,
            resident_signal=self._settings.resident_signal,
        )
        self.demand = DemandHistory(self._settings.window_s, profile)
        self.evidence = Evidence(self._settings)
        self.corrections = Corrections((e.iid for e in config.engines), self._settings)
        self.flips: deque[Flip] = deque(maxlen=config.controller.flip_history)
        self.last: Decision | None = None
        """What the last pass decided."""
        self.last_evaluated: Decision | None = None
        """The last that was more than `Gate.NOT_DUE`."""
        self.last_proposed: Decision | None = None
        """The last that proposed another split."""
        self._confirmations = Confirmations()
        self._moved_at: dict[str, float] = {}
        self._toward_decode_at = -inf
        self._evaluated_at = -inf
        self._breached = False
        self._extra_used = False

    # What it is told

    def offered(self, prompt_tokens: int, output_tokens: int, now: float) -> None:
        """A request of known size came, whatever becomes of it."""
        self.demand.offered(prompt_tokens, output_tokens, now)
        self.evidence.arrived(now)

    def unsized(self, now: float) -> None:
        """A request was turned away before its size was known."""
        self.demand.unsized(now)
        self.evidence.arrived(now)

    def breached(self) -> None:
        """The prefill backlog is projected to break the TTFT target of a request."""
        self._breached = True

    def first_token_late(self, now: float) -> None:
        """A first token did not come in time."""
        self.evidence.reset(Risk.FIRST_TOKEN, now)

    # A pass

    def decide(self, snapshot: Snapshot, now: float) -> Decision:
        """One pass."""
        self.demand.begin(now)
        decision = self._floors(snapshot, now) or self._adjacent(snapshot, now)
        if (flip := decision.made) is not None:
            self._moved(flip)
        self.last = decision
        if decision.gate is not Gate.NOT_DUE:
            self.last_evaluated = decision
        if decision.proposed is not None:
            self.last_proposed = decision
        return decision

    def _moved(self, flip: Flip) -> None:
        self._moved_at[flip.iid] = flip.at
        if flip.to is Role.DECODE:
            self._toward_decode_at = flip.at
            self.evidence.reset(Risk.TOWARD_DECODE, flip.at)
        self.flips.append(flip)

    def _carried_out(self, decision: Decision, iid: str) -> Decision:
        """The move is made, or advised; what was confirmed for it is used up."""
        self._confirmations.clear()
        verdict = Verdict.ADVISED if self._controller.advisory else Verdict.MOVED
        return attrs.evolve(decision, verdict=verdict, iid=iid, gate=Gate.NONE)

    # Floors (section 7.2)

    def _floors(self, snapshot: Snapshot, now: float) -> Decision | None:
        """Restore a floor with an engine of the other pool, if that can spare one."""
        split, settings = snapshot.split, self._controller
        if split.decode < settings.min_decode and split.prefill > settings.min_prefill:
            return self._restore(snapshot, Role.DECODE, Rule.DECODE_FLOOR, now)
        if split.prefill < settings.min_prefill and split.decode > settings.min_decode:
            return self._restore(snapshot, Role.PREFILL, Rule.PREFILL_FLOOR, now)
        return None

    def _restore(self, snapshot: Snapshot, to: Role, rule: Rule, now: float) -> Decision:
        source = Role.PREFILL if to is Role.DECODE else Role.DECODE
        dwell_s = self._thresholds.dwell_s if to is Role.DECODE else 0.0
        found = candidate(snapshot.pool(source), self._moved_at, now, dwell_s=dwell_s)
        decision = Decision(
            at=now, rule=rule, to=to, split=snapshot.split, proposed=snapshot.split.toward(to)
        )
        if isinstance(found, Gate):
            return self._cleared(decision, found)
        return self._carried_out(decision, found.iid)

    # Adjacent splits (sections 7.3, 7.5, 7.6)

    def _adjacent(self, snapshot: Snapshot, now: float) -> Decision:
        decision = Decision(at=now, split=snapshot.split)
        due = now - self._evaluated_at >= self._settings.step_s - _EARLY_S
        if not due and (self._extra_used or not self._breach(snapshot)):
            return attrs.evolve(decision, gate=Gate.NOT_DUE)
        self._extra_used = not due
        self._breached = False
        if due:
            self._evaluated_at = now
        if self._profile is None:
            return self._cleared(decision, Gate.NO_PROFILES)
        directions = (Role.DECODE, Role.PREFILL) if due else (Role.PREFILL,)
        return self._evaluate(decision, snapshot, directions, self._profile)

    def _breach(self, snapshot: Snapshot) -> bool:
        return self._breached or prefill_load(snapshot, self.targets) > 1.0

    def _evaluate(
        self,
        decision: Decision,
        snapshot: Snapshot,
        directions: Sequence[Role],
        profile: Profile,
    ) -> Decision:
        now, settings = decision.at, self._settings
        short, long = self.estimates(now)
        # Decode gives an engine away only if the larger of the two estimates allows it (7.6).
        larger = short if short.tokens > long.tokens else long
        demands = {
            Role.DECODE: demand_of(snapshot, long, long, self.corrections),
            Role.PREFILL: demand_of(snapshot, long, larger, self.corrections),
        }
        demand = demands[Role.DECODE]
        here = project(snapshot.split, demand, profile, self.targets)
        decision = attrs.evolve(
            decision,
            prefill_load=prefill_load(snapshot, self.targets),
            decode_load=decode_load(snapshot, profile, self.corrections, self.targets),
            now=here,
            evidence=self.evidence.state(now),
        )
        if long.arrivals < settings.min_arrivals:
            return self._cleared(decision, Gate.FEW_ARRIVALS)
        work = demand.prefill + here.requests * snapshot.split.decode / self._seats(demand.context)
        if work < settings.demand_floor:
            return self._cleared(decision, Gate.WEAK_DEMAND)
        if here.worst < settings.content_below:
            return self._cleared(decision, Gate.CONTENT)
        may = [to for to in directions if min(attrs.astuple(snapshot.split.toward(to))) >= 0]
        if not may:
            return self._cleared(decision, Gate.FLOOR)
        to, here, then = self._best(snapshot.split, {to: demands[to] for to in may}, profile)
        decision = attrs.evolve(decision, now=here, then=then)
        if not self._pays(here, then):
            return self._cleared(decision, Gate.MARGIN)
        decision = attrs.evolve(decision, to=to, proposed=then.split)
        if settings.noise_margin and not self._beyond_chance(decision, long.arrivals):
            return self._cleared(decision, Gate.CHANCE)
        return self._propose(decision, snapshot, long, short)

    def _best(
        self, split: Split, demands: Mapping[Role, Demand], profile: Profile
    ) -> tuple[Role, Projection, Projection]:
        """The direction that improves the worst ratio most; the split's ratios now, and then."""
        options = []
        for to, demand in demands.items():
            here, there = (
                project(each, demand, profile, self.targets) for each in (split, split.toward(to))
            )
            options.append((to, here, there))
        return min(options, key=_improvement)

    def _seats(self, context: float) -> float:
        """Decodes of that context at the TPOT target on one engine: its worth of decode."""
        assert self._profile is not None  # noqa: S101 - an evaluation has one
        decode = self._profile.decode
        return max(1.0, (self.targets.tpot_s - decode.t0) / (decode.tr + decode.tk * context))

    def _pays(self, here: Projection, then: Projection) -> bool:
        """Whether the worst ratio falls by the margin, and falls at all."""
        if here.worst == inf:
            return then.worst < inf
        limit = here.worst * (1.0 - self._settings.movement_margin)
        return then.worst <= limit and then.worst < here.worst

    def _beyond_chance(self, decision: Decision, arrivals: int) -> bool:
        """Whether the move is right even if what is known is off by what chance makes of it.

        What `arrivals` requests ask for is known to a share of about one over their square root.
        The pool that gives has to be better off afterwards than the other one is now, with the
        one estimate too low by that and the other too high: or the way back would soon look as
        good as the way there.
        """
        assert decision.now is not None  # noqa: S101 - it is proposed
        share = self._settings.noise_margin / sqrt(max(1, arrivals))
        worst = decision.now.worst
        return worst == inf or self._source(decision) * (1.0 + share) <= worst * (1.0 - share)

    def _propose(
        self, decision: Decision, snapshot: Snapshot, long: Estimate, short: Estimate
    ) -> Decision:
        """Judge a move that would pay: its source, its evidence, its engine, its confirmations."""
        proposed = decision.proposed
        assert proposed is not None  # noqa: S101 - it is
        rule, gate = self._rule(decision)
        decision = attrs.evolve(decision, rule=rule)
        if self.breaches(proposed):
            gate = Gate.FLOOR
        if gate is None:
            gate = self._timing_gate(decision, long, short)
        if gate is not None:
            return self._cleared(decision, gate)
        found = self._engine(decision, snapshot)
        if isinstance(found, Gate):
            return self._cleared(decision, found)
        key = (proposed, long.complete and short.complete, rule)
        count = self._confirmations.again(key)
        needed = 1 if self._urgent(decision) else self._needed
        decision = attrs.evolve(decision, confirmations=count, needed=needed, iid=found)
        if count < needed:
            return attrs.evolve(decision, gate=Gate.CONFIRMING)
        return self._carried_out(decision, found)

    @property
    def _needed(self) -> int:
        return max(self._settings.confirmations, self._thresholds.sustained_intervals)

    def _urgent(self, decision: Decision) -> bool:
        """Whether one side is over its target and the other has room, where that is enough."""
        if not self._settings.urgent:
            return False
        here, then = decision.now, decision.then
        assert here is not None  # noqa: S101 - it is proposed
        assert then is not None  # noqa: S101 - as above
        return here.worst >= self._thresholds.expand and self._source(decision) < 1.0

    @staticmethod
    def _source(decision: Decision) -> float:
        """The projected ratio of the pool that gives the engine away."""
        assert decision.then is not None  # noqa: S101 - it is proposed
        return decision.then.decode if decision.to is Role.PREFILL else decision.then.prefill

    def _rule(self, decision: Decision) -> tuple[Rule, Gate | None]:
        """By which rule the move would be made, and whether the source's load forbids it."""
        assert decision.now is not None  # noqa: S101 - it is proposed
        source = self._source(decision)
        if self._settings.source_guard is SourceGuard.RELATIVE:
            may = source < 1.0
        else:
            may = source <= self._thresholds.shrink
        if decision.to is Role.DECODE:
            return Rule.TOWARD_DECODE, None if may else Gate.SOURCE
        if may:
            return Rule.CONSOLIDATION, None
        if decision.now.prefill >= self._thresholds.expand:
            return Rule.MIXED_PRESSURE, None
        return Rule.CONSOLIDATION, Gate.SOURCE

    def _timing_gate(self, decision: Decision, long: Estimate, short: Estimate) -> Gate | None:
        if decision.to is Role.PREFILL:
            assert decision.evidence is not None  # noqa: S101 - an evaluation has it
            if not decision.evidence.closed:
                return Gate.EVIDENCE
            return Gate.RISING if rising(short, long, self._settings) else None
        cooling = decision.at - self._toward_decode_at < self._thresholds.cooldown_s
        return Gate.COOLDOWN if cooling and not self._panic(decision) else None

    def _panic(self, decision: Decision) -> bool:
        ratio = self._thresholds.panic_ratio
        if not ratio:
            return False
        assert decision.decode_load is not None  # noqa: S101 - an evaluation has it
        assert decision.now is not None  # noqa: S101 - as above
        return decision.decode_load >= ratio and decision.now.prefill < self._thresholds.shrink

    def _engine(self, decision: Decision, snapshot: Snapshot) -> str | Gate:
        """The engine to move, or what forbids it."""
        thresholds = self._thresholds
        if decision.to is Role.DECODE:
            pool, most = snapshot.pool(Role.PREFILL), None
        else:
            if gate := self._fits(decision, snapshot):
                return gate
            pool, most = snapshot.pool(Role.DECODE), thresholds.flip_resident_guard or None
        found = candidate(
            pool, self._moved_at, decision.at, dwell_s=thresholds.dwell_s, most_decodes=most
        )
        return found if isinstance(found, Gate) else found.iid

    def _fits(self, decision: Decision, snapshot: Snapshot) -> Gate | None:
        """Whether decode fits the measured domain and the memory with one engine less (7.3)."""
        then, profile = decision.then, self._profile
        assert then is not None  # noqa: S101 - it is proposed
        assert profile is not None  # noqa: S101 - an evaluation has one
        batches = [(each.decodes, each.kv_tokens) for each in snapshot.engines if each.decodes]
        batches.append((ceil(then.requests), then.kv_tokens))
        if not all(profile.fits_decode(count, ceil(tokens)) for count, tokens in batches):
            return Gate.DOMAIN
        resident = sum(each.kv_tokens for each in snapshot.engines if each.live)
        resident += snapshot.pending_tokens
        if not profile.fits_memory(ceil(resident / then.split.decode)):
            return Gate.KV_CAPACITY
        return None

    def _cleared(self, decision: Decision, gate: Gate) -> Decision:
        """Held, and whatever was being confirmed is not any more."""
        self._confirmations.clear()
        return attrs.evolve(decision, gate=gate)

    # What it can say of itself

    def breaches(self, split: Split) -> tuple[str, ...]:
        """Floors that this split does not keep, a sentence each."""
        settings = self._controller
        floors = (
            ("prefill", split.prefill, settings.min_prefill),
            ("decode", split.decode, settings.min_decode),
        )
        return tuple(
            f"{live} live {name} engines, and controller.min_{name} is {least}"
            for name, live, least in floors
            if live < least
        )

    def estimates(self, now: float) -> tuple[Estimate, Estimate]:
        """Demand over the short and the long horizon."""
        settings = self._settings
        return (
            self.demand.over(settings.evidence_span_s, now),
            self.demand.over(settings.window_s, now),
        )

    def restarted(self, iid: str) -> None:
        """Another process answers as `iid`."""
        self.corrections.forget(iid)


def _improvement(option: tuple[Role, Projection, Projection]) -> float:
    """What is left of the worst ratio: 1 if nothing changes, less is better."""
    _, here, then = option
    if here.worst == inf:
        return 0.0 if then.worst < inf else 1.0
    return then.worst / here.worst if here.worst > 0.0 else inf
