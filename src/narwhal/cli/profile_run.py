"""Measuring the engines of a fleet one after the other, with each saved as soon as it is done."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import attrs
import trio

from narwhal.cli.profile_progress import progress
from narwhal.cli.profile_report import Report
from narwhal.model import ConfigError, EngineError, LocalError, Role
from narwhal.profiler import ProfilingStopped, profile_engine
from narwhal.profiles import (
    ProfileStore,
    generation_digest,
    load_samples,
    load_store,
    samples_path,
    update_samples,
    update_store,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path
    from random import Random

    from narwhal.config import FleetConfig
    from narwhal.engine import EngineClient
    from narwhal.profiler import Progress as Step
    from narwhal.profiler import Wanted


@attrs.frozen
class Stopped:
    """Why not all engines were measured, a line for each reason."""

    lines: tuple[str, ...]
    interrupted: bool = False


@attrs.define(kw_only=True)
class FleetRun:
    """Measures `chosen`, and reports what became of it."""

    config: FleetConfig
    store: Path
    chosen: Sequence[str]
    overwrite: bool
    wanted: Mapping[str, Wanted]
    texts: Sequence[str]
    rng: Random
    known: ProfileStore = attrs.field(init=False)
    report: Report = attrs.field(init=False)

    @known.default
    def _read(self) -> ProfileStore:
        """What is there already. Raises `ConfigError` if it cannot be used."""
        if samples_path(self.store).exists():
            load_samples(samples_path(self.store))
        return load_store(self.store) if self.store.exists() else ProfileStore()

    @report.default
    def _empty(self) -> Report:
        return Report(config=self.config, store=self.store)

    async def measure(self, clients: Mapping[str, EngineClient]) -> Stopped | None:
        """Measure and save the engines; why it stopped, if it did before the last one.

        A cancel leaves the engines idle, and what was finished saved.
        """
        try:
            todo = await self._todo(clients)
            with progress(len(todo)) as show:
                for number, iid in enumerate(todo):
                    await self._measure(clients, iid, partial(show, number))
        except ProfilingStopped as stopped:
            return Stopped((str(stopped), self._saved()))
        except ConfigError as error:
            return Stopped(error.problems)
        return None

    def interrupted(self) -> Stopped:
        """What to say when it was told to stop."""
        return Stopped(("interrupted", self._saved()), interrupted=True)

    def _saved(self) -> str:
        done = ", ".join(row.iid for row in self.report.rows) or "none"
        return f"measured and saved: {done}; the same command goes on with the others"

    async def _measure(
        self, clients: Mapping[str, EngineClient], iid: str, show: Callable[[Step], None]
    ) -> None:
        measured = await profile_engine(
            self.config,
            clients[iid],
            producer=self._producer(clients, iid),
            wanted=self.wanted[iid],
            rng=self.rng,
            texts=self.texts,
            report=show,
        )
        # Samples first: what can be fitted again is never behind the store.
        update_samples(samples_path(self.store), [measured.samples])
        update_store(self.store, [measured.row])
        self.report.add(measured.samples, measured.row, measured.left_out)

    def _producer(self, clients: Mapping[str, EngineClient], iid: str) -> EngineClient | None:
        """Another engine to hand KV over: a prefill engine if there is one."""
        others = [spec for spec in self.config.engines if spec.iid != iid]
        others.sort(key=lambda spec: spec.role is not Role.PREFILL)
        return clients[others[0].iid] if others else None

    async def _todo(self, clients: Mapping[str, EngineClient]) -> list[str]:
        """The engines to measure: those without a profile.

        All are asked at once, before minutes go by on the first. Raises `ConfigError` with a line
        for each that does not answer, or has a profile of something else.
        """
        problems: dict[str, str] = {}
        done: set[str] = set()

        async def look(iid: str) -> None:
            try:
                if await self._is_done(clients[iid]):
                    done.add(iid)
            except ConfigError as error:
                problems[iid] = str(error)

        async with trio.open_nursery() as nursery:
            for iid in self.chosen:
                nursery.start_soon(look, iid)
        if problems:
            raise ConfigError([problems[iid] for iid in self.chosen if iid in problems])
        self.report.kept += [iid for iid in self.chosen if iid in done]
        return [iid for iid in self.chosen if iid not in done]

    async def _is_done(self, client: EngineClient) -> bool:
        """Whether the engine as it runs now has a profile already."""
        iid, within = client.iid, self.config.engine.health_timeout_s
        try:
            with trio.fail_after(within):
                version = await client.version()
        except trio.TooSlowError as error:
            text = f"no answer within engine.health_timeout_s ({within:g} s)"
            raise ConfigError([f"{iid}: does not say its version: {text}"]) from error
        except (EngineError, LocalError) as error:
            raise ConfigError([f"{iid}: does not say its version: {error}"]) from error
        row = self.known.row(iid)
        if row is None or self.overwrite:
            return False
        contract = self.config.engine_contract
        if row.generation_digest == generation_digest(version, self.config.model, contract):
            return True
        text = (
            f"{self.store.name}: the profile of {iid} is not bound to the engine as it runs now "
            f"(version {version}): give --overwrite to measure it again, or another --out"
        )
        raise ConfigError([text])
