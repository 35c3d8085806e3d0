"""What is to be measured on an engine: as asked for, and as it fits the engine. Pure."""

from __future__ import annotations

import math
from itertools import product
from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

# With 18 lengths and times that vary by 5 %, each coefficient is then within 10 % in 299 of 300
# profiles, the first one being the least certain; with 7 repeats, in 24 of 25.
PREFILL_REPEATS = 11
DECODE_INPUT_LENS = (256, 2048, 8192)
DECODE_CONCURRENCY = (1, 2, 8, 32, 64)
DECODE_TOKENS = 64
# Shorter prompts tell of nothing but what any prefill takes.
_SHORTEST = 64
_FEWEST_PREFILL_LENS = 4
_HANDOFF_LENS = 5
HANDOFF_TOKENS = 9
"""Tokens of a handed-over request: the interval of those after the first is taken off the first."""
LEAST_SPARE = 2
"""Tokens that a stream gets before its batch counts, even if all streams begin together."""


@attrs.frozen(kw_only=True)
class Wanted:
    """What somebody asked for; `None` leaves it to the engine's size."""

    prefill_lens: Sequence[int] | None = None
    prefill_repeats: int = PREFILL_REPEATS
    decode_input_lens: Sequence[int] | None = None
    decode_concurrency: Sequence[int] | None = None
    decode_tokens: int = DECODE_TOKENS
    max_requests: int | None = None
    """Requests that run at once on the engine, its `max_num_seqs`; larger batches are left out."""


@attrs.frozen(kw_only=True)
class Room:
    """How much an engine holds, as far as it says."""

    context_tokens: int
    """Prompt and answer together."""
    kv_tokens: int | None
    """All requests together."""


@attrs.frozen(kw_only=True)
class Sweep:
    """What is measured on one engine, smallest first."""

    prefill_lens: tuple[int, ...]
    prefill_repeats: int
    batches: tuple[tuple[int, int], ...]
    """Pairs of requests and the prompt length of each."""
    decode_tokens: int
    """Tokens that each request of a batch gets while the batch is whole."""
    handoff_lens: tuple[int, ...]
    """Lengths at which handoffs are measured: some of the prefills'."""
    left_out: tuple[str, ...] = ()
    """What was asked for and does not fit the engine."""


def plan_sweep(wanted: Wanted, room: Room) -> Sweep | str:
    """What to measure on an engine with that much room, or in a sentence why it cannot be done.

    What was asked for by length has to fit the engine's context. What was not asked for is
    chosen so that it does. A batch that the memory does not hold at one time is left out.
    """
    lens = _prefill_lens(wanted, room)
    if isinstance(lens, str):
        return lens
    inputs = _decode_lens(wanted, room)
    if isinstance(inputs, str):
        return inputs
    requests = _distinct(wanted.decode_concurrency or DECODE_CONCURRENCY)
    batches, left_out = _batches(wanted, room, requests, inputs)
    if len({each for each, _ in batches}) < 2 or len({each for _, each in batches}) < 2:  # noqa: PLR2004 - to tell them apart
        return (
            f"{len(batches)} of {len(requests) * len(inputs)} decode batches fit the engine, and a "
            "fit takes two numbers of requests, each with two lengths of prompts: choose smaller "
            "--decode-concurrency and --decode-input-lens"
        )
    return Sweep(
        prefill_lens=lens,
        prefill_repeats=wanted.prefill_repeats,
        batches=batches,
        decode_tokens=wanted.decode_tokens,
        handoff_lens=_spread([each for each in lens if each + HANDOFF_TOKENS <= _longest(room)]),
        left_out=left_out,
    )


def _prefill_lens(wanted: Wanted, room: Room) -> tuple[int, ...] | str:
    longest = _longest(room) - 1  # a prefill generates one token
    if wanted.prefill_lens is None:
        # Two lengths for each doubling, and the longest in place of one that is next to it.
        steps = int(2 * math.log2(0.8 * longest / _SHORTEST)) if longest > _SHORTEST else 0
        lens = {int(_SHORTEST * 2 ** (step / 2)) for step in range(steps + 1)} | {longest}
        if len(lens) < _FEWEST_PREFILL_LENS:
            return (
                f"its context of {room.context_tokens} tokens is too short for prompts of "
                f"{_FEWEST_PREFILL_LENS} lengths from {_SHORTEST} tokens: give --prefill-lens"
            )
        return tuple(sorted(lens))
    asked = _distinct(wanted.prefill_lens)
    if asked[-1] > longest:
        return (
            f"a prompt of {asked[-1]} tokens and one generated token are more than its context "
            f"({room.context_tokens} tokens) or memory holds: give --prefill-lens up to {longest}"
        )
    if len(asked) < _FEWEST_PREFILL_LENS:
        return f"{len(asked)} --prefill-lens are too few for a fit: give four or more"
    return asked


def _decode_lens(wanted: Wanted, room: Room) -> tuple[int, ...] | str:
    longest = room.context_tokens - wanted.decode_tokens - LEAST_SPARE
    if wanted.decode_input_lens is not None:
        asked = _distinct(wanted.decode_input_lens)
        if asked[-1] > longest:
            return (
                f"a prompt of {asked[-1]} tokens and --decode-tokens {wanted.decode_tokens} are "
                f"more than its context ({room.context_tokens} tokens) holds: give "
                f"--decode-input-lens up to {max(0, longest)}"
            )
        return asked
    lens = tuple(each for each in DECODE_INPUT_LENS if each <= longest)
    if len(lens) >= 2:  # noqa: PLR2004 - to tell tokens from requests
        return lens
    quarter = longest // 4
    if quarter < 1:
        return (
            f"its context of {room.context_tokens} tokens is too short for --decode-tokens "
            f"{wanted.decode_tokens}: give fewer"
        )
    return quarter, longest


def _batches(
    wanted: Wanted, room: Room, requests: Sequence[int], inputs: Sequence[int]
) -> tuple[tuple[tuple[int, int], ...], tuple[str, ...]]:
    batches, left_out = [], []
    for count, length in product(requests, inputs):
        tokens = count * (length + wanted.decode_tokens + LEAST_SPARE)
        if wanted.max_requests is not None and count > wanted.max_requests:
            left_out.append(f"{count} requests: --limits allows {wanted.max_requests}")
        elif room.kv_tokens is not None and tokens > room.kv_tokens:
            text = f"{count} requests of {length} tokens: memory holds {room.kv_tokens} KV tokens"
            left_out.append(text)
        else:
            batches.append((count, length))
    return tuple(batches), tuple(dict.fromkeys(left_out))


def _longest(room: Room) -> int:
    """Prompt and answer of a request that has the engine to itself."""
    return min(room.context_tokens, room.kv_tokens or room.context_tokens)


def _spread(lens: Sequence[int]) -> tuple[int, ...]:
    """A few of them, evenly spread, the first and the last among them."""
    step = max(1, -(-(len(lens) - 1) // (_HANDOFF_LENS - 1)))
    return tuple(sorted({*lens[::step], *lens[-1:]}))


def _distinct(values: Iterable[int]) -> tuple[int, ...]:
    return tuple(sorted(set(values)))
