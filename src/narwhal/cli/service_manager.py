"""What a service manager such as systemd is told: that the router is ready, stops, and is alive.

The protocol is `sd_notify(3)`: lines in a datagram to the socket that `NOTIFY_SOCKET` names.
"""

from __future__ import annotations

import logging
import os
import socket
from typing import TYPE_CHECKING

import trio

if TYPE_CHECKING:
    from collections.abc import Mapping

logger = logging.getLogger("narwhal.cli")

_MICRO = 1e-6


class ServiceManager:
    """Whoever started this process, if it wants to be told. Without one, nothing is done.

    Telling never blocks and never fails: a router serves, whether or not anybody hears of it. What
    could not be told is logged once.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        """`environ` is the process' environment, which says where to and how often."""
        self._address = environ.get("NOTIFY_SOCKET", "")
        self._failed = False
        self.watchdog_s = self._watchdog_s(environ)
        """Seconds without a word after which the process is taken for hung; 0: it is not."""

    def _watchdog_s(self, environ: Mapping[str, str]) -> float:
        micros, pid = environ.get("WATCHDOG_USEC", ""), environ.get("WATCHDOG_PID", "")
        if not self._address or not micros.isdigit() or pid not in ("", str(os.getpid())):
            return 0.0
        return int(micros) * _MICRO

    def ready(self, status: str) -> None:
        """It serves; `status` is for people."""
        self._tell("READY=1", f"STATUS={status}")

    def stopping(self, status: str) -> None:
        """It was told to end, and begins to."""
        self._tell("STOPPING=1", f"STATUS={status}")

    async def keep_alive(self) -> None:
        """Say that the event loop runs, twice in each `watchdog_s`, until cancelled."""
        while self.watchdog_s:
            self._tell("WATCHDOG=1")
            await trio.sleep(self.watchdog_s / 2)

    def _tell(self, *lines: str) -> None:
        if not self._address:
            return
        # An `@` stands for the zero byte of the abstract namespace.
        address = "\0" + self._address[1:] if self._address[0] == "@" else self._address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as out:
                out.setblocking(False)
                out.sendto("\n".join(lines).encode(), address)
        except OSError as error:
            if not self._failed:
                reason = error.strerror or str(error)
                logger.warning("NOTIFY_SOCKET is %s: %s", self._address, reason)
            self._failed = True
