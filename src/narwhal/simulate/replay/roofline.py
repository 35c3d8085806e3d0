"""From published figures of a model and an accelerator to a profile, by arithmetic alone.

A prefill computes, a decode step reads memory; each takes its work over the accelerator's peak
times the share of it that engines were seen to reach. Nothing here was measured by us.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from narwhal.profiles import DecodeCurve, HandoffCurve, PrefillCurve, Profile, Range

if TYPE_CHECKING:
    from collections.abc import Sequence

VALUE_BYTES = 2
"""Of a weight, and of a number in the cache: BF16."""
_DIGITS = 4
_BLOCK = 16
"""Tokens of a block of cache, as vLLM allots it."""


@attrs.frozen(kw_only=True)
class Model:
    """A dense decoder, from its card and its `config.json`."""

    name: str
    parameters: float
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    context: int
    """Longest prompt and answer together, in tokens."""

    @property
    def weight_bytes(self) -> float:
        """What a decode step reads once."""
        return self.parameters * VALUE_BYTES

    @property
    def token_bytes(self) -> int:
        """Cache of one token: a key and a value for each layer and KV head."""
        return 2 * self.layers * self.kv_heads * self.head_dim * VALUE_BYTES

    @property
    def token_flops(self) -> float:
        """A multiplication and an addition with every weight."""
        return 2 * self.parameters

    @property
    def pair_flops(self) -> float:
        """Attention of `n` tokens takes this times n squared; each sees only those before it."""
        return 2.0 * self.layers * self.heads * self.head_dim


@attrs.frozen(kw_only=True)
class Accelerator:
    """One of them, from its data sheet."""

    name: str
    flops: float
    """Dense BF16, a second."""
    bandwidth: float
    """Of its memory, bytes/s."""
    memory: float
    """Bytes."""
    network: float
    """What one network adapter for each accelerator was seen to carry, bytes/s."""


@attrs.frozen(kw_only=True)
class FirstTokens:
    """Two published times to the first token, of a short and of a long prompt, alone."""

    flops: float
    """Peak of all accelerators together, at the precision of the measurement."""
    parameters: float
    short: tuple[int, float]
    """Tokens, seconds."""
    long: tuple[int, float]

    @property
    def per_token(self) -> float:
        """Seconds that a further token takes."""
        return (self.long[1] - self.short[1]) / (self.long[0] - self.short[0])

    @property
    def overhead(self) -> float:
        """Seconds that any prompt takes beside its tokens."""
        return self.short[1] - self.short[0] * self.per_token

    @property
    def reached(self) -> float:
        """The share of the peak that a further token is computed with."""
        return 2 * self.parameters / (self.per_token * self.flops)


@attrs.frozen(kw_only=True)
class Reached:
    """Shares of the peak that engines reach, from 0 to 1, and what comes on top."""

    compute: float
    """Of arithmetic, in a prefill."""
    attention: float
    """Of arithmetic, in attention."""
    bandwidth: float
    """Of memory bandwidth, in a decode step."""
    memory: float
    """Of memory, that the engine takes for weights and cache."""
    prefill_s: float
    handoff_s: float
    """Seconds of any prefill, and of any handoff."""
    requests: int
    """Most requests that an engine runs at once."""


def engine_profile(model: Model, accelerator: Accelerator, count: int, reached: Reached) -> Profile:
    """The profile of an engine of `count` accelerators, which share all of its work evenly.

    A step of the model is priced as a sum: a decode step is charged its arithmetic beside its
    reading, although of small batches the one hides behind the other.
    """
    flops, bandwidth = count * accelerator.flops, count * accelerator.bandwidth * reached.bandwidth
    token_s = model.token_flops / (flops * reached.compute)
    room = count * accelerator.memory * reached.memory - model.weight_bytes
    capacity = int(room / model.token_bytes) // _BLOCK * _BLOCK
    return Profile(
        prefill=PrefillCurve(
            a=_plain(model.pair_flops / (flops * reached.attention)),
            b=_plain(token_s),
            c=_plain(reached.prefill_s),
            tokens=Range(1, model.context),
        ),
        decode=DecodeCurve(
            t0=_plain(model.weight_bytes / bandwidth),
            tr=_plain(token_s),
            tk=_plain(model.token_bytes / bandwidth),
            requests=Range(1, reached.requests),
            kv_tokens=Range(1, capacity),
            # Engines that are emulated with this profile keep to it: there is nothing it misses.
            fit_mape=0.0,
            cv_mape=0.0,
        ),
        handoff=HandoffCurve(
            base_s=_plain(reached.handoff_s),
            token_s=_plain(model.token_bytes / (count * accelerator.network)),
        ),
        kv_capacity_tokens=capacity,
    )


def mean_reached(measured: Sequence[FirstTokens]) -> float:
    """The mean share of the peak, over measurements."""
    return sum(each.reached for each in measured) / len(measured)


def _plain(value: float) -> float:
    """As many digits as such figures deserve, and more than they are known to."""
    return float(f"{value:.{_DIGITS}g}")
