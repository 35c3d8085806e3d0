"""Byte streams on Trio, an HTTP/1.1 client pool, and a hardened Hypercorn server.

All I/O of the router goes through here, and all of it can be replaced: streams, listeners and
`connect` are arguments. Nothing in this package knows what an engine or a completion is.
"""

from narwhal.net.certificates import ServerTls
from narwhal.net.exchange import Exchange
from narwhal.net.memory import MemoryListener, MemoryNetwork
from narwhal.net.pipes import Link, MemoryStream
from narwhal.net.pool import ConnectionPool
from narwhal.net.server import ASGIApp, Server, ServerOptions
from narwhal.net.sockets import RawListener, RawStream, connect_tcp, open_listeners
from narwhal.net.streams import ByteStream, Connect, Listener
from narwhal.net.tls import TlsListener, TlsStream
from narwhal.net.transport import PooledTransport

__all__ = [
    "ASGIApp",
    "ByteStream",
    "Connect",
    "ConnectionPool",
    "Exchange",
    "Link",
    "Listener",
    "MemoryListener",
    "MemoryNetwork",
    "MemoryStream",
    "PooledTransport",
    "RawListener",
    "RawStream",
    "Server",
    "ServerOptions",
    "ServerTls",
    "TlsListener",
    "TlsStream",
    "connect_tcp",
    "open_listeners",
]
