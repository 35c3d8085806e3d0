"""The HTTP face of a router: routes, ingress limits, control endpoints, embedding."""

from narwhal.app.access import Access
from narwhal.app.asgi import App
from narwhal.app.embed import open_router
from narwhal.app.servers import control_server, control_tls, data_server, data_tls

__all__ = [
    "Access",
    "App",
    "control_server",
    "control_tls",
    "data_server",
    "data_tls",
    "open_router",
]
