"""Asking an engine something, and in words what came instead of an answer."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, TypeVar

import attrs
import trio

from narwhal.model import (
    ConnectFailed,
    EngineClosed,
    EngineError,
    EngineStatus,
    LocalError,
)
from narwhal.wire.errors import answered

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

T = TypeVar("T")

NOT_ALLOWED = (401, 403)
"""Statuses that speak of the key."""


class Kind(StrEnum):
    """What kind of trouble an engine gave."""

    UNREACHABLE = "unreachable"
    """No connection."""
    SILENT = "silent"
    """No answer in time."""
    CLOSED = "closed"
    """It broke off."""
    REFUSED = "refused"
    """A status that says no."""
    KEY = "key"
    """401 or 403."""
    GARBAGE = "garbage"
    """An answer that makes no sense."""
    LOCAL = "local"
    """Something ran out on this side."""


@attrs.frozen(kw_only=True)
class Trouble:
    """What came instead of an answer."""

    kind: Kind
    text: str
    status: int | None = None


@attrs.frozen
class Bound:
    """How long an answer may take, and the setting that says so."""

    seconds: float
    setting: str

    def __str__(self) -> str:
        return f"{self.seconds:g} s ({self.setting})"


async def ask(call: Callable[[], Awaitable[T]], bound: Bound, what: str) -> T | Trouble:
    """Await `call` for as long as `bound` allows. No error of an engine is raised.

    `what` is what was asked for, for people. A cancel closes the connection.
    """
    try:
        with trio.fail_after(bound.seconds):
            return await call()
    except trio.TooSlowError:
        return Trouble(kind=Kind.SILENT, text=f"{what}: no answer within {bound}")
    except EngineStatus as error:
        return _by_status(error, what)
    except ConnectFailed as error:
        return Trouble(kind=Kind.UNREACHABLE, text=f"{what}: {error}")
    except EngineClosed as error:
        return Trouble(kind=Kind.CLOSED, text=f"{what}: {error}")
    except EngineError as error:
        return Trouble(kind=Kind.GARBAGE, text=f"{what}: {error}")
    except LocalError as error:
        return Trouble(kind=Kind.LOCAL, text=f"{what}: {error}")


def _by_status(error: EngineStatus, what: str) -> Trouble:
    status = error.engine_status
    text = f"{what}: {answered(status, error.body)}"
    kind = Kind.KEY if status in NOT_ALLOWED else Kind.REFUSED
    return Trouble(kind=kind, text=text, status=status)
