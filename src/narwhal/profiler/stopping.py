"""Why measuring an engine was given up."""

from __future__ import annotations

from enum import StrEnum

from narwhal.model import Fault, NarwhalError


class Reason(StrEnum):
    """What kind of trouble it was."""

    BUSY = "busy"
    """The engine had other work to do."""
    UNREACHABLE = "unreachable"
    """It could not be reached, or broke off."""
    REFUSED = "refused"
    """It answered that it will not, or something that is no answer."""
    TOO_SLOW = "too_slow"
    """It took longer than a limit of the fleet file."""
    TOO_SHORT = "too_short"
    """What is to be measured does not fit its context or its memory."""
    RESTARTED = "restarted"
    """It was not the same process at the end."""
    BAD_FIT = "bad_fit"
    """What was measured does not follow the model."""


class ProfilingStopped(NarwhalError):
    """An engine was not measured to the end; the message says which, why, and what to do."""

    fault = Fault.OPERATOR
    code = "profiling_stopped"

    def __init__(self, iid: str, reason: Reason, text: str) -> None:
        super().__init__(f"{iid}: {text}")
        self.iid = iid
        self.reason = reason
