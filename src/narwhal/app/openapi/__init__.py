"""What the router says of its own HTTP API: an OpenAPI document, made from what it serves."""

from narwhal.app.openapi.document import openapi_document

__all__ = ["openapi_document"]
