"""Stock Hypercorn and stock httpcore on the network in memory.

They are here so that the reason for each of our overrides is on record as a test that fails
without it. Where upstream repairs something, its strict xfail turns into a failure, and the
override can be looked at again.
"""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any

import httpcore
import trio
from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.config import Config
from hypercorn.trio.tcp_server import TCPServer
from hypercorn.trio.worker_context import WorkerContext

if TYPE_CHECKING:
    from collections.abc import Sequence

    from narwhal.net import ASGIApp, ByteStream, Listener, MemoryNetwork


class _Socket:
    family = socket.AF_INET

    def __init__(self, stream: ByteStream) -> None:
        self._stream = stream

    def getpeername(self) -> tuple[str, int]:
        return self._stream.peer

    def getsockname(self) -> tuple[str, int]:
        return self._stream.local


class StockStream:
    """A byte stream with the methods of a `trio.SocketStream` that Hypercorn uses."""

    def __init__(self, stream: ByteStream) -> None:
        self._stream = stream
        self.socket = _Socket(stream)

    async def send_all(self, data: bytes) -> None:
        await self._stream.send_all(bytes(data))
        await trio.lowlevel.checkpoint()

    async def receive_some(self, max_bytes: int) -> bytes:
        return await self._stream.receive_some(max_bytes)

    async def send_eof(self) -> None:
        self._stream.send_eof()
        await trio.lowlevel.checkpoint()

    async def aclose(self) -> None:
        self._stream.close()
        await trio.lowlevel.checkpoint()


class StockServer:
    """Hypercorn's own connection handler, in a nursery as `hypercorn.trio.serve` has it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app: Any = ASGIWrapper(app)  # type: ignore[arg-type]  # the same, typed loosely
        self._config = Config()
        self._config.errorlog = None
        self._context = WorkerContext(None)
        self.connections = 0
        self.requests = 0

    async def serve(
        self,
        listeners: Sequence[Listener],
        *,
        task_status: trio.TaskStatus[None],
    ) -> None:
        async with trio.open_nursery() as nursery:
            task_status.started()
            while True:
                stream = await listeners[0].accept()
                nursery.start_soon(self._handle, stream)

    async def _handle(self, stream: ByteStream) -> None:
        self.connections += 1
        adapted: Any = StockStream(stream)
        try:
            await TCPServer(self._app, self._config, self._context, {}, adapted)
        finally:
            self.connections -= 1
            stream.close()


class StockNetwork(httpcore.AsyncNetworkBackend):
    """Lets httpcore connect over a `MemoryNetwork`."""

    def __init__(self, network: MemoryNetwork) -> None:
        self._network = network

    async def connect_tcp(self, host: str, port: int, *args: Any, **kwargs: Any) -> Any:
        try:
            return _NetworkStream(await self._network.connect(host, port))
        except OSError as error:
            raise httpcore.ConnectError(str(error)) from error

    async def sleep(self, seconds: float) -> None:
        await trio.sleep(seconds)


class _NetworkStream(httpcore.AsyncNetworkStream):
    def __init__(self, stream: ByteStream) -> None:
        self._stream = stream

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ASYNC109 - httpcore's signature
        try:
            return await self._stream.receive_some(max_bytes)
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise httpcore.ReadError(str(error)) from error

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ASYNC109 - httpcore's signature
        try:
            await self._stream.send_all(buffer)
            await trio.lowlevel.checkpoint()
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise httpcore.WriteError(str(error)) from error

    async def aclose(self) -> None:
        self._stream.close()
        await trio.lowlevel.checkpoint()

    def get_extra_info(self, info: str) -> Any:
        return self._stream.stale() if info == "is_readable" else None
