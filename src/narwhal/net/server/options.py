"""What can be set about the server, and the types of the applications it runs."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, TypeAlias

import attrs
from hypercorn.config import Config

Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
ASGIApp: TypeAlias = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]


@attrs.frozen(kw_only=True)
class ServerOptions:
    """Limits of the server. Times in seconds, sizes in bytes."""

    keep_alive_timeout: float = 75.0
    """Idle time after which a connection is closed. Longer than the 60 s of the usual load
    balancers, so that it is they who close, and no request meets a closing connection."""
    keep_alive_max_requests: int = sys.maxsize
    """Requests on one connection, after which its answer says `connection: close`."""
    header_timeout: float = 10.0
    """From the connection, or the first byte of a later request, to its complete head. A TLS
    handshake is part of it."""
    max_header_bytes: int = 65536
    """Request line and headers together, line ends too; more is answered with 431."""
    max_headers: int = 128
    """Header lines; more is answered with 431."""
    max_uri_bytes: int = 8192
    """The request target; more is answered with 414."""
    body_grace: float = 20.0
    """How long any body may take; one that takes longer is answered with 408, but for the next.
    This default is that of Apache's mod_reqtimeout, and so is the next."""
    min_body_rate: float = 500.0
    """Bytes per second: so many give a body another second. 0 for no limit."""
    receive_buffer_bytes: int = 65536
    """Body bytes held for an application that does not receive them. Above it the connection is
    not read, which makes the client wait; what one read brings may exceed it once."""
    max_pipelined_bytes: int = 65536
    """Bytes of later requests held while one is being answered. A client that sends more is
    treated as gone: not reading it on would mean not to notice when it leaves."""
    linger_timeout: float = 5.0
    """After an answer to a request that was not read to its end: how long the rest of it is
    read and dropped, so that the client gets to the answer instead of a reset."""
    linger_bytes: int = 8 * 1024 * 1024
    """The same as a number of bytes."""
    max_connections: int = 0
    """Connections at a time; above it new ones wait in the backlog. 0 for no limit."""
    include_date_header: bool = False
    """Whether answers carry `date`. It is taken from the wall clock."""
    include_server_header: bool = False
    """Whether answers carry `server`."""

    def hypercorn(self) -> Config:
        """Return these options as far as they are settings of Hypercorn."""
        config = Config()
        config.errorlog = None
        config.h11_max_incomplete_size = self.max_header_bytes
        config.keep_alive_timeout = self.keep_alive_timeout
        config.keep_alive_max_requests = self.keep_alive_max_requests
        config.include_date_header = self.include_date_header
        config.include_server_header = self.include_server_header
        return config


DEFAULT_OPTIONS = ServerOptions()
