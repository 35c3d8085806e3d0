"""The HTTP face of a router: routes, ingress limits, control endpoints, embedding."""

from narwhal.app.asgi import App
from narwhal.app.embed import open_router

__all__ = ["App", "open_router"]
