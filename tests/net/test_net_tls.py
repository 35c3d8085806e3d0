"""TLS: the stream by itself, the pool to an https server, and our server behind it."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING, Any

import pytest
import trio
from net_engine import ENGINE, OK, REQUEST, answer_all, make_pool, read_request
from net_world import GET, echo, post, read_to_end, read_until
from trio.testing import MockClock, wait_all_tasks_blocked

from narwhal.model import ConnectFailed, EngineClosed, Limit
from narwhal.net import ByteStream, ConnectionPool, Listener, MemoryNetwork, Server, TlsStream

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

trustme = pytest.importorskip("trustme")


@pytest.fixture(scope="module")
def contexts() -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """A client's and a server's context that fit together; the certificate is n1's."""
    authority = trustme.CA()
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(ENGINE[0]).configure_cert(server)
    client = ssl.create_default_context()
    authority.configure_trust(client)
    return client, server


Contexts = tuple[ssl.SSLContext, ssl.SSLContext]


class TlsListener(Listener):
    def __init__(self, inner: Listener, context: ssl.SSLContext) -> None:
        self.inner = inner
        self.context = context
        self.address = inner.address

    async def accept(self) -> ByteStream:
        return TlsStream(await self.inner.accept(), self.context, server_side=True)

    def close(self) -> None:
        self.inner.close()


def run(main: Callable[[], Awaitable[None]]) -> None:
    trio.run(main, clock=MockClock(autojump_threshold=0))


def with_pair(contexts: Contexts, body: Callable[[TlsStream, TlsStream], Awaitable[None]]) -> None:
    async def main() -> None:
        network = MemoryNetwork()
        one, two = network.pair()
        client = TlsStream(one, contexts[0], server_hostname="n1")
        server = TlsStream(two, contexts[1], server_side=True)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.do_handshake)
            nursery.start_soon(server.do_handshake)
        await body(client, server)
        client.close()
        server.close()
        assert network.open_streams == 0

    run(main)


def test_bytes_pass_both_ways_under_back_pressure(contexts: Contexts) -> None:
    size = 400_000

    async def body(client: TlsStream, server: TlsStream) -> None:
        await client.send_all(b"hello")
        assert await server.receive_some() == b"hello"
        assert (server.send_nowait(b"x"), server.receive_nowait()) == (0, None)
        for sender, receiver in ((client, server), (server, client)):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(sender.send_all, b"z" * size)
                await wait_all_tasks_blocked()
                got = 0
                while got < size:
                    got += len(await receiver.receive_some())
        assert got == size

    with_pair(contexts, body)


def test_an_end_without_farewell_is_an_end(contexts: Contexts) -> None:
    async def body(client: TlsStream, server: TlsStream) -> None:
        await client.send_all(b"hello")
        await server.receive_some()
        await server.send_all(b"answer")  # the client's session tickets are read on the way
        assert await client.receive_some() == b"answer"
        assert not client.stale()
        server.close()
        assert client.stale()
        assert await client.receive_some() == b""

    with_pair(contexts, body)


def test_a_reset_is_an_error(contexts: Contexts) -> None:
    async def body(client: TlsStream, server: TlsStream) -> None:
        server.close(reset=True)
        with pytest.raises(trio.BrokenResourceError):
            await read_to_end(client)
        with pytest.raises(trio.BrokenResourceError):
            await client.send_all(b"x")

    with_pair(contexts, body)


def test_closing_wakes_a_reader(contexts: Contexts) -> None:
    async def body(client: TlsStream, server: TlsStream) -> None:
        async def wait() -> None:
            with pytest.raises(trio.ClosedResourceError):
                await client.receive_some()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await wait_all_tasks_blocked()
            client.close()
        for call in (client.receive_some, lambda: client.send_all(b"x"), client.do_handshake):
            with pytest.raises(trio.ClosedResourceError):
                await call()
        with pytest.raises(trio.ClosedResourceError):
            client.send_nowait(b"x")
        with pytest.raises(trio.ClosedResourceError):
            client.receive_nowait()

    with_pair(contexts, body)


def with_https_engine(
    contexts: Contexts,
    script: Any,
    body: Callable[[ConnectionPool], Awaitable[None]],
    **changes: Any,
) -> None:
    async def main() -> None:
        network = MemoryNetwork()
        listener = network.listen(*ENGINE)
        pool = make_pool(network, **({"tls": contexts[0]} | changes))

        async def serve() -> None:
            async with trio.open_nursery() as connections:
                while True:
                    stream = await listener.accept()
                    connections.start_soon(handle, stream)

        async def handle(stream: ByteStream) -> None:
            encrypted = TlsStream(stream, contexts[1], server_side=True)
            try:
                await script(encrypted, 0)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                pass
            finally:
                encrypted.close()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve)
            await body(pool)
            assert pool.busy == 0
            pool.close()
            await wait_all_tasks_blocked()
            nursery.cancel_scope.cancel(reason="the test is over")
        listener.close()
        assert network.open_streams == 0

    run(main)


def test_the_pool_speaks_https_and_reuses_connections(contexts: Contexts) -> None:
    async def body(pool: ConnectionPool) -> None:
        for reused in (False, True, True):
            with await pool.send(REQUEST, replayable=False) as exchange:
                assert exchange.reused is reused
                assert await exchange.response() == 200
                assert await exchange.read_all(10) == b"ok"

    with_https_engine(contexts, answer_all, body)


def test_a_stale_https_connection_is_not_reused(contexts: Contexts) -> None:
    async def script(stream: ByteStream, number: int) -> None:
        await read_request(stream)
        await stream.send_all(OK)

    async def body(pool: ConnectionPool) -> None:
        for _ in range(2):
            with await pool.send(REQUEST, replayable=False) as exchange:
                assert not exchange.reused
                await exchange.response()
            await wait_all_tasks_blocked()

    with_https_engine(contexts, script, body)


def test_a_certificate_nobody_vouches_for_is_a_failed_connection(contexts: Contexts) -> None:
    async def body(pool: ConnectionPool) -> None:
        with pytest.raises(ConnectFailed, match="certificate verify failed"):
            await pool.send(REQUEST, replayable=True)

    with_https_engine(contexts, answer_all, body, tls=ssl.create_default_context())


def test_a_server_without_tls_is_a_failed_connection(contexts: Contexts) -> None:
    async def main() -> None:
        network = MemoryNetwork()
        listener = network.listen(*ENGINE)
        pool = make_pool(network, tls=contexts[0])

        async def speak_plainly() -> None:
            stream = await listener.accept()
            await stream.send_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            stream.close()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(speak_plainly)
            with pytest.raises(ConnectFailed, match="TLS"):
                await pool.send(REQUEST, replayable=True)
        listener.close()
        assert network.open_streams == 0

    run(main)


def test_the_handshake_is_bounded_by_the_connect_timeout(contexts: Contexts) -> None:
    async def main() -> None:
        network = MemoryNetwork()
        listener = network.listen(*ENGINE)
        pool = make_pool(network, tls=contexts[0])
        with pytest.raises(ConnectFailed) as caught:
            await pool.send(REQUEST, replayable=True)
        assert caught.value.limit is Limit.CONNECT
        assert (pool.busy, trio.current_time()) == (0, 10)
        listener.close()
        assert network.open_streams == 0

    run(main)


def test_what_was_written_is_unknown_under_tls_and_so_not_sent_twice(contexts: Contexts) -> None:
    async def script(stream: ByteStream, number: int) -> None:
        await read_request(stream)
        await stream.send_all(OK)
        await read_request(stream)

    async def body(pool: ConnectionPool) -> None:
        with await pool.send(REQUEST, replayable=False) as exchange:
            await exchange.response()
        with await pool.send(REQUEST, replayable=False) as exchange:
            with pytest.raises(EngineClosed):
                await exchange.response()
            assert pool.replays == 0

    with_https_engine(contexts, script, body)


@pytest.mark.parametrize(
    ("wrong", "alert"),
    [
        ("no certificate", "certificate required"),
        ("an old version", "protocol version"),
    ],
)
def test_a_peer_whose_handshake_fails_is_told_why(wrong: str, alert: str) -> None:
    authority = trustme.CA()
    server_side = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("n1").configure_cert(server_side)
    client_side = ssl.create_default_context()
    authority.configure_trust(client_side)
    if wrong == "no certificate":
        authority.configure_trust(server_side)
        server_side.verify_mode = ssl.CERT_REQUIRED
    else:
        server_side.minimum_version = ssl.TLSVersion.TLSv1_3
        client_side.maximum_version = ssl.TLSVersion.TLSv1_2

    async def main() -> None:
        network = MemoryNetwork()
        one, two = network.pair()
        client = TlsStream(one, client_side, server_hostname="n1")
        server = TlsStream(two, server_side, server_side=True)
        told = []

        async def ask() -> None:
            try:
                await client.send_all(GET)
                await client.receive_some()
            except trio.BrokenResourceError as error:
                told.append(str(error))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            with pytest.raises(trio.BrokenResourceError, match="TLS: "):
                await server.receive_some()
            server.close()
        assert alert in told[0]
        client.close()
        assert network.open_streams == 0

    run(main)


def test_the_server_serves_a_tls_listener(contexts: Contexts) -> None:
    schemes = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        schemes.append(scope["scheme"])
        await echo(scope, receive, send)

    async def main() -> None:
        network = MemoryNetwork()
        server = Server(app)
        async with trio.open_nursery() as nursery:
            listener = TlsListener(network.listen(*ENGINE), contexts[1])
            await nursery.start(server.serve, [listener])
            raw = await network.connect(*ENGINE)
            client = TlsStream(raw, contexts[0], server_hostname="n1")
            await client.send_all(post(b"x" * 100_000))
            assert (await read_until(client, b"x" * 100_000)).startswith(b"HTTP/1.1 200 OK")
            await client.send_all(GET.replace(b"GET", b"CONNECT"))
            assert b"501" in await client.receive_some()
            client.close()
            silent = await network.connect(*ENGINE)  # never gets to its handshake
            await trio.sleep(11)
            assert server.connections == 0
            silent.close()
            assert await server.drain(1)
        assert schemes == ["https"]
        assert network.open_streams == 0

    run(main)
