"""The certificates of `serve`: until when they hold, and new ones while it runs."""

from __future__ import annotations

import logging
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import trio

from narwhal.model import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from narwhal.net import ServerTls
    from narwhal.telemetry import Door, Telemetry

logger = logging.getLogger("narwhal.cli")

RELOAD_BOUND_S = 10.0
"""For files of some kilobytes: a disk that takes longer hangs, and the journal is to hear the next
signal."""


class Certificates:
    """What the listeners speak TLS with, loaded anew when somebody says so.

    Metrics have until when each certificate holds; one that does not any more is logged. False if
    no listener speaks TLS.
    """

    def __init__(
        self,
        tls: Mapping[Door, ServerTls],
        telemetry: Telemetry,
        *,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        """`tls` is what each listener that speaks TLS speaks it with, loaded already."""
        self._tls = tls
        self._telemetry = telemetry
        self._wall_clock = wall_clock
        for door in tls:
            self._tell(door)

    def __bool__(self) -> bool:
        return bool(self._tls)

    async def reload(self) -> None:
        """Read the files of each listener, for at most `RELOAD_BOUND_S` seconds a listener.

        Files that cannot be used are logged as an error, and leave that listener what it had.
        """
        for door, tls in self._tls.items():
            try:
                with trio.fail_after(RELOAD_BOUND_S):
                    await tls.reload()
            except ConfigError as error:
                self._keep(error.problems[0])
            except trio.TooSlowError:
                self._keep(f"{tls.source}: was not read within {RELOAD_BOUND_S:g} s")
            else:
                logger.info("%s: loaded anew; valid until %s", tls.source, _date(tls.expires_at))
                self._tell(door)

    def _keep(self, problem: str) -> None:
        logger.error(
            "%s; the certificate of before stays in use: mend that, and send SIGHUP again", problem
        )

    def _tell(self, door: Door) -> None:
        tls = self._tls[door]
        self._telemetry.certificate_loaded(door, tls.expires_at)
        if tls.expires_at <= self._wall_clock():
            logger.warning(
                "%s: expired on %s, and clients will not accept it: put a new one there and send "
                "SIGHUP",
                tls.source,
                _date(tls.expires_at),
            )


def _date(at: float) -> str:
    return datetime.fromtimestamp(at, tz=UTC).isoformat(timespec="seconds")
