"""How long handoffs take over the engines' context, and what `first_token_timeout_s` follows.

Measured as the limit counts: from before the decode connection to the first token.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import attrs

from narwhal.engine import Prompts
from narwhal.preflight.asking import Bound, Trouble

if TYPE_CHECKING:
    from collections.abc import Sequence
    from random import Random

    from narwhal.config import FleetConfig
    from narwhal.preflight.legs import Legs
    from narwhal.preflight.view import View
    from narwhal.wire.openai import CompletionRequest

_SHORTEST = 64
_LENGTHS = 5
# Of a fleet at work: steps are longer beside other requests, and a pull waits for other pulls.
HEADROOM = 1.5
# Below that, a time-out would take the odd pause of an engine for a failure.
LEAST_S = 0.5
_STEP_S = 0.1


@attrs.frozen(kw_only=True)
class Timing:
    """One handoff."""

    producer: str
    decoder: str
    tokens: int
    seconds: float


@attrs.frozen(kw_only=True)
class Calibration:
    """What was measured, and what follows."""

    timings: tuple[Timing, ...]
    troubles: tuple[str, ...] = ()
    """Handoffs that did not come to a first token."""
    configured_s: float = 0.0

    @property
    def lengths(self) -> dict[int, list[float]]:
        """Times by prompt length, each list in order of size."""
        found: dict[int, list[float]] = {}
        for each in sorted(self.timings, key=lambda timing: (timing.tokens, timing.seconds)):
            found.setdefault(each.tokens, []).append(each.seconds)
        return found

    @property
    def p99_s(self) -> float | None:
        """Over all lengths; None if nothing was measured."""
        return quantile(sorted(each.seconds for each in self.timings), 0.99)

    @property
    def proposed_s(self) -> float | None:
        """A value for `engine.first_token_timeout_s`: see `propose`."""
        longest = max((quantile(times, 0.99) or 0.0 for times in self.lengths.values()), default=0)
        return propose(longest) if self.timings else None


def quantile(ordered: Sequence[float], share: float) -> float | None:
    """The smallest of the values that no less than `share` of them are at most (nearest rank)."""
    if not ordered:
        return None
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def propose(p99_s: float) -> float:
    """A time-out above the p99 of an idle fleet: half as much again, in tenths of a second."""
    return max(LEAST_S, math.ceil(p99_s * HEADROOM / _STEP_S - 1e-9) / round(1 / _STEP_S))


def lengths_for(context_tokens: int, kv_tokens: int | None) -> tuple[int, ...]:
    """Prompt lengths over the whole context, in equal ratios, the longest that fits among them."""
    longest = min(context_tokens, kv_tokens or context_tokens) - 2
    if longest <= _SHORTEST:
        return (max(1, longest),)
    ratio = (longest / _SHORTEST) ** (1 / (_LENGTHS - 1))
    return tuple(sorted({round(_SHORTEST * ratio**step) for step in range(_LENGTHS)}))


async def calibrate(
    config: FleetConfig,
    legs: Legs,
    chosen: Sequence[tuple[View, View]],
    rng: Random,
    *,
    repeats: int,
) -> Calibration:
    """Time handoffs between the chosen pairs, one at a time, `repeats` of each length.

    Lengths go over the context and the memory that all of these engines have.
    """
    nothing = Calibration(timings=(), configured_s=config.engine.first_token_timeout_s)
    if not chosen:
        return attrs.evolve(nothing, troubles=("no pair of engines got through `consume`",))
    views = [view for pair in chosen for view in pair]
    contexts = [view.context_tokens for view in views if view.context_tokens]
    memories = [view.process.kv_capacity_tokens for view in views
                if view.process is not None and view.process.kv_capacity_tokens]  # fmt: skip
    if not contexts:
        return attrs.evolve(nothing, troubles=("no engine says its max_model_len",))
    ids = await legs.token_ids(chosen[0][0].client)
    if isinstance(ids, Trouble):
        return attrs.evolve(nothing, troubles=(ids.text,))
    prompts = Prompts(config.model, ids, rng)
    lengths = lengths_for(min(contexts), min(memories, default=None))
    timings: list[Timing] = []
    troubles: list[str] = []
    for producer, decoder in chosen:
        for tokens in lengths * repeats:
            seconds = await _one(
                config, legs, (producer, decoder), prompts.request(tokens, output_tokens=1)
            )
            if isinstance(seconds, Trouble):
                troubles.append(f"{producer.iid} -> {decoder.iid}, {tokens} tokens: {seconds.text}")
                break
            timings.append(
                Timing(producer=producer.iid, decoder=decoder.iid, tokens=tokens, seconds=seconds)
            )
    return attrs.evolve(nothing, timings=tuple(timings), troubles=tuple(troubles))


async def _one(
    config: FleetConfig, legs: Legs, pair: tuple[View, View], request: CompletionRequest
) -> float | Trouble:
    """Seconds to the first token of one handoff.

    A leg may take as long as a prefill may, and no longer than the lease: what is measured must
    not be cut off by the limit that is to be found.
    """
    producer, decoder = pair
    held = legs.held(decoder.client)
    prefill = Bound(config.serving.prefill_timeout_s, "serving.prefill_timeout_s")
    lease = Bound(config.engine.kv_lease_s, "engine.kv_lease_s")
    try:
        made = await legs.produce(producer.client, request, held, bound=prefill)
        if isinstance(made, Trouble):
            return made
        answer = await legs.decode(decoder.client, request, held, bound=lease)
    finally:
        await held.release()
    return answer if isinstance(answer, Trouble) else answer.first_token_s
