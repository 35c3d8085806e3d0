"""Reading an engine's answers up to the point where they mean something."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from narwhal.model import EngineStatus, ResponseTooLarge

if TYPE_CHECKING:
    from narwhal.net import Exchange

OK = 200
# Error bodies of the dialect are a few hundred bytes; validation errors quote the request.
MAX_ERROR_BYTES = 65536


async def raise_status(exchange: Exchange) -> NoReturn:
    """For an answer whose head has another status than 200: `EngineStatus`, with its body."""
    try:
        body = await exchange.read_all(MAX_ERROR_BYTES)
    except ResponseTooLarge:
        body = b""  # no error of the dialect is that long: the status has to do
    raise EngineStatus(exchange.status, body, retry_after=retry_after(exchange.headers))


def retry_after(headers: list[tuple[bytes, bytes]]) -> float | None:
    """The engine's Retry-After in seconds; the HTTP-date form and nonsense count as absent."""
    for name, value in headers:
        if name == b"retry-after" and value.isdigit():
            return float(value[:6])
    return None
