"""A fleet of emulated engines in memory, for a router in the same run."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import attrs
import trio

from narwhal.app import open_router
from narwhal.config import parse_fleet
from narwhal.emulator import EmulatedFleet, EngineSettings, TimeModel, parse_fault
from narwhal.net import MemoryNetwork
from narwhal.profiles import DecodeCurve, HandoffCurve, PrefillCurve, Profile, Range
from narwhal.router import leave_nursery

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType

    from narwhal.config import EngineSpec, FleetConfig
    from narwhal.emulator import EmulatedEngine, Fault
    from narwhal.net import ByteStream, Listener

ENGINE_KEY = "key-of-the-engines-in-memory"
"""What `engine.engine_api_key_env` is given as, and what the engines then ask for."""

_SLO = {"ttft_s": 2.0, "tpot_s": 0.1}


def fleet_config(
    *, prefill: int = 1, decode: int = 1, model: str = "emulated", **sections: Mapping[str, Any]
) -> FleetConfig:
    """A fleet file's value, for engines `p0`, `p1`, ... and `d0`, `d1`, ....

    `sections` are those of a fleet file, as mappings: `serving={"max_attempts": 2}`. Raises
    `ConfigError` as for a file.
    """
    engines = [
        {"iid": f"{role[0]}{n}", "url": f"http://{role}-{n}:8000", "role": role}
        for role, count in (("prefill", prefill), ("decode", decode))
        for n in range(count)
    ]
    document = {
        "schema": "narwhal.fleet",
        "schema_version": 1,
        "model": model,
        "engines": engines,
        "slo": _SLO,
        **sections,
        "serving": {"admission": "open", **sections.get("serving", {})},
    }
    return parse_fleet(document, name="fleet", environ={})


class MemoryFleet:
    """Emulated engines for every engine of a fleet file, at its addresses on a network in memory.

    They have the file's model, its lease and, if it names one, a key, unless other `EngineSettings`
    say otherwise: `changes` are those of all engines, and `own` those of single ones, by name.
    `seed` makes the engines' identities and the router's ids.
    """

    def __init__(
        self,
        config: FleetConfig,
        *,
        network: MemoryNetwork | None = None,
        seed: int = 0,
        own: Mapping[str, Mapping[str, Any]] | None = None,
        **changes: Any,
    ) -> None:
        specs = tuple(_without_tls(spec) for spec in config.engines)
        self.config = attrs.evolve(config, engines=specs)
        """The fleet file's value, for the router. Engines in memory speak no TLS: `https` is
        `http` here."""
        self.network = network or MemoryNetwork()
        self.environ: dict[str, str] = {}
        key_name = config.engine.engine_api_key_env
        if key_name is not None:
            self.environ[key_name] = ENGINE_KEY
        self._seed = seed
        self.engines = EmulatedFleet(
            [
                EngineSettings(
                    **{
                        "iid": spec.iid,
                        "model": config.model,
                        "lease_s": config.engine.kv_lease_s,
                        "api_key": None if key_name is None else ENGINE_KEY,
                        **changes,
                        **(own or {}).get(spec.iid, {}),
                    }
                )
                for spec in specs
            ],
            seed=seed,
        )

    def __getitem__(self, iid: str) -> EmulatedEngine:
        """The engine of that name: its counters, its power switch, its faults."""
        return self.engines[iid]

    @property
    def profiles(self) -> dict[str, Profile]:
        """What a profiler that makes no mistakes would say of the engines, by name."""
        return {engine.iid: _exact_profile(engine) for engine in self.engines.engines}

    @property
    def idle(self) -> bool:
        """Whether no engine holds a request, a sequence or a KV block."""
        return self.engines.idle

    async def connect(self, host: str, port: int) -> ByteStream:
        """How a router reaches the engines: `open_router(fleet.config, connect=fleet.connect)`."""
        return await self.network.connect(host, port)

    def fail_with(self, *faults: Fault | str, iid: str | None = None) -> None:
        """Let engines go wrong: `fail_with("decode:tokens(3);rst*1")`; with none, no more.

        The faults replace those of before, on the engine `iid` or on every one of them. What
        they can be is written down in `narwhal.emulator.faults`.
        """
        parsed = [parse_fault(fault) if isinstance(fault, str) else fault for fault in faults]
        for engine in self.engines.engines if iid is None else [self[iid]]:
            engine.faults.set(parsed)

    def open_router(self, profiles: Mapping[str, Profile] | None = None) -> open_router:
        """A router for these engines, with nothing in it that would not repeat.

        With predictive admission it has exact profiles, unless others are given.
        """
        if profiles is None and self.config.serving.admission == "predictive":
            profiles = self.profiles
        return open_router(
            self.config,
            environ=self.environ,
            connect=self.connect,
            rng=random.Random(f"router {self._seed}"),  # noqa: S311 - to repeat, not to hide
            wall_clock=trio.current_time,
            profiles=profiles,
        )

    async def serve(
        self, *, task_status: trio.TaskStatus[object] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Serve every engine until cancelled."""

        async def listen(host: str, port: int) -> Sequence[Listener]:
            return [self.network.listen(host, port)]

        listeners = [await listen(spec.host, spec.port) for spec in self.config.engines]
        await self.engines.serve(listeners, reopen=listen, task_status=task_status)


class open_fleet:  # noqa: N801 - used as a function, as `trio.open_nursery` is
    """Serve a `MemoryFleet` for the length of an `async with` block; leaving it stops the engines.

    `async with open_fleet(fleet_config(decode=2)) as fleet: ...`. `time` is how fast the engines
    are, the other arguments are those of `MemoryFleet`.
    """

    def __init__(
        self,
        config: FleetConfig | None = None,
        *,
        time: TimeModel | None = None,
        seed: int = 0,
        **changes: Any,
    ) -> None:
        if time is not None:
            changes["time"] = time
        self._fleet = MemoryFleet(config or fleet_config(), seed=seed, **changes)

    async def __aenter__(self) -> MemoryFleet:
        self._manager = trio.open_nursery()
        self._nursery = await self._manager.__aenter__()
        await self._nursery.start(self._fleet.serve)
        return self._fleet

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._nursery.cancel_scope.cancel(reason="the fleet's block was left")
        await leave_nursery(self._manager, exc)


def _without_tls(spec: EngineSpec) -> EngineSpec:
    if spec.scheme == "http":
        return spec
    host = f"[{spec.host}]" if ":" in spec.host else spec.host
    return attrs.evolve(spec, url=f"http://{host}:{spec.port}")


# Further than anything in memory goes.
_FAR = 10_000_000


def _exact_profile(engine: EmulatedEngine) -> Profile:
    time = engine.settings.time
    (a, b, c), (t0, tr, tk), (base, token) = time.prefill, time.decode, time.handoff
    everything = Range(1, _FAR)
    return Profile(
        prefill=PrefillCurve(a=a, b=b, c=c, tokens=everything, fit_mape=0.0, cv_mape=0.0),
        decode=DecodeCurve(
            t0=t0,
            tr=tr,
            tk=max(tk, 1e-12),  # a profile has no zero there
            requests=everything,
            kv_tokens=everything,
            fit_mape=0.0,
            cv_mape=0.0,
        ),
        handoff=HandoffCurve(base_s=base, token_s=token) if base or token else None,
        kv_capacity_tokens=engine.settings.kv_capacity_tokens,
    )
