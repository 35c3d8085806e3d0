"""How a request must end, reckoned from the drawn times: this only adds and compares.

It knows the documentation and shares nothing with the router. Where two things happen in the same
moment, the limit is first, and of two limits the one around the other.
"""

from __future__ import annotations

from fractions import Fraction
from math import inf
from random import Random

import attrs

from narwhal.model import Limit, Phase, Terminal

from arithmetic_cases import (
    DECODE_ENDS,
    EITHER,
    GOOD,
    PREFILL_ENDS,
    STREAM_ENDS,
    Kind,
    Leg,
    Limits,
    Request,
    Script,
)
from arithmetic_told import Stretch, Told, Tried

LIMITS = {
    Limit.PREFILL: Kind(code="prefill", status=504),
    Limit.CONNECT: Kind(code="engine_unreachable", status=504),
    Limit.POOL: Kind(code="pool_exhausted", status=503, again=False),
    Limit.HANDOFF: Kind(code="handoff_expired", status=504),
    Limit.FIRST_TOKEN: Kind(code="first_token", status=504),
    Limit.READ_GAP: Kind(code="read_gap", status=504),
}
Ends = dict[Limit | None, float]


@attrs.frozen(kw_only=True)
class Miss:
    """How an attempt failed."""

    kind: Kind
    phase: Phase
    limit: Limit | None = None
    retry_after: int | None = None
    visible: bool = False
    local: bool = False
    """No news of the engine."""


class Cut(Exception):
    """The request ends here, whatever it is doing."""


class Wallet:
    """The retry credits of a router, and the dice that it throws."""

    def __init__(self, limits: Limits, seed: int) -> None:
        self.limits = limits
        self.left = Fraction(limits.budget)
        self.rng = Random(seed)

    def add(self, more: Fraction) -> None:
        self.left = min(self.left + more, Fraction(self.limits.budget))


class Model:
    """One request's prediction."""

    def __init__(self, limits: Limits, request: Request, wallet: Wallet) -> None:
        self.limits, self.request, self.wallet = limits, request, wallet
        self.told = Told()
        self.now = 0.0
        self.cut = min(limits.request_s, request.leaves_at)
        self.owes = False
        self.committed = False
        self.age: float | None = None

    def predict(self) -> Told:
        told, limits = self.told, self.limits
        self.wallet.rng.getrandbits(128)  # the request's id
        try:
            self._serve()
        except Cut:
            if self.cut < limits.request_s:
                told.terminal, told.code, told.status = Terminal.CANCELLED, "client_closed", 499
            else:
                code = "expired" if self.committed else "request_expired"
                self._expired(Limit.REQUEST, code)
        if self.owes:
            self.wallet.add(Fraction(1))
        told.end = self.now
        told.status = 200 if self.committed else told.status
        return told

    # Time

    def _spend(self, phase: Phase, until: float) -> None:
        ends = min(until, self.cut)
        self.told.stretches.append(Stretch(phase, self.now, ends, self.wallet.left))
        self.now = ends
        if until >= self.cut:
            raise Cut

    def _arrives(self, leg: str, n: int) -> None:
        self.told.legs.append((leg, n, self.now))

    def _expired(self, limit: Limit, code: str) -> None:
        self.told.terminal, self.told.code, self.told.status = Terminal.EXPIRED, code, 504
        self.told.limit = limit
        self.told.fired.append(limit)

    # The request

    def _serve(self) -> None:
        limits, request = self.limits, self.request
        self._spend(Phase.INGRESS, request.body)
        self._arrives("tokenize", 0)
        counted, late = self.now + request.tokenize, self.now + limits.tokenize_s
        self._spend(Phase.TOKENIZE, min(counted, late))
        if late <= counted:
            self.told.fired.append(Limit.TOKENIZE)
        if request.seat_at > self.now:
            if not limits.queues:
                self.told.terminal, self.told.code = Terminal.REFUSED, "queue_full"
                self.told.status = 429
                return
            late = self.now + limits.queue_s
            self._spend(Phase.QUEUE, min(request.seat_at, late))
            if late <= request.seat_at:
                self._expired(Limit.QUEUE, "queue_expired")
                return
        self._attempts()

    def _attempts(self) -> None:
        for n, script in enumerate(self.request.scripts, start=1):
            self.age = None
            self.told.tried.append(Tried("abandoned"))
            try:
                miss = self._attempt(n, script)
            except Cut:
                self.told.tried[-1] = Tried("abandoned", handoff_age_s=self.age)
                raise
            if miss is None:
                self.told.tried[-1] = Tried("completed", handoff_age_s=self.age)
                self.told.terminal = Terminal.COMPLETED
                self.wallet.add(Fraction(self.limits.tenths, 10))
                return
            self.told.tried[-1] = Tried(
                "failed", miss.kind.code, miss.phase, miss.limit, miss.local, self.age
            )
            if miss.limit is not None:
                self.told.fired.append(miss.limit)
            if not self._again(n, miss):
                self._failed(miss)
                return

    def _failed(self, miss: Miss) -> None:
        told, kind = self.told, miss.kind
        told.code, told.status, told.limit = kind.code, kind.status, miss.limit
        told.terminal = Terminal.FAILED
        if kind.rejected:
            told.terminal = Terminal.INVALID
        elif miss.limit is Limit.HANDOFF:
            told.terminal = Terminal.EXPIRED
        if kind.code == "engine_busy":
            told.retry_after = miss.retry_after or 1

    def _again(self, n: int, miss: Miss) -> bool:
        limits, wallet = self.limits, self.wallet
        if miss.visible or not miss.kind.again or n == limits.max_attempts:
            return False
        delay = wallet.rng.uniform(0.0, min(limits.cap_s, limits.base_s * 2 ** (n - 1)))
        if miss.retry_after and not self._others(miss.phase):
            delay = max(delay, miss.retry_after)
        if self.now + delay >= limits.request_s or wallet.left < 1:
            return False
        wallet.left -= 1
        self.owes = True
        self._spend(Phase.BACKOFF, self.now + delay)
        return True

    def _others(self, phase: Phase) -> bool:
        """Whether a leg can go to an engine that has not failed this request yet.

        Every attempt has engines of its own, as far as there are any.
        """
        tried, limits = self.told.tried, self.limits
        if not limits.prefill:
            return len(tried) < limits.decode
        if phase is Phase.PREFILL:
            return len(tried) < limits.prefill
        return sum(each.phase is Phase.DECODE for each in tried) < limits.decode

    # An attempt

    def _attempt(self, n: int, script: Script) -> Miss | None:
        limits, request = self.limits, self.request
        if not limits.prefill:
            self._spend(Phase.PREFILL, max(self.now, request.decode_at))
        self._spend(Phase.PREFILL, max(self.now, request.prefill_at))
        self.owes = False
        begun = self.now
        ends: Ends = {Limit.PREFILL: begun + limits.prefill_s}
        if not limits.prefill:
            return self._generated(n, script, before=ends, after=ends)
        reach, early = self._connect(script.prefill)
        leg, phase = script.prefill, Phase.PREFILL
        miss = self._reached(leg, reach, ends | early, phase, phase)
        if miss is not None:
            return miss
        self._arrives("prefill", n)
        limit = self._first(phase, ends | {None: reach + leg.seconds})
        if limit is not None:
            return self._limited(limit, phase)
        if leg.end != GOOD:
            return answered(PREFILL_ENDS, leg, phase)
        return self._handed_off(n, script, begun)

    def _handed_off(self, n: int, script: Script, begun: float) -> Miss | None:
        limits, request = self.limits, self.request
        self.committed |= request.stream and limits.commit == "before_decode"
        lease = self.now + limits.lease_s
        expires = min(begun + (limits.handoff_s or inf), lease)
        place = max(self.now, request.decode_at)
        if expires <= place:
            self._spend(Phase.HANDOFF, max(self.now, expires))
            return self._limited(Limit.HANDOFF, Phase.DECODE)
        self._spend(Phase.HANDOFF, place)
        return self._generated(
            n, script, before={Limit.HANDOFF: expires}, after={Limit.HANDOFF: lease}, begun=begun
        )

    def _generated(
        self, n: int, script: Script, *, before: Ends, after: Ends, begun: float | None = None
    ) -> Miss | None:
        """Decode: `before` and `after` its request is written, what ends it but for its own."""
        leg, phase = script.decode, Phase.HANDOFF if self.limits.prefill else Phase.PREFILL
        first: Ends = {Limit.FIRST_TOKEN: self.now + self.limits.first_s}
        reach, early = self._connect(leg)
        ends = before | first | early
        miss = self._reached(leg, reach, ends, phase, Phase.DECODE)
        if miss is not None:
            return miss
        self._arrives("decode" if self.limits.prefill else "whole", n)
        self.age = None if begun is None else self.now - begun
        limit = self._first(Phase.DECODE, after | first | {None: reach + leg.seconds})
        if limit is not None:
            return self._limited(limit, Phase.DECODE)
        if leg.end != GOOD:
            return answered(DECODE_ENDS, leg, Phase.DECODE)
        return self._streamed(n, script)

    def _streamed(self, n: int, script: Script) -> Miss | None:
        visible = self.request.stream
        self.committed |= visible
        text = words(n, 0)
        for k, gap in enumerate(script.gaps, start=1):
            self.told.text = text if visible else ""
            limit = self._first(
                Phase.DECODE,
                {None: self.now + gap, Limit.READ_GAP: self.now + (self.limits.gap_s or inf)},
            )
            if limit is not None:
                return attrs.evolve(self._limited(limit, Phase.DECODE), visible=visible)
            if k < len(script.gaps):
                text += words(n, k)
        if script.end != GOOD:
            return Miss(kind=STREAM_ENDS[script.end], phase=Phase.DECODE, visible=visible)
        self.told.text = text
        self.committed = True
        return None

    # Legs

    def _connect(self, leg: Leg) -> tuple[float, Ends]:
        """When the request is with the engine, and what may come before."""
        if self.now >= self.request.starved_at:
            return inf, {Limit.POOL: self.now + self.limits.pool_s}
        if leg.connect >= self.limits.connect_s:
            return inf, {Limit.CONNECT: self.now + self.limits.connect_s}
        return self.now + leg.connect, {}

    def _reached(self, leg: Leg, reach: float, ends: Ends, phase: Phase, of: Phase) -> Miss | None:
        """Spend, in `phase`, the time up to a leg of phase `of` being written, if it ever is."""
        starved = self.now >= self.request.starved_at
        limit = self._first(phase, ends | {None: reach})
        if limit is not None:
            miss = self._limited(limit, of)
            return attrs.evolve(miss, local=miss.local or starved)
        return Miss(kind=EITHER["refused"], phase=of) if leg.end == "refused" else None

    def _first(self, phase: Phase, ends: Ends) -> Limit | None:
        """Spend the time up to the first of these; which limit it is."""
        limit = min(ends, key=lambda each: (ends[each], each is None))
        self._spend(phase, max(ends[limit], self.now))
        return limit

    def _limited(self, limit: Limit, of: Phase) -> Miss:
        phases = {Limit.PREFILL: Phase.PREFILL, Limit.HANDOFF: Phase.HANDOFF}
        local = limit in (Limit.HANDOFF, Limit.POOL)
        return Miss(kind=LIMITS[limit], phase=phases.get(limit, of), limit=limit, local=local)


def answered(kinds: dict[str, Kind], leg: Leg, phase: Phase) -> Miss:
    """An engine said that it failed, in one way or another."""
    after = leg.retry_after if leg.end.isdigit() else None
    return Miss(kind=kinds[leg.end], phase=phase, retry_after=after)


def words(attempt: int, k: int) -> str:
    """The text of a token: no two are alike."""
    return f" {attempt}.{k}"
