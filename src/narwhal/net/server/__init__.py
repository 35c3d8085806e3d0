"""Hypercorn, hardened: an ASGI server for HTTP/1.1 that no client can hold or bring down.

Hypercorn 0.18 gives the frame and h11 the parser of requests; the classes here replace what of it
a router of long streams cannot live with, the writing of responses among it. Each class says what
it changes and why, and tests/net holds each change against the stock server.
"""

from narwhal.net.server.options import ASGIApp, ServerOptions
from narwhal.net.server.server import Server

__all__ = ["ASGIApp", "Server", "ServerOptions"]
