"""A router for LLM fleets that split prefill from decode, in which every limit is a cancel scope.

Operators run `narwhal-trio serve`. Applications open a router in a block of their own:

    fleet = narwhal.load_fleet("fleet.json", environ=os.environ)
    async with narwhal.open_router(fleet) as router:
        async with router.stream({"model": "m", "messages": [...]}) as events:
            async for event in events:
                ...
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from narwhal.config import FleetConfig, load_fleet, parse_fleet
from narwhal.model import (
    ConfigError,
    Limit,
    NarwhalError,
    Outcome,
    Phase,
    RequestFailed,
    Role,
    Route,
    Terminal,
)
from narwhal.model.version import __version__

if TYPE_CHECKING:
    from narwhal.app import open_router
    from narwhal.router import Router

__all__ = [
    "ConfigError",
    "FleetConfig",
    "Limit",
    "NarwhalError",
    "Outcome",
    "Phase",
    "RequestFailed",
    "Role",
    "Route",
    "Router",
    "Terminal",
    "__version__",
    "load_fleet",
    "open_router",
    "parse_fleet",
]


def __getattr__(name: str) -> object:
    # Importing any part of the package runs this module first; it should not load all of it.
    if name == "open_router":
        from narwhal.app import open_router  # noqa: PLC0415 - see above

        return open_router
    if name == "Router":
        from narwhal.router import Router  # noqa: PLC0415 - see above

        return Router
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
