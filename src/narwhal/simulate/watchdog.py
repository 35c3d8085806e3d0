"""The end of a world in which one step never ends: virtual time stands still for it."""

from __future__ import annotations

import signal
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType


AGAIN_S = 5.0


class Stuck(BaseException):
    """Raised into whatever runs too long. No `Exception`: nothing in the world may catch it."""


@contextmanager
def watchdog(seconds: float) -> Iterator[None]:
    """Raise `Stuck` into this block after so many seconds of real time.

    Only the main thread can be interrupted; in any other there is no watchdog.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def bark(_number: int, frame: FrameType | None) -> None:
        where = "" if frame is None else f": it is in {frame.f_code.co_qualname}"
        raise Stuck(f"a step did not end within {seconds:g} s of real time{where}")

    before = signal.signal(signal.SIGALRM, bark)
    # Again and again: as the first is being cleaned up, the next task may go round in circles.
    signal.setitimer(signal.ITIMER_REAL, seconds, min(seconds, AGAIN_S))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
