"""The listeners of `serve`: where clients come in, and where operators do."""

from __future__ import annotations

import logging
from contextlib import ExitStack
from typing import TYPE_CHECKING

import attrs

from narwhal import telemetry
from narwhal.app import control_server, control_tls, data_server, data_tls
from narwhal.cli.running import listen
from narwhal.config.binds import is_loopback, split_bind
from narwhal.net import TlsListener

if TYPE_CHECKING:
    from collections.abc import Sequence

    from narwhal.config import FleetConfig
    from narwhal.net import Listener, Server, ServerTls
    from narwhal.router import Router

logger = logging.getLogger("narwhal.cli")


@attrs.frozen
class Door:
    """One address to listen on, before anything listens."""

    host: str
    port: int
    advice: str
    """What to do if it cannot be had, to be read after "choose another"."""
    tls: ServerTls | None = None

    async def open(self) -> Sequence[Listener]:
        """Listen there; an address that cannot be had is one clear line and exit code 1."""
        listeners = await listen(self.host, self.port, advice=self.advice)
        if self.tls is None:
            return listeners
        return [TlsListener(listener, self.tls) for listener in listeners]

    def url(self, listeners: Sequence[Listener]) -> str:
        """How a person reaches it."""
        address, port = listeners[0].address
        shown = f"[{address}]" if ":" in address else address
        return f"{'http' if self.tls is None else 'https'}://{shown}:{port}"


@attrs.frozen
class Doors:
    """Where to listen, and for whom."""

    data: Door
    control: Door | None
    """`None` if control routes go where the data routes are, should only this machine reach that;
    else they go to `spare`."""
    spare: Door
    guarded: bool
    """Whether the control listener asks for a token or a certificate."""

    @classmethod
    def of(cls, config: FleetConfig, host: str, port: int) -> Doors:
        """Read from the settings, and TLS files; raises `ConfigError` if one cannot be used."""
        control, tls = config.control, control_tls(config)
        spare = Door("127.0.0.1", 0, "--control-bind", tls)
        own = None if tls is None else spare
        if control.bind is not None:
            own = Door(*split_bind(control.bind), "--control-bind (control.bind)", tls)
        guarded = bool(control.token_env or control.tls_client_ca_file)
        return cls(Door(host, port, "--host or --port", data_tls(config)), own, spare, guarded)

    @property
    def tls(self) -> dict[telemetry.Door, ServerTls]:
        """What the listeners that speak TLS speak it with."""
        both = {telemetry.Door.DATA: self.data, telemetry.Door.CONTROL: self.spare}
        return {name: door.tls for name, door in both.items() if door.tls is not None}


@attrs.frozen
class Opened:
    """Listeners that are bound, and owned by whoever has this until servers have them."""

    data: Sequence[Listener]
    control: Sequence[Listener]
    """Empty if control routes are on the data listener."""
    urls: tuple[str, str]
    """Of the data routes and of the control routes."""

    def servers(self, router: Router) -> list[tuple[Server, Sequence[Listener]]]:
        """Each server with its listeners."""
        servers = [(data_server(router, with_control=not self.control), self.data)]
        if self.control:
            servers.append((control_server(router), self.control))
        return servers


async def open_doors(doors: Doors) -> Opened:
    """Bind all listeners, or none: the first that cannot be bound ends the command."""
    with ExitStack() as stack:
        data = await _open(doors.data, stack)
        control, door = doors.control, doors.data
        if control is None and not _local(data):
            control = doors.spare
        steering: Sequence[Listener] = ()
        if control is not None:
            steering, door = await _open(control, stack), control
        if steering and not doors.guarded and not _local(steering):
            logger.warning(
                "control routes are on %s for everybody who reaches it: bind them to loopback, "
                "or set control.token_env",
                door.url(steering),
            )
        stack.pop_all()
    return Opened(data, steering, (doors.data.url(data), door.url(steering or data)))


async def _open(door: Door, stack: ExitStack) -> Sequence[Listener]:
    listeners = await door.open()
    for listener in listeners:
        stack.callback(listener.close)
    return listeners


def _local(listeners: Sequence[Listener]) -> bool:
    return all(is_loopback(listener.address[0]) for listener in listeners)
