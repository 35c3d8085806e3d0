"""The pool behind httpx, for traffic where convenience counts more than microseconds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

import httpx

if TYPE_CHECKING:
    from narwhal.net.exchange import Exchange
    from narwhal.net.pool import ConnectionPool

REPLAYABLE_METHODS = frozenset({"GET", "HEAD"})
"""Methods a server may see twice; of others say `extensions={"narwhal.replayable": True}`."""


class ExchangeBody(httpx.AsyncByteStream):
    """The body of a response. A class with `__anext__`, not an async generator.

    A generator that is abandoned in the middle is finished by the garbage collector, at some
    time or other; this closes with the response, at once.
    """

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        data = await self._exchange.read()
        if not data:
            raise StopAsyncIteration
        return data

    async def aclose(self) -> None:
        """Give the connection back, or close it. Does not block and cannot be cancelled."""
        self._exchange.close()


class PooledTransport(httpx.AsyncBaseTransport):
    """An httpx transport to the one server of a `ConnectionPool`, whatever host the URL names.

    Errors are the pool's own (`narwhal.model`), not httpx's. Time-outs given to httpx are
    ignored: the pool bounds waiting and connecting, and everything else is for the caller's
    cancel scopes. Closing the transport closes the pool.
    """

    def __init__(self, pool: ConnectionPool) -> None:
        self._pool = pool

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send `request` and return its response, body unread."""
        replayable = request.extensions.get(
            "narwhal.replayable",
            request.method in REPLAYABLE_METHODS,
        )
        data = _serialise(request, await request.aread())
        exchange = await self._pool.send(data, replayable=replayable)
        try:
            status = await exchange.response()
        except BaseException:
            exchange.close()
            raise
        return httpx.Response(status, headers=exchange.headers, stream=ExchangeBody(exchange))

    async def aclose(self) -> None:
        """Close the pool. Does not block."""
        self._pool.close()


def _serialise(request: httpx.Request, body: bytes) -> bytes:
    """Return the bytes of `request`, with a length in place of whatever framing httpx chose."""
    parts = [b"%b %b HTTP/1.1\r\n" % (request.method.encode("ascii"), request.url.raw_path)]
    for name, value in request.headers.raw:
        if name.lower() not in {b"transfer-encoding", b"content-length"}:
            parts.append(b"%b: %b\r\n" % (name, value))
    if body or request.method not in REPLAYABLE_METHODS:
        parts.append(b"content-length: %d\r\n" % len(body))
    parts.append(b"\r\n")
    parts.append(body)
    return b"".join(parts)
