"""Which engines may hand KV over to which, and in which order that is tried. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from narwhal.model import Role

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from narwhal.config import EngineSpec, FleetConfig

Pair = tuple[str, str]
"""A producer and a decoder."""


def may_have(config: FleetConfig, spec: EngineSpec, role: Role) -> bool:
    """Whether the engine has that role, or role control may give it.

    It moves engines that are not pinned, unless it only advises.
    """
    return spec.role is role or not (spec.pin or config.controller.advisory)


def engines_for(config: FleetConfig, role: Role) -> list[str]:
    """The engines that may have that role; none if nothing is ever handed over."""
    if len(config.engines) == 1 or not _both_roles(config):
        return []
    return [spec.iid for spec in config.engines if may_have(config, spec, role)]


def _both_roles(config: FleetConfig) -> bool:
    """Whether there may be an engine of each role at one time."""
    return all(any(may_have(config, spec, role) for spec in config.engines) for role in Role)


def permitted_pairs(config: FleetConfig) -> list[Pair]:
    """Every pair that a request may be handed over between, in the order of the fleet file."""
    decoders = engines_for(config, Role.DECODE)
    return [
        (producer, decoder)
        for producer in engines_for(config, Role.PREFILL)
        for decoder in decoders
        if producer != decoder
    ]


def ring_pairs(pairs: Sequence[Pair]) -> list[Pair]:
    """Few of the pairs: with them every producer produces, and every decoder pulls.

    A pair is taken if it has an engine that is still to be seen in that part, those with two such
    engines first. That is as many pairs as there are producers or decoders, or a few more.
    """
    producers, decoders = {pair[0] for pair in pairs}, {pair[1] for pair in pairs}
    chosen: list[Pair] = []
    for wanted in (2, 1):
        for producer, decoder in pairs:
            if (producer in producers) + (decoder in decoders) >= wanted:
                chosen.append((producer, decoder))
                producers.discard(producer)
                decoders.discard(decoder)
    return chosen


def rounds(pairs: Iterable[Pair]) -> list[list[Pair]]:
    """The pairs in rounds, in each of which no engine is in two pairs.

    So an engine's counters say what its own handoff did.
    """
    made: list[tuple[set[str], list[Pair]]] = []
    for pair in pairs:
        for busy, each in made:
            if busy.isdisjoint(pair):
                each.append(pair)
                busy.update(pair)
                break
        else:
            made.append((set(pair), [pair]))
    return [each for _, each in made]
