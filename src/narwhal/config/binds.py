"""Addresses to listen on, written `HOST:PORT`."""

from __future__ import annotations

import ipaddress
import re

_BIND = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):(?P<port>[0-9]{1,5})")
_MAX_PORT = 65535

FORM = "must be HOST:PORT, such as 127.0.0.1:9000 or [::1]:9000; port 0 takes a free one"


class BadBind(ValueError):
    """Text that is no address to listen on. The message reads on from the setting's name."""


def split_bind(text: str) -> tuple[str, int]:
    """Host, without brackets, and port. Raises `BadBind`."""
    found = _BIND.fullmatch(text)
    if found is None:
        raise BadBind(FORM)
    host, port = found["host"], int(found["port"])
    if port > _MAX_PORT:
        raise BadBind(f"must have a port of at most {_MAX_PORT}, not {port}")
    if host.startswith("["):
        try:
            host = str(ipaddress.IPv6Address(host[1:-1]))
        except ValueError:
            raise BadBind(f"{FORM} ({host} is no IP address)") from None
    return host, port


def is_loopback(host: str) -> bool:
    """Whether `host` is an IP address that only this machine reaches; a name is none."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


def is_address(host: str) -> bool:
    """Whether `host` is an IP address and no name."""
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return True
