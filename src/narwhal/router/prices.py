"""What a request would cost on each engine now, from measured profiles and resident work."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from narwhal.admission import Cause, DecodePath, OutputHistory, PrefillPath, Targets
from narwhal.fleet import UNPLACED, Claim, filled_to
from narwhal.model import Phase, TtftScope
from narwhal.profiles import mean_profile
from narwhal.router.paces import Paces

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from narwhal.admission import Refused
    from narwhal.config import FleetConfig
    from narwhal.fleet import Ledger, Orphans
    from narwhal.profiles import Profile
    from narwhal.router.life import RequestLife


class Price(NamedTuple):
    """What a leg costs on one engine, for whoever places it."""

    cost: float
    """Seconds, or where there are no profiles, legs."""
    meets: bool = True
    """Whether it is projected to meet its target there."""
    interval_s: float | None = None
    """The projected time between tokens, of a leg that decodes."""


class _Load(NamedTuple):
    """Decodes, as they weigh on one engine."""

    requests: float
    tokens: int
    """KV tokens at their ends."""
    mean_tokens: float
    """KV tokens over their lifetimes."""


class Prices:
    """Prices legs. Without profiles it knows no seconds, and everything costs what it counts.

    Formulas: DESIGN's cost model, in `narwhal.profiles`. Resident work is what the ledger says;
    decodes that have no engine yet are spread evenly over those that could take them.
    """

    def __init__(
        self,
        config: FleetConfig,
        ledger: Ledger,
        orphans: Orphans,
        profiles: Mapping[str, Profile] | None,
    ) -> None:
        self.targets = Targets(
            ttft_s=config.slo.ttft_s,
            tpot_s=config.slo.tpot_s,
            margin=config.serving.admission_margin,
        )
        self.output = OutputHistory()
        self.paces = Paces(ledger, profiles)
        self.penalty_s: Callable[[str], float] = lambda _iid: 0.0
        """What is added to the price of an engine on probation."""
        self.profiles = profiles
        self.mean = mean_profile(list(profiles.values())) if profiles else None
        """What work that has no engine yet, and demand, are priced by."""
        self._ledger = ledger
        self._orphans = orphans
        self._to_first_token = config.slo.ttft_scope is TtftScope.FIRST_TOKEN

    @property
    def known(self) -> bool:
        """Whether there are profiles."""
        return self.profiles is not None

    def claim(self, iid: str, phase: Phase, life: RequestLife) -> Claim:
        """What a leg of the request takes of `iid`."""
        prompt_tokens = life.prompt_tokens
        if phase is Phase.DECODE:
            return Claim(prompt_tokens=prompt_tokens, output_tokens=life.output_tokens)
        seconds = 0.0
        if self.profiles is not None:
            seconds = self.profiles[iid].prefill.seconds(prompt_tokens)
        return Claim(prompt_tokens=prompt_tokens, seconds=seconds)

    def turned_out(self, projected_s: float, ttft_s: float) -> None:
        """A TTFT that was projected to be `projected_s` was `ttft_s`."""
        self.paces.projected(projected_s, ttft_s, budget_s=self.targets.budget_s)

    @staticmethod
    def backs_up(refused: Refused) -> bool:
        """Whether another prefill engine could have made the difference."""
        return refused.cause in (Cause.BACKLOG, Cause.NO_ENGINE)

    def mean_prefill_s(self, prompt_tokens: int) -> float:
        """What a prefill that has no engine yet is predicted to take; 0 if that is not known."""
        return 0.0 if self.mean is None else self.mean.prefill_seconds(prompt_tokens)

    def any_idle_decoder(self, iids: Sequence[str]) -> bool:
        """Whether there is an engine on which nothing decodes."""
        return not all(self._ledger.residents(iid, Phase.DECODE) for iid in iids)

    # Paths

    def prefill_paths(
        self,
        iids: Sequence[str],
        prompt_tokens: int,
        now: float,
        *,
        decoders: Sequence[str],
        line_s: float = 0.0,
    ) -> list[PrefillPath]:
        """A prefill of the prompt, on each of these engines, for a decode on one of `decoders`.

        `line_s` is the work that waits for a place on any of them and comes first.
        """
        after_s = self._after(decoders, prompt_tokens)
        paths = [self._prefill_path(iid, prompt_tokens, now, after_s) for iid in iids]
        if not line_s or not paths:
            return paths
        line_s *= self.paces.mean(iids, Phase.PREFILL) * self.paces.caution
        free_in_s = filled_to([path.ahead_s for path in paths], line_s)
        return [
            msgspec.structs.replace(path, ahead_s=max(path.ahead_s, free_in_s)) for path in paths
        ]

    def whole_paths(
        self, iids: Sequence[str], prompt_tokens: int, output_tokens: int, now: float
    ) -> list[PrefillPath]:
        """Both phases on each of these engines. The first token is the prefill's own."""
        decodes = self.decode_paths(iids, prompt_tokens, output_tokens, now=now)
        return [
            self._prefill_path(decode.iid, prompt_tokens, now, 0.0, decode) for decode in decodes
        ]

    def _prefill_path(
        self,
        iid: str,
        prompt_tokens: int,
        now: float,
        after_s: float,
        decode: DecodePath | None = None,
    ) -> PrefillPath:
        assert self.profiles is not None  # noqa: S101 - only asked where there are profiles
        profile = self.profiles[iid]
        ahead = self._ledger.backlog_s(iid, now) * self.paces.caution
        pinned = self._orphans.tokens(iid, now)
        if pinned and not self._fits(iid, profile, pinned + prompt_tokens):
            ahead = max(ahead, self._orphans.last_ends(iid, now) - now)
        return PrefillPath(
            iid=iid,
            ahead_s=ahead,
            own_s=profile.prefill.seconds(prompt_tokens) * self._ledger.pace(iid),
            penalty_s=self.penalty_s(iid),
            after_s=after_s,
            decode=decode,
            measured=decode is None or not self._ledger.residents(iid, Phase.DECODE),
        )

    def _fits(self, iid: str, profile: Profile, more_tokens: int) -> bool:
        """Whether the engine has room for so many tokens beside its legs'."""
        legs = self._ledger.PHASES
        resident = sum(self._ledger.tokens(iid, phase) for phase in legs)
        return profile.fits_memory(resident + more_tokens)

    def _after(self, decoders: Sequence[str], prompt_tokens: int) -> float:
        """From the end of a prefill to the first token, if the TTFT target covers that.

        The handoff to an idle decode engine and its first step, where the two take least.
        """
        if not self._to_first_token:
            return 0.0
        assert self.profiles is not None  # noqa: S101 - only asked where there are profiles
        profiles = [self.profiles[iid] for iid in decoders]
        return min(
            (
                profile.handoff_seconds(prompt_tokens) + profile.decode_interval(1, prompt_tokens)
                for profile in profiles
            ),
            default=0.0,
        )

    def decode_paths(
        self,
        iids: Sequence[str],
        prompt_tokens: int,
        output_tokens: int,
        *,
        now: float,
        expected: Claim | None = None,
    ) -> list[DecodePath]:
        """A decode on each of these engines, as it would be with the request there.

        `expected` is its own claim if it stands among those that have no engine yet: no request
        is in its own way.
        """
        own = Claim(prompt_tokens=prompt_tokens, output_tokens=output_tokens)
        to_come = self._to_come(expected, len(iids))
        return [self._decode_path(iid, own, to_come, now) for iid in iids]

    def _to_come(self, expected: Claim | None, engines: int) -> _Load:
        """The share of one engine in the decodes that have none yet, without `expected`."""
        load = self._ledger.load(UNPLACED, Phase.DECODE)
        requests, tokens, mean_tokens = load.requests, load.tokens, load.mean_tokens
        if expected is not None:
            requests -= 1
            tokens -= expected.tokens
            mean_tokens -= expected.mean_tokens
        engines = max(1, engines)
        return _Load(requests / engines, -(-tokens // engines), mean_tokens / engines)

    def _decode_path(self, iid: str, own: Claim, to_come: _Load, now: float) -> DecodePath:
        assert self.profiles is not None  # noqa: S101 - only asked where there are profiles
        profile, load = self.profiles[iid], self._ledger.load(iid, Phase.DECODE)
        curve, pace = profile.decode, self.paces.of(iid, Phase.DECODE)
        own_mean, own_tokens = own.mean_tokens, own.tokens
        requests = 1 + load.requests + to_come.requests
        mean_tokens = own_mean + load.mean_tokens + to_come.mean_tokens
        kv_tokens = own_tokens + load.tokens + to_come.tokens + self._orphans.tokens(iid, now)
        capacity = profile.kv_capacity_tokens
        return DecodePath(
            iid=iid,
            interval_s=pace * curve.interval(requests, mean_tokens),
            alone_s=pace * curve.interval(1, own_mean),
            kv_tokens=kv_tokens,
            own_tokens=own_tokens,
            capacity=inf if capacity is None else capacity,
        )

    # Placement

    def prefills(
        self, iids: Sequence[str], life: RequestLife, now: float, *, decoders: Sequence[str]
    ) -> list[Price]:
        """A prefill on each of these engines, for a decode on one of `decoders`."""
        targets, waited = self.targets, now - life.arrival
        paths = self.prefill_paths(iids, life.prompt_tokens, now, decoders=decoders)
        # Without a decode of its own a path is always measured: the time is all there is to meet.
        costs = [path.price_s for path in paths]
        return [Price(cost, targets.in_time(waited + cost)) for cost in costs]

    def decodes(self, iids: Sequence[str], life: RequestLife, now: float) -> list[Price]:
        """A decode on each of these engines."""
        targets = self.targets
        expected = None if life.expected_decode is None else life.expected_decode.claim
        paths = self.decode_paths(
            iids, life.prompt_tokens, life.output_tokens, now=now, expected=expected
        )
        # A penalty is the same share of this target as it is of the other, which is in seconds.
        share = targets.tpot_s / targets.ttft_s
        return [
            Price(
                path.interval_s + share * self.penalty_s(path.iid),
                path.meets(targets.tpot_s),
                path.interval_s,
            )
            for path in paths
        ]

    def wholes(self, iids: Sequence[str], life: RequestLife, now: float) -> list[Price]:
        """Both phases on each of these engines."""
        targets, waited = self.targets, now - life.arrival
        paths = self.whole_paths(iids, life.prompt_tokens, life.output_tokens, now)
        return [
            Price(
                path.price_s,
                targets.met_by(path, waited),
                None if path.decode is None else path.decode.interval_s,
            )
            for path in paths
        ]
