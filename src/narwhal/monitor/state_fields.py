"""The plain fields of a state document, as the strict reader wants them declared."""

# Annotations are looked at as types here, so they must not be texts.

from enum import StrEnum
from typing import Annotated

import attrs

from narwhal.config.bounds import Bounds
from narwhal.config.settings import about, checked
from narwhal.config.texts import EngineId, EngineUrl, Name, TextKind
from narwhal.fleet import EngineState
from narwhal.model import Role
from narwhal.roles import Risk

# As far as calendars go.
_TIMES = Bounds(low=0, high=253402300799)


def _any_text(text: str) -> str | None:
    surrogates = any("\ud800" <= each <= "\udfff" for each in text)
    return "must be Unicode text, without half a surrogate pair" if surrogates else None


def _choice(kind: type[StrEnum]) -> TextKind:
    choices = ", ".join(f'"{each}"' for each in kind)
    return TextKind(
        name="text",
        form=f"one of {choices}",
        complaint=lambda text: None if text in list(kind) else f"must be one of {choices}",
    )


_Text = Annotated[str, TextKind(name="text", form="any", complaint=_any_text)]
_RoleName = Annotated[str, _choice(Role)]
_RiskName = Annotated[str, _choice(Risk)]
_StateName = Annotated[str, _choice(EngineState)]


@attrs.frozen(kw_only=True, field_transformer=checked)
class EngineFields:
    """An entry of `engines`."""

    iid: EngineId = attrs.field(metadata=about("Its name."))
    url: EngineUrl = attrs.field(metadata=about("Its address."))
    role: _RoleName = attrs.field(metadata=about("Its role."))
    state: _StateName = attrs.field(metadata=about("Its state."))
    reason: _Text = attrs.field(default="", metadata=about("Why it is in that state."))
    version: _Text | None = attrs.field(default=None, metadata=about("Of its process."))
    process_start_s: float | None = attrs.field(
        default=None, metadata=about("When its process started.", unit="s")
    )


@attrs.frozen(kw_only=True, field_transformer=checked)
class HeadFields:
    """What a document says of itself."""

    written_at: float = attrs.field(metadata=about("When it was written.", unit="s", bounds=_TIMES))
    model: Name = attrs.field(metadata=about("The fleet's model."))
    risk: _RiskName | None = attrs.field(
        default=None, metadata=about("What evidence for role control was last collected anew for.")
    )
    risk_at: float | None = attrs.field(
        default=None, metadata=about("When that was.", unit="s", bounds=_TIMES)
    )
