"""Addresses of engines: what is accepted, and the one form they are kept in.

Written out instead of left to `urllib.parse.urlsplit`, which drops tabs and line breaks,
accepts spaces, and finds a host in text that no HTTP client would.
"""

from __future__ import annotations

import ipaddress
import re

import attrs

_URL = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://(?P<authority>[^/?#]*)(?P<rest>.*)")
_AUTHORITY = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::(?P<port>[0-9]{1,5}))?")
_PATH = re.compile(r"(?:/[A-Za-z0-9._~%!$&'()*+,;=:@-]*)*")
_DEFAULT_PORTS = {"http": 80, "https": 443}
_MAX_PORT = 65535

FORM = "must be http:// or https:// with a host and, if need be, a port"


@attrs.frozen
class Url:
    """The parts of an address; `host` is in lower case and without brackets."""

    scheme: str
    host: str
    port: int
    """As written, else the scheme's own."""
    path: str
    """Empty, or `/...` without a slash at the end."""


class BadUrl(ValueError):
    """Text that is no address of an engine. The message reads on from the setting's name."""


def split_url(text: str, *, path_allowed: bool = False) -> Url:
    """Take an address apart. Raises `BadUrl`, whose message never repeats a password.

    A single slash at the end says nothing and is dropped.
    """
    found = _URL.fullmatch(text)
    if found is None or found["scheme"].lower() not in _DEFAULT_PORTS:
        raise BadUrl(FORM)
    scheme = found["scheme"].lower()
    if "@" in found["authority"]:
        raise BadUrl(
            "must not carry a user name or password (the engines' key is read from the "
            "environment variable that engine.engine_api_key_env names)"
        )
    host, port = _split_authority(found["authority"])
    return Url(
        scheme=scheme,
        host=host,
        port=_DEFAULT_PORTS[scheme] if port is None else port,
        path=_checked_path(found["rest"], path_allowed=path_allowed),
    )


def canonical_url(text: str) -> str:
    """The form an address is kept in: lower case up to the path, no slash at the end.

    Text that is no address comes back as it is, for a validator to complain about.
    """
    found = _URL.fullmatch(text)
    if found is None:
        return text
    return f"{found['scheme']}://{found['authority']}".lower() + found["rest"].rstrip("/")


def _split_authority(authority: str) -> tuple[str, int | None]:
    found = _AUTHORITY.fullmatch(authority)
    if found is None:
        raise BadUrl(FORM)
    host = found["host"].lower()
    try:
        if host.startswith("["):
            host = str(ipaddress.IPv6Address(host[1:-1]))
        elif not host.strip("0123456789."):
            ipaddress.IPv4Address(host)
    except ValueError:
        raise BadUrl(f"{FORM} ({host} is no IP address)") from None
    port = None if found["port"] is None else int(found["port"])
    if port is not None and not 1 <= port <= _MAX_PORT:
        raise BadUrl(f"must have a port between 1 and {_MAX_PORT}, not {port}")
    return host, port


def _checked_path(rest: str, *, path_allowed: bool) -> str:
    if "?" in rest or "#" in rest:
        raise BadUrl("must not have a query or a fragment")
    path = rest.rstrip("/")
    if path and not path_allowed:
        raise BadUrl("must not have a path (the router adds the paths of the engine's API)")
    if not _PATH.fullmatch(path):
        raise BadUrl("must have a path without spaces or other characters that URLs do not take")
    return path
