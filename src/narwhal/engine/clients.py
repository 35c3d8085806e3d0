"""The clients of a fleet's engines, each with its pools of connections."""

from __future__ import annotations

import ssl
from functools import partial
from typing import TYPE_CHECKING

from narwhal.config import engine_api_key
from narwhal.engine.client import EngineClient, EnginePools
from narwhal.net import ConnectionPool, connect_tcp

if TYPE_CHECKING:
    from collections.abc import Mapping

    from narwhal.config import FleetConfig
    from narwhal.net import Connect

# Counting takes an engine's front end a millisecond or so; more at once would only queue there.
_COUNTING_CONNECTIONS = 32


def engine_clients(
    config: FleetConfig,
    *,
    environ: Mapping[str, str],
    connect: Connect = connect_tcp,
    data_connections: int,
) -> dict[str, EngineClient]:
    """A client for every engine of the fleet, by `iid`; no connection is opened yet.

    `data_connections` is how many legs an engine may have at one time. Whoever asked for the
    clients closes them. Raises `ConfigError` if the variable with the engines' key is not set.
    """
    settings = config.engine
    key = engine_api_key(config, environ)
    clients = {}
    for spec in config.engines:
        pool = partial(
            ConnectionPool,
            spec.host,
            spec.port,
            connect=connect,
            pool_timeout=settings.pool_timeout_s,
            connect_timeout=settings.connect_timeout_s,
            tls=ssl.create_default_context() if spec.scheme == "https" else None,
        )
        pools = EnginePools(
            data=pool(limit=data_connections),
            counting=pool(limit=min(config.serving.max_connections, _COUNTING_CONNECTIONS)),
            control=pool(limit=-(-config.control_connections // len(config.engines))),
        )
        clients[spec.iid] = EngineClient(
            spec, pools, api_key=key, max_response_bytes=config.serving.max_response_bytes
        )
    return clients
