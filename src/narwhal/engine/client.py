"""The client of one engine."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import attrs
import httpx
import msgspec
import trio

from narwhal.engine.answers import OK, raise_status
from narwhal.engine.decode import DecodeLeg
from narwhal.engine.gauges import read_gauges, read_kv_counters, read_process
from narwhal.model import EngineProtocolError, EngineStatus, NarwhalError, Route
from narwhal.net import ConnectionPool, PooledTransport
from narwhal.wire import vllm
from narwhal.wire.trace_context import TraceContext

if TYPE_CHECKING:
    from collections.abc import Callable

    from narwhal.config import EngineSpec
    from narwhal.engine.gauges import Gauges, KvCounters, Process
    from narwhal.net import Exchange

PATHS = {Route.COMPLETIONS: b"/v1/completions", Route.CHAT: b"/v1/chat/completions"}


class Correlation(msgspec.Struct, frozen=True):
    """What ties a leg to its request in other people's logs."""

    request_id: str
    """The backend id of this leg: fresh for every attempt, never the client's."""
    context: TraceContext | None = None
    """The trace that it is part of."""


class Served(msgspec.Struct, frozen=True):
    """A model that an engine serves."""

    id: str
    """As requests have to name it."""
    root: str | None = None
    """What it was loaded from."""
    max_model_len: int | None = None
    """Tokens of its context."""


@attrs.frozen
class EnginePools:
    """The pools of one engine, apart so that none can starve another.

    Requests that wait to be admitted are counted while those that are being served hold every
    data connection; probes must get through in any case.
    """

    data: ConnectionPool
    counting: ConnectionPool
    control: ConnectionPool

    def close(self) -> None:
        """Close every connection, synchronously."""
        self.data.close()
        self.counting.close()
        self.control.close()


class PrefillReply(NamedTuple):
    """An engine's whole answer."""

    body: bytes
    answered: float
    """When its head had come (Trio's clock): a slow body does not make the answer younger."""


class EngineClient:
    """Calls one engine.

    Serving legs write prepared bytes on pooled connections; control calls go through httpx on
    a pool of their own. Every method raises the `EngineError` and `LocalError` classes of
    `narwhal.model` and nothing else.
    """

    def __init__(
        self, spec: EngineSpec, pools: EnginePools, *, api_key: str | None, max_response_bytes: int
    ) -> None:
        self.iid = spec.iid
        self.role = spec.role
        self.pools = pools
        self._max_response_bytes = max_response_bytes
        self._base = httpx.URL(spec.url)
        self._transport = PooledTransport(pools.control)
        self._auth = {"authorization": f"Bearer {api_key}"} if api_key else {}
        authority = self._base.netloc
        head = b" HTTP/1.1\r\nhost: %b\r\ncontent-type: application/json\r\n" % authority
        if api_key:
            head += b"authorization: Bearer %b\r\n" % api_key.encode("ascii")
        self._heads = {path: b"POST " + path + head for path in (*PATHS.values(), b"/tokenize")}

    def close(self) -> None:
        """Close all connections to the engine, synchronously."""
        self.pools.close()

    # Serving

    def _pool(self, *, control: bool) -> ConnectionPool:
        return self.pools.control if control else self.pools.data

    def _request(self, path: bytes, body: bytes, correlation: Correlation | None) -> bytes:
        extra = b""
        if correlation is not None:
            extra = b"x-request-id: %b\r\n" % correlation.request_id.encode("ascii")
            if correlation.context is not None:
                extra += correlation.context.head
        return b"%b%bcontent-length: %d\r\n\r\n%b" % (self._heads[path], extra, len(body), body)

    async def tokenize(self, body: bytes) -> int:
        """The prompt's exact length in tokens."""
        answer = await self._call(self.pools.counting, b"/tokenize", body, None)
        return vllm.parse_tokenize(answer.body)

    async def token_ids(self, body: bytes) -> vllm.TokenIds:
        """The prompt's tokens themselves, and how long the engine's context is."""
        answer = await self._call(self.pools.counting, b"/tokenize", body, None)
        return vllm.parse_token_ids(answer.body)

    async def prefill(
        self,
        route: Route,
        body: bytes,
        correlation: Correlation,
        *,
        on_answer: Callable[[float], None],
        on_late: Callable[[PrefillReply], None],
        on_slot: Callable[[], None] | None = None,
        control: bool = False,
    ) -> PrefillReply:
        """Run a prefill leg; the engine's whole answer, which holds the handoff.

        `on_answer` is told when the head of a 200 has come. From then on the engine has pinned
        KV cache, and takes no notice of a client that goes, whatever becomes of the body.
        `on_late` is given an answer that is all there, but was not read when a cancel came.
        `on_slot` is called when the leg no longer waits for a connection of the pool, which is that
        of the control calls if `control`.
        """
        return await self._call(
            self._pool(control=control),
            PATHS[route],
            body,
            correlation,
            on_answer=on_answer,
            on_late=on_late,
            on_slot=on_slot,
        )

    async def _call(
        self,
        pool: ConnectionPool,
        path: bytes,
        body: bytes,
        correlation: Correlation | None,
        *,
        on_answer: Callable[[float], None] | None = None,
        on_late: Callable[[PrefillReply], None] | None = None,
        on_slot: Callable[[], None] | None = None,
    ) -> PrefillReply:
        request = self._request(path, body, correlation)
        with await pool.send(request, replayable=True, on_slot=on_slot) as exchange:
            try:
                if await exchange.response() != OK:
                    await raise_status(exchange)
                answered = trio.current_time()
                if on_answer is not None:
                    on_answer(answered)
                return PrefillReply(await exchange.read_all(self._max_response_bytes), answered)
            except trio.Cancelled:
                if on_late is not None and (late := _late_answer(exchange)) is not None:
                    on_late(PrefillReply(late, trio.current_time()))
                raise

    async def dispatch_decode(
        self,
        route: Route,
        body: bytes,
        correlation: Correlation,
        *,
        on_slot: Callable[[], None],
        before_write: Callable[[], None],
        control: bool = False,
    ) -> DecodeLeg:
        """Write a decode request; returns as soon as all of it is with the kernel.

        `on_slot` is called when the leg no longer waits for a connection of the pool, which is that
        of the control calls if `control`.

        `before_write` runs when a connection is at hand, immediately before the first byte
        leaves: the last moment to raise because the handoff has grown too old. Not replayed
        once a byte was written: the decoder may have pulled the KV cache.
        """
        request = self._request(PATHS[route], body, correlation)
        exchange = await self._pool(control=control).send(
            request, replayable=False, on_slot=on_slot, before_write=before_write
        )
        return DecodeLeg(exchange)

    def dispatch_decode_nowait(
        self,
        route: Route,
        body: bytes,
        correlation: Correlation,
        *,
        on_slot: Callable[[], None],
        before_write: Callable[[], None],
    ) -> DecodeLeg | None:
        """As `dispatch_decode` if a connection is idle, else `None`: nothing was done.

        A leg that is still `unsent` has to be sent on with `DecodeLeg.send_rest`.
        """
        exchange = self.pools.data.send_nowait(
            self._request(PATHS[route], body, correlation),
            replayable=False,
            on_slot=on_slot,
            before_write=before_write,
        )
        return None if exchange is None else DecodeLeg(exchange)

    async def release(self, body: bytes, correlation: Correlation) -> None:
        """Send a leg that nobody needs the answer of, so that this decoder frees the producer's KV.

        An answer of any kind but "busy" or a server error will do: a real engine frees the
        producer even when it answers 400. Raises `EngineStatus` otherwise.
        """
        request = self._request(PATHS[Route.COMPLETIONS], body, correlation)
        with await self.pools.data.send(request, replayable=True) as exchange:
            try:
                if await exchange.response() != OK:
                    await raise_status(exchange)
            except EngineStatus as error:
                if not 400 <= error.engine_status < 429:  # noqa: PLR2004 - 4xx but not "busy"
                    raise

    # Control

    async def health(self) -> bool:
        """Whether `/health` answers 200."""
        return await self.health_status() == OK

    async def health_status(self) -> int:
        """The status that `/health` answers."""
        status, _ = await self._get("/health")
        return status

    async def version(self) -> str:
        """The engine's version, from `/version`."""
        body = await self._get_ok("/version")
        try:
            return msgspec.json.decode(body, type=_Version).version
        except msgspec.MsgspecError as error:
            raise EngineProtocolError(f"{self.iid}: /version answered no version") from error

    async def process(self) -> Process:
        """What `/metrics` says of the engine's process and how that is set up."""
        return read_process(await self._get_ok("/metrics"))

    async def gauges(self) -> Gauges:
        """What `/metrics` says of the engine's work, memory and process, all in one reading."""
        return read_gauges(await self._get_ok("/metrics"))

    async def kv_counters(self) -> KvCounters:
        """What `/metrics` says of KV cache that was handed over."""
        return read_kv_counters(await self._get_ok("/metrics"))

    async def models(self) -> bytes:
        """The body of `/v1/models`."""
        return await self._get_ok("/v1/models")

    async def served(self) -> list[Served]:
        """The models that it serves, from `/v1/models`."""
        try:
            return msgspec.json.decode(await self.models(), type=_Models).data
        except msgspec.MsgspecError as error:
            raise EngineProtocolError(f"{self.iid}: /v1/models answered no list") from error

    async def _get_ok(self, path: str) -> bytes:
        status, body = await self._get(path)
        if status != OK:
            raise EngineStatus(status, body, retry_after=None)
        return body

    async def _get(self, path: str) -> tuple[int, bytes]:
        request = httpx.Request("GET", self._base.join(path), headers=self._auth)
        response = await self._transport.handle_async_request(request)
        try:
            return response.status_code, await response.aread()
        finally:
            await response.aclose()


def _late_answer(exchange: Exchange) -> bytes | None:
    try:
        body = exchange.rest_nowait()
    except NarwhalError:
        return None
    return body if exchange.status == OK else None


class _Version(msgspec.Struct):
    version: str


class _Models(msgspec.Struct):
    data: list[Served]
