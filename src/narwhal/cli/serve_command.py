"""`narwhal-trio serve`."""

from __future__ import annotations

import gc
import logging
import os
import resource
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import click
import trio

from narwhal.app import open_router
from narwhal.cli.certificates import Certificates
from narwhal.cli.doors import Doors, open_doors
from narwhal.cli.numbers import FiniteRange
from narwhal.cli.running import (
    at_hangup,
    drop_output,
    fail,
    fail_config,
    set_up_logging,
    until_signalled,
)
from narwhal.cli.service_manager import ServiceManager
from narwhal.config import read_fleet
from narwhal.config.binds import BadBind, split_bind
from narwhal.config.files import base_name
from narwhal.fleet import EngineState
from narwhal.model import ConfigError
from narwhal.monitor import StateFile, check_fits, load_state, standing, with_roles
from narwhal.monitor.resume import REMEDY
from narwhal.profiles import check_limits, load_store
from narwhal.telemetry import JournalFile

if TYPE_CHECKING:
    from collections.abc import Mapping

    from narwhal.config import FleetConfig
    from narwhal.monitor import SavedState
    from narwhal.profiles import Profile

logger = logging.getLogger("narwhal.cli")

# Connections of operators, probes, the state and journal files, the event loop's own.
_OTHER_FILES = 512
# Pages that are being written when the last request has ended: they take microseconds.
_LAST_PAGES_S = 0.1


@click.command()
@click.option("--fleet", required=True, type=click.Path(), help="The fleet file.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port",
    default=8000,
    show_default=True,
    type=click.IntRange(0, 65535),
    help="Port to listen on; 0 takes a free one.",
)
@click.option(
    "--control-bind",
    metavar="HOST:PORT",
    help="Serve control routes on a listener of their own; overrides control.bind.",
)
@click.option("--journal", type=click.Path(), help="Append a JSON line for each request here.")
@click.option(
    "--max-concurrent",
    type=click.IntRange(min=1),
    help="Admit fewer requests at a time than serving.max_connections.",
)
@click.option(
    "--graceful-timeout",
    type=FiniteRange(min=0),
    help="Override serving.graceful_timeout_s, in seconds.",
)
@click.option(
    "--log-level",
    default="info",
    show_default=True,
    type=click.Choice(["debug", "info", "warning", "error"], case_sensitive=False),
)
@click.option("--resume", is_flag=True, help="Set recovery.resume.")
def serve(
    *,
    fleet: str,
    host: str,
    port: int,
    control_bind: str | None,
    journal: str | None,
    max_concurrent: int | None,
    graceful_timeout: float | None,
    log_level: str,
    resume: bool,
) -> None:
    """Serve a fleet until SIGTERM or SIGINT.

    The first signal drains: /ready answers 503, new and queued requests are turned away, and
    streams have the graceful timeout to finish. A second signal ends at once. SIGHUP has the
    journal go on in a new file, for whoever renamed the old one, and reads the files of TLS again.
    """
    set_up_logging(log_level)
    try:
        loaded = read_fleet(fleet, environ=os.environ)
        for remark in loaded.remarks:
            logger.warning("%s", remark)
        config = overridden(
            loaded.config,
            max_concurrent=max_concurrent,
            graceful_timeout=graceful_timeout,
            resume=resume,
            control_bind=control_bind,
        )
        profiles = load_profiles(config)
        saved = load_saved(config) if config.recovery.resume else None
        journal_file = JournalFile(journal) if journal else None
        if journal_file is not None:
            journal_file.open()
        state_file = StateFile(config.recovery.state_path)
        state_file.check()
        router = open_router(
            config,
            journal_file=journal_file,
            profiles=profiles,
            state_store=state_file,
            resume=saved,
        )
        doors = Doors.of(config, host, port)
        allow_files(config)
        calm_the_collector()
        serving = partial(_serve, keeps_journal=journal_file is not None)
        trio.run(serving, config, doors, router, saved)
    except ConfigError as error:
        raise fail_config(error) from error


def overridden(
    config: FleetConfig,
    *,
    max_concurrent: int | None,
    graceful_timeout: float | None,
    resume: bool,
    control_bind: str | None,
) -> FleetConfig:
    """Return the configuration with the command line's settings in place of the file's."""
    serving = config.serving
    if max_concurrent is not None:
        if max_concurrent > serving.max_connections:
            raise fail(
                f"--max-concurrent {max_concurrent} is above serving.max_connections "
                f"({serving.max_connections}): raise that, or lower this"
            )
        serving = attrs.evolve(serving, max_connections=max_concurrent)
    if graceful_timeout is not None:
        serving = attrs.evolve(serving, graceful_timeout_s=graceful_timeout)
    recovery = attrs.evolve(config.recovery, resume=True) if resume else config.recovery
    control = config.control
    if control_bind is not None:
        try:
            split_bind(control_bind)
        except BadBind as bad:
            raise fail(f"--control-bind {bad}, not {control_bind}") from bad
        control = attrs.evolve(control, bind=control_bind)
    return attrs.evolve(config, serving=serving, recovery=recovery, control=control)


def load_profiles(config: FleetConfig) -> Mapping[str, Profile] | None:
    """Read the store that the file names; None if admission is `open` and there is none.

    Raises `ConfigError` for a store that is needed and not there, is not sound, lacks an engine of
    the fleet, or has a fit that is worse than the file allows.
    """
    path = config.profiles.path
    if not Path(path).exists():
        if config.serving.admission == "open":
            return None
        text = (
            f"profiles.path: there is no {path} in {Path.cwd()}, and serving.admission "
            '"predictive" needs it: narwhal-trio profile --fleet FILE measures the engines, and '
            '"open" does without'
        )
        raise ConfigError([text])
    store = load_store(path, iids=[spec.iid for spec in config.engines])
    broken = check_limits(store, config.profiles)
    if broken and config.serving.admission != "open":
        raise ConfigError([each.line(str(path)) for each in broken])
    return store.profiles


def load_saved(config: FleetConfig) -> SavedState | None:
    """Read the state to resume, and check that it is of this fleet; None if there is no file yet.

    Raises `ConfigError` with what is wrong with it and what to do.
    """
    path = config.recovery.state_path
    try:
        saved = load_state(path)
    except ConfigError as error:
        raise ConfigError([*error.problems, f"{base_name(path)}: {REMEDY}"]) from None
    if saved is not None:
        check_fits(saved, config, name=base_name(path))
    return saved


def allow_files(config: FleetConfig) -> None:
    """Let this process open as many files as it may, and warn if clients can use them up.

    Shells and containers often start with 1024, for programs that cannot deal with more.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with suppress(ValueError, OSError):  # where the hard limit is not what it says
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
    serving = config.serving
    # A request that is served has a connection to an engine at a time, and may have a release leg.
    needed = serving.max_client_connections + 2 * serving.max_connections + _OTHER_FILES
    if soft != resource.RLIM_INFINITY and soft < needed:
        logger.warning(
            "this process may open %d files, and clients can make it want %d: raise the limit "
            "(ulimit -Hn, LimitNOFILE in a unit), or lower serving.max_client_connections",
            soft,
            needed,
        )


def calm_the_collector() -> None:
    """Let the garbage collector look less often, and not at what is there for good.

    A request leaves no cycles behind (a test sees to that), so there is next to nothing for it
    to find, and it would look several times a request: 3 % of what a short one costs.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


async def _serve(
    config: FleetConfig,
    doors: Doors,
    opened: open_router,
    saved: SavedState | None,
    *,
    keeps_journal: bool,
) -> None:
    opening = await open_doors(doors)
    async with opened as router:
        router.telemetry.metrics.add_process()
        servers = opening.servers(router)
        certificates = Certificates(doors.tls, router.telemetry)
        manager = ServiceManager(os.environ)

        async def drain() -> None:
            manager.stopping("draining")
            await router.drain(config.serving.graceful_timeout_s)
            async with trio.open_nursery() as drains:
                for server, _ in servers:
                    drains.start_soon(server.drain, _LAST_PAGES_S)

        async def begin_anew() -> None:
            router.reopen_journal()
            await certificates.reload()

        async with trio.open_nursery() as nursery:
            if keeps_journal or certificates:
                await nursery.start(at_hangup, begin_anew)
            await nursery.start(until_signalled, drain, nursery.cancel_scope)
            for server, listeners in servers:
                await nursery.start(server.serve, listeners)
            try:
                _greet(config, opening.urls, saved)
            except OSError:  # a full disk or a pipe that was closed: it is a courtesy
                drop_output()
            manager.ready(f"serving {config.model}")
            await manager.keep_alive()


def _greet(config: FleetConfig, urls: tuple[str, str], saved: SavedState | None) -> None:
    data, control = urls
    click.echo(f"narwhal-trio: serving {config.model} on {data} with {len(config.engines)} engines")
    if control != data:
        click.echo(f"narwhal-trio: control routes are on {control}")
    if config.recovery.resume:
        for line in resumed_lines(config, saved):
            click.echo(f"narwhal-trio: {line}")


def resumed_lines(config: FleetConfig, saved: SavedState | None) -> list[str]:
    """What a person is told of a resumed state."""
    path = config.recovery.state_path
    if saved is None:
        return [f"there is no {path} to resume; beginning with what the fleet file says"]
    when = datetime.fromtimestamp(saved.written_at, tz=UTC).isoformat(timespec="seconds")
    _, notes = with_roles(config, saved)
    out = [
        f"{engine.iid} is {state}: {reason}" if reason else f"{engine.iid} is {state}"
        for engine in saved.engines
        for state, reason in [standing(engine, config)]
        if state is not EngineState.SERVING
    ]
    return [f"resumed {path}, written {when}", *notes, *out]
