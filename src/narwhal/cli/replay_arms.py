"""Which arms a replay has, by the options that ask for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from narwhal.cli.replay_fleet import with_settings
from narwhal.cli.replay_options import Setting
from narwhal.cli.replay_plan import Arm, unlike
from narwhal.cli.running import fail
from narwhal.roles import Split
from narwhal.simulate.replay.arms import advisory, aggregated, pinned, start_at

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Any

    from narwhal.config import FleetConfig

CONTROLLER = "controller"


@attrs.frozen(kw_only=True)
class Wanted:
    """The options."""

    splits: Sequence[Split] = ()
    starts: Sequence[Split] = ()
    presets: Sequence[str] = ()
    aggregated: bool = False
    advisory: bool = False
    compare: bool = False

    @property
    def controlled(self) -> bool:
        """Whether the router moves roles itself in some arm, from the file's own roles or others.

        It does if nothing else was asked for, and where an option only makes sense with it.
        """
        others = self.splits or self.aggregated or self.advisory
        return bool(self.compare or self.starts or self.presets) or not others


def arms_of(
    path: str, document: Mapping[str, Any], settings: Sequence[Setting], wanted: Wanted
) -> tuple[Arm, ...]:
    """All arms, those with the controller first; exits with what is wrong with an option."""
    bases = _bases(path, document, settings, wanted.presets)
    config = next(iter(bases.values()))
    engines = len(config.engines)
    for option, splits in (("--split", wanted.splits), ("--start", wanted.starts)):
        for split in splits:
            if split.prefill + split.decode != engines:
                raise fail(
                    f"{option}: {split} has {split.prefill + split.decode} engines, and the "
                    f"fleet has {engines}; give numbers with that sum"
                )
    arms = unlike([*_controlled(bases, wanted), *_fixed(config, wanted)])
    if not arms:
        raise fail("--compare: a fleet of one engine has no splits; leave the option out")
    return arms


def _bases(
    path: str, document: Mapping[str, Any], settings: Sequence[Setting], presets: Sequence[str]
) -> dict[str, FleetConfig]:
    """The fleet under each preset, by what arms with it are called."""
    if not presets:
        return {CONTROLLER: with_settings(path, document, settings, option="--set")}
    return {
        preset: with_settings(
            path,
            document,
            [Setting("controller.preset", preset), *settings],
            option="--set, --preset",
        )
        for preset in presets
    }


def _controlled(bases: Mapping[str, FleetConfig], wanted: Wanted) -> Iterator[Arm]:
    for name, config in bases.items():
        for split in wanted.starts:
            started = start_at(config, split.prefill)
            yield Arm(name=f"{name} from {split}", config=started)
        if wanted.controlled and not wanted.starts:
            yield Arm(name=name, config=config)
        if wanted.advisory:
            called = "advisory" if len(bases) == 1 else f"advisory {name}"
            yield Arm(name=called, config=advisory(config))


def _fixed(config: FleetConfig, wanted: Wanted) -> Iterator[Arm]:
    engines = len(config.engines)
    compared = [Split(n, engines - n) for n in range(1, engines)] if wanted.compare else []
    for split in [*wanted.splits, *compared]:
        yield Arm(name=str(split), config=pinned(config, split.prefill))
    if wanted.aggregated:
        yield Arm(name="aggregated", config=aggregated(config))
