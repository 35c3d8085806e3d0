"""The kinds of text that settings hold. A field says its kind with `Annotated`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated

import attrs

from narwhal.config.binds import BadBind, split_bind
from narwhal.config.urls import BadUrl, split_url

if TYPE_CHECKING:
    from collections.abc import Callable

# An engine's `iid` is a label of a dozen metrics and a key of the state document: these
# characters need no escape in either, nor in a URL or a shell.
_ENGINE_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,63}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_MAX_NAME = 256


@attrs.frozen(kw_only=True)
class TextKind:
    """What a text setting must look like."""

    name: str
    """For the reference: what kind of text it is."""
    form: str
    """For the reference: what is accepted; empty when any text is."""
    complaint: Callable[[str], str | None]
    """What is wrong with a text, to be read after the setting's name; `None` if nothing is."""
    from_environ: bool = False
    """Whether a file may write `${NAME}` for it."""
    names_variable: bool = False
    """Whether it names an environment variable that must exist when a file is loaded."""
    several: bool = False
    """Whether that variable may hold several keys."""


def _name_complaint(text: str) -> str | None:
    if not text.strip():
        return "must not be empty"
    if not text.isprintable():
        return "must not hold control characters"
    if len(text) > _MAX_NAME:
        return f"must be at most {_MAX_NAME} characters long"
    return None


def _file_complaint(text: str) -> str | None:
    if not text.strip():
        return "must not be empty"
    return None if text.isprintable() else "must not hold control characters"


def _id_complaint(text: str) -> str | None:
    if _ENGINE_ID.fullmatch(text):
        return None
    return (
        "must be 1 to 64 letters, digits, '.', '_', ':' or '-', a letter or digit first (it "
        "becomes a metric label)"
    )


def _url_complaint(text: str) -> str | None:
    try:
        split_url(text)
    except BadUrl as bad:
        return str(bad)
    return None


def _url_with_path_complaint(text: str) -> str | None:
    try:
        split_url(text, path_allowed=True)
    except BadUrl as bad:
        return str(bad)
    return None


def _bind_complaint(text: str) -> str | None:
    try:
        split_bind(text)
    except BadBind as bad:
        return str(bad)
    return None


def _collector_complaint(text: str) -> str | None:
    if "@" in text:
        return (
            "must not carry a user name or password (OTEL_EXPORTER_OTLP_HEADERS in the router's "
            "environment has the headers)"
        )
    return _url_with_path_complaint(text)


def _variable_complaint(text: str) -> str | None:
    if _VARIABLE.fullmatch(text):
        return None
    return (
        "must be the name of an environment variable (letters, digits and '_', no digit first), "
        "not the key itself"
    )


Name = Annotated[str, TextKind(name="text", form="printable, not empty", complaint=_name_complaint)]
FilePath = Annotated[str, TextKind(name="path", form="not empty", complaint=_file_complaint)]
EngineId = Annotated[
    str,
    TextKind(
        name="text",
        form="1 to 64 of `A-Z a-z 0-9 . _ : -`, a letter or digit first; unique",
        complaint=_id_complaint,
    ),
]
EngineUrl = Annotated[
    str,
    TextKind(
        name="URL",
        form="`http` or `https`, host, optional port; or one whole `${NAME}`",
        complaint=_url_complaint,
        from_environ=True,
    ),
]
UrlWithPath = Annotated[
    str,
    TextKind(
        name="URL",
        form="`http` or `https`, host, optional port and path; or one whole `${NAME}`",
        complaint=_url_with_path_complaint,
        from_environ=True,
    ),
]
CollectorUrl = Annotated[
    str,
    TextKind(
        name="URL",
        form="`http` or `https`, host, optional port and path; or one whole `${NAME}`",
        complaint=_collector_complaint,
        from_environ=True,
    ),
]
VariableName = Annotated[
    str,
    TextKind(
        name="name of an environment variable",
        form="must be set and not empty when the file is loaded",
        complaint=_variable_complaint,
        names_variable=True,
    ),
]
KeysVariableName = Annotated[
    str,
    TextKind(
        name="name of an environment variable",
        form="must hold a key, or several with commas or line breaks in between, when the file is "
        "loaded",
        complaint=_variable_complaint,
        names_variable=True,
        several=True,
    ),
]
Bind = Annotated[
    str, TextKind(name="address", form="`HOST:PORT`; `[::1]:9000`", complaint=_bind_complaint)
]
