"""What a router takes up of the state that an earlier one left. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from narwhal.config.settings import shown
from narwhal.fleet import EngineState
from narwhal.model import ConfigError

if TYPE_CHECKING:
    from narwhal.config import FleetConfig
    from narwhal.monitor.state_document import EngineRecord, SavedState

REMEDY = (
    "nothing of it was taken up; start without --resume (and recovery.resume false) to begin with "
    "what the fleet file says"
)
"""The last line of every refusal."""

_S = EngineState


def check_fits(saved: SavedState, config: FleetConfig, *, name: str) -> None:
    """Whether a state is of this fleet: the same model and the same engines at the same addresses.

    Raises `ConfigError` with a line for each difference, that begins with `name`, and one that
    says what to do.
    """
    lines = _misfits(saved, config)
    if lines:
        raise ConfigError([f"{name}: {line}" for line in [*lines, REMEDY]])


def _misfits(saved: SavedState, config: FleetConfig) -> list[str]:
    lines = []
    if saved.model != config.model:
        lines.append(f"model is {shown(saved.model)}, and the fleet's is {shown(config.model)}")
    urls = {spec.iid: spec.url for spec in config.engines}
    there = {engine.iid: engine.url for engine in saved.engines}
    for iid, url in there.items():
        if iid not in urls:
            lines.append(f"engines has {iid}, which is no engine of the fleet")
        elif url != urls[iid]:
            lines.append(f"engines has {iid} at {url}, and in the fleet file it is at {urls[iid]}")
    lines += [f"engines lacks {iid} of the fleet" for iid in urls if iid not in there]
    return lines


def with_roles(config: FleetConfig, saved: SavedState) -> tuple[FleetConfig, list[str]]:
    """The fleet with the roles that its engines had; pinned ones keep the fleet file's.

    Returns a line for each pinned engine whose role was another one.
    """
    roles = {engine.iid: engine.role for engine in saved.engines}
    notes = [
        f"{spec.iid} is pinned to {spec.role} in the fleet file; it was {roles[spec.iid]}"
        for spec in config.engines
        if spec.pin and roles[spec.iid] is not spec.role
    ]
    engines = tuple(
        spec if spec.pin else attrs.evolve(spec, role=roles[spec.iid]) for spec in config.engines
    )
    return attrs.evolve(config, engines=engines), notes


def standing(engine: EngineRecord, config: FleetConfig) -> tuple[EngineState, str]:
    """The state that an engine begins in, and why.

    Nothing that was taken out of service comes back on the strength of a file: it has to
    generate first. A quarantine is over: it lasts seconds.
    """
    match engine.state:
        case _S.SERVING | _S.QUARANTINED:
            return _S.SERVING, ""
        case _S.VALIDATING:
            # Nobody is checking it any more. It has to prove itself as any other does.
            return _S.HELD, "it was being validated when the router stopped"
        case _S.BLOCKED if config.engine_contract is None:
            return _S.HELD, "it was blocked, by an engine_contract that is no more"
        case state:
            return state, engine.reason
