"""The router's own servers: its applications with the limits of the fleet file."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from narwhal.net import ASGIApp, Server, ServerOptions, ServerTls
from narwhal.telemetry import Door

if TYPE_CHECKING:
    from narwhal.config import FleetConfig
    from narwhal.router import Router

MOST_CONTROL_CONNECTIONS = 128
"""Operators, probes and scrapers are few. A number of their own: clients cannot take it away."""


def data_server(router: Router, *, with_control: bool = True) -> Server:
    """A server for clients, with the limits of `serving` and `http`; those that fire are counted.

    `with_control` serves `router.app`, in which control routes are for connections to loopback
    addresses; otherwise `router.data_app`, which has none.
    """
    app = router.app if with_control else router.data_app
    most = router.config.serving.max_client_connections
    return _server(router, app, Door.DATA, most)


def control_server(router: Router) -> Server:
    """A server for operators: `router.control_app`, with the limits of `http`."""
    return _server(router, router.control_app, Door.CONTROL, MOST_CONTROL_CONNECTIONS)


def data_tls(config: FleetConfig) -> ServerTls | None:
    """What `serving.tls_*` make of the data listener; `None` for no TLS. Raises what that does."""
    serving = config.serving
    if serving.tls_cert_file is None:
        return None
    return ServerTls("serving", cert=serving.tls_cert_file, key=serving.tls_key_file)


def control_tls(config: FleetConfig) -> ServerTls | None:
    """The same for the control listener and `control.tls_*`."""
    control = config.control
    if control.tls_cert_file is None:
        return None
    return ServerTls(
        "control",
        cert=control.tls_cert_file,
        key=control.tls_key_file,
        client_ca=control.tls_client_ca_file,
    )


def _server(router: Router, app: ASGIApp, door: Door, most: int) -> Server:
    http = router.config.http
    options = ServerOptions(
        keep_alive_timeout=http.keep_alive_timeout_s,
        header_timeout=http.header_timeout_s,
        max_header_bytes=http.max_header_bytes,
        max_headers=http.max_headers,
        max_uri_bytes=http.max_uri_bytes,
        body_grace=http.body_grace_s,
        min_body_rate=http.min_body_bytes_per_s,
        max_connections=most,
    )
    told = partial(router.telemetry.client_limit_fired, door)
    return Server(app, options=options, told=told)
