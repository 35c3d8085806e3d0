"""Controllers with profiles of round numbers, and fleets that are asked once a second.

Targets are those of `fleet_config`: TTFT 2 s, TPOT 0.1 s.
"""

from __future__ import annotations

from typing import Any

import attrs

from narwhal.model import Role
from narwhal.profiles import DecodeCurve, PrefillCurve, Profile, Range
from narwhal.roles import Decision, EngineNow, Gate, RoleController, Snapshot, Verdict
from narwhal.testing import fleet_config

FAR = 10**7
PROFILE = Profile(
    prefill=PrefillCurve(a=0.0, b=1e-3, c=0.0, tokens=Range(1, FAR), fit_mape=0.0, cv_mape=0.0),
    decode=DecodeCurve(
        t0=0.02,
        tr=0.002,
        tk=1e-6,
        requests=Range(1, FAR),
        kv_tokens=Range(1, FAR),
        fit_mape=0.0,
        cv_mape=0.0,
    ),
)
"""1 ms a prompt token; 20 ms a step, 2 ms a request of it and 1 us a KV token."""


def measured(*, requests: int = FAR, kv_tokens: int = FAR, memory: int | None = None) -> Profile:
    """The same engine, measured so far and with so much memory."""
    decode = attrs.evolve(
        PROFILE.decode, requests=Range(1, requests), kv_tokens=Range(1, kv_tokens)
    )
    return attrs.evolve(PROFILE, decode=decode, kv_capacity_tokens=memory)


@attrs.frozen
class Demand:
    """So many requests a second, of so many tokens."""

    rate: int
    prompt: int
    output: int


NOTHING = Demand(0, 1, 1)
PREFILL_HEAVY = Demand(3, 600, 10)
"""2P2D is at 1.13 and 0.11; 3P1D would be at 0.75 and 0.22."""
DECODE_HEAVY = Demand(3, 50, 300)
"""2P2D is at 0.09 and 1.19; 1P3D would be at 0.19 and 0.59."""
MIXED = Demand(3, 600, 100)
"""2P2D is at 1.13 and 0.33; 3P1D would be at 0.75 and 0.98."""
EVEN = Demand(2, 200, 50)
"""2P2D is at 0.25 and 0.25: 3P1D and 1P3D are worse."""


def controller_of(
    prefill: int = 2, decode: int = 2, *, profile: Profile | None = PROFILE, **controller: Any
) -> RoleController:
    """One for so many engines; `controller` is that section of the fleet file."""
    return RoleController(
        fleet_config(prefill=prefill, decode=decode, controller=controller), profile
    )


class Scene:
    """A fleet and its controller. Time begins at 0, and a pass comes every second.

    A decision to move is carried out; requests leave no trace on engines but what `set` says.
    """

    def __init__(
        self,
        prefill: int = 2,
        decode: int = 2,
        *,
        profile: Profile | None = PROFILE,
        demand: Demand = NOTHING,
        **controller: Any,
    ) -> None:
        self.controller = controller_of(prefill, decode, profile=profile, **controller)
        iids = [f"p{n}" for n in range(prefill)] + [f"d{n}" for n in range(decode)]
        self.engines = {
            iid: EngineNow(iid=iid, role=Role.PREFILL if iid[0] == "p" else Role.DECODE)
            for iid in iids
        }
        self.demand = demand
        self.now = 0.0
        self.waiting: dict[str, Any] = {}
        """What the snapshot says of work that has no engine."""

    def set(self, *iids: str, **changes: Any) -> None:
        """Change engines; with no names, all of them."""
        for iid in iids or tuple(self.engines):
            self.engines[iid] = attrs.evolve(self.engines[iid], **changes)

    def add(self, iid: str, role: Role, **changes: Any) -> None:
        """One engine more, which the fleet file would have had all along."""
        self.engines[iid] = EngineNow(iid=iid, role=role, **changes)
        self.controller.corrections._factors[iid] = 1.0

    @property
    def roles(self) -> str:
        """Who has which role: `p0 p1 | d0 d1`."""
        return " | ".join(
            " ".join(iid for iid, each in self.engines.items() if each.role is role)
            for role in Role
        )

    def snapshot(self) -> Snapshot:
        return Snapshot(engines=tuple(self.engines.values()), **self.waiting)

    def one_pass(self) -> Decision:
        """The offers of a second, and a pass."""
        for _ in range(self.demand.rate):
            self.controller.offered(self.demand.prompt, self.demand.output, self.now)
        decision = self.controller.decide(self.snapshot(), self.now)
        if decision.verdict is Verdict.MOVED:
            assert decision.iid is not None
            assert decision.to is not None
            self.set(decision.iid, role=decision.to)
        self.now += 1.0
        return decision

    def run(self, seconds: int) -> list[Decision]:
        """Passes of so many seconds; those that were evaluations."""
        passes = [self.one_pass() for _ in range(seconds)]
        return [each for each in passes if each.gate is not Gate.NOT_DUE]

    def moves(self, seconds: int) -> list[tuple[float, str, str]]:
        """The moves of so many seconds: when, who, and by which rule."""
        return [
            (each.at, str(each.iid), str(each.rule))
            for each in self.run(seconds)
            if each.verdict is Verdict.MOVED
        ]


def gates(decisions: list[Decision]) -> list[str]:
    """What each was held by, without repetitions."""
    found: list[str] = []
    for each in decisions:
        if not found or found[-1] != each.gate:
            found.append(str(each.gate))
    return found
