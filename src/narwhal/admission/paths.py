"""The ways a request could go, each with its price."""

from __future__ import annotations

from math import inf

import msgspec


class PrefillPath(msgspec.Struct, frozen=True, kw_only=True):
    """A prefill on one engine. All in seconds. One is made for each engine and request."""

    iid: str
    ahead_s: float
    """Predicted work that is resident there and not done yet."""
    own_s: float
    """What the prompt takes there alone."""
    penalty_s: float = 0.0
    """Added while the engine is on probation."""
    after_s: float = 0.0
    """From the end of the prefill to the first token at the client, where the target covers it:
    handoff and first decode step."""
    decode: DecodePath | None = None
    """The decode on the same engine, if it is to run both phases."""
    measured: bool = True
    """Whether profiles can price it now: not while something decodes on an engine that is to run
    both phases, as what the two do to each other was not measured."""

    @property
    def price_s(self) -> float:
        """From now to the moment that the target is about."""
        return self.ahead_s + (self.own_s + self.after_s) + self.penalty_s

    @property
    def alone_s(self) -> float:
        """The same on an idle engine: what no wait can better."""
        return self.own_s + self.after_s

    def decodes(self, tpot_s: float) -> bool:
        """Whether the decode is projected to be in time, if it is on this engine."""
        return self.decode is None or self.decode.meets(tpot_s)

    def could_decode(self, tpot_s: float) -> bool:
        """Whether it would on an idle engine."""
        return self.decode is None or self.decode.could_meet(tpot_s)


class DecodePath(msgspec.Struct, frozen=True, kw_only=True):
    """A decode on one engine, as it would be with the request on it; made as often."""

    iid: str
    interval_s: float
    """Seconds between two tokens."""
    alone_s: float
    """The same with nothing else on the engine."""
    kv_tokens: int
    """KV tokens on the engine, those of the request included."""
    own_tokens: int
    """Those of the request: its prompt and expected output."""
    capacity: float = inf
    """KV tokens that the engine has room for."""

    def meets(self, tpot_s: float) -> bool:
        """Whether the request fits and gets its tokens in time."""
        return self.interval_s <= tpot_s and self.kv_tokens <= self.capacity

    def could_meet(self, tpot_s: float) -> bool:
        """Whether it would on an idle engine."""
        return self.alone_s <= tpot_s and self.own_tokens <= self.capacity
