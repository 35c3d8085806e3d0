"""The same fleet under other orders: how its engines' roles are given, and who may change them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from narwhal.config.serving import Admission
from narwhal.model import Role

if TYPE_CHECKING:
    from narwhal.config import FleetConfig


def split_name(config: FleetConfig, split: int) -> str:
    """`3P5D` for three prefill engines of eight."""
    return f"{split}P{len(config.engines) - split}D"


def pinned(config: FleetConfig, split: int) -> FleetConfig:
    """The first `split` engines prefill and the others decode, for good."""
    return _split(config, split, pin=True)


def start_at(config: FleetConfig, split: int) -> FleetConfig:
    """The first `split` engines prefill and the others decode, until roles are moved."""
    return _split(config, split, pin=False)


def aggregated(config: FleetConfig) -> FleetConfig:
    """Every engine runs both phases of each request it gets, and everything is let in.

    Predictive admission would let nothing in on an engine on which something decodes, since
    profiles do not say what the phases do to each other: no more than a request an engine, which
    is no fleet to compare with. Engines are still chosen by price.
    """
    serving = attrs.evolve(config.serving, admission=Admission.OPEN)
    config = attrs.evolve(config, serving=serving)
    return _with_roles(config, [Role.DECODE] * len(config.engines), pin=True)


def advisory(config: FleetConfig) -> FleetConfig:
    """Moves are proposed and recorded, and never made."""
    return attrs.evolve(config, controller=attrs.evolve(config.controller, advisory=True))


def _split(config: FleetConfig, split: int, *, pin: bool) -> FleetConfig:
    engines = len(config.engines)
    if not 0 < split < engines:
        raise ValueError(
            f"a split of {engines} engines gives 1 to {engines - 1} of them to prefill, not {split}"
        )
    roles = [Role.PREFILL] * split + [Role.DECODE] * (engines - split)
    return _with_roles(config, roles, pin=pin)


def _with_roles(config: FleetConfig, roles: list[Role], *, pin: bool) -> FleetConfig:
    """The engines in these roles; no pool starts below the least that moves would leave it."""
    controller = config.controller
    engines = tuple(
        attrs.evolve(spec, role=role, pin=pin)
        for spec, role in zip(config.engines, roles, strict=True)
    )
    return attrs.evolve(
        config,
        engines=engines,
        controller=attrs.evolve(
            controller,
            min_prefill=max(1, min(controller.min_prefill, roles.count(Role.PREFILL))),
            min_decode=max(1, min(controller.min_decode, roles.count(Role.DECODE))),
        ),
    )
