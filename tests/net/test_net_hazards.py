"""What hostile, broken or unlucky clients do to a server: each kind of fault, once.

Tests that take `make` run against our server and against stock Hypercorn; where the stock server
fails, that is the reason for an override, and a strict xfail keeps it on record.
"""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any

import pytest
import trio
from hypercorn.utils import UnexpectedMessageError
from net_stock import StockServer
from net_world import (
    GET,
    World,
    echo,
    in_world,
    part,
    post,
    read_body,
    read_to_end,
    read_until,
    respond,
    start,
)
from trio.testing import wait_all_tasks_blocked

from narwhal.net import ServerOptions

if TYPE_CHECKING:
    from collections.abc import Callable

Make = "Callable[[Any], Any] | None"


def ours_and_stock(reason: str) -> pytest.MarkDecorator:
    """Run with our server, and with the stock one, which fails for `reason`."""
    stock = pytest.param(
        StockServer,
        id="stock",
        marks=pytest.mark.xfail(strict=True, reason=reason),
    )
    return pytest.mark.parametrize("make", [pytest.param(None, id="ours"), stock])


async def stream_for_ever(scope: Any, receive: Any, send: Any) -> None:
    await start(send)
    while True:
        await part(send, b"x" * 1000)
        await trio.sleep(0.1)


class Watcher:
    """Streams one event a second, and notes when `receive` says that the client has left."""

    def __init__(self) -> None:
        self.left_at: list[float] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await read_body(receive)
        await start(send)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch, receive, nursery.cancel_scope)
            while True:
                await part(send, b"event")
                await trio.sleep(1)

    async def _watch(self, receive: Any, scope: trio.CancelScope) -> None:
        assert await receive() == {"type": "http.disconnect"}
        self.left_at.append(trio.current_time())
        scope.cancel(reason="client gone")


# The client leaves


@pytest.mark.parametrize("how", ["close", "reset", "half-close"])
def test_a_client_that_leaves_is_noticed_at_once(how: str) -> None:
    """A half-close looks the same as a close on the wire, and is decided the same."""
    app = Watcher()

    async def body(world: World) -> None:
        client = await world.connect()
        await client.send_all(post(b"abc"))
        await read_until(client, b"event\r\n")
        await trio.sleep(0.5)
        if how == "half-close":
            client.send_eof()
        else:
            client.close(reset=how == "reset")
        await wait_all_tasks_blocked()
        assert app.left_at == [0.5]
        assert world.server.connections == 0

    in_world(app, body)


def test_a_client_that_leaves_is_told_of_by_a_call() -> None:
    calls: list[float] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        on_gone = scope["extensions"]["narwhal.on_gone"]
        on_gone(lambda: calls.append(trio.current_time()))
        if scope["path"] == "/answered":
            await respond(send)
        await trio.sleep(10)
        on_gone(lambda: calls.append(trio.current_time()))

    async def body(world: World) -> None:
        client = await world.connect()
        await client.send_all(GET.replace(b"/", b"/answered", 1))
        await client.receive_some()
        await client.send_all(GET)
        await trio.sleep(2)
        client.close()
        await wait_all_tasks_blocked()
        assert calls == [2]
        await trio.sleep(20)
        assert calls == [2, 10]

    in_world(app, body)


@ours_and_stock("a pipelined request blocks the reader, which then sees no end of file")
@pytest.mark.parametrize("how", ["close", "reset"])
def test_a_client_that_leaves_is_noticed_behind_a_pipelined_request(how: str, make: Any) -> None:
    app = Watcher()

    async def body(world: World) -> None:
        client = await world.connect()
        await client.send_all(GET + GET)
        await read_until(client, b"event\r\n")
        await trio.sleep(0.5)
        client.close(reset=how == "reset")
        await trio.sleep(10)
        assert app.left_at == [0.5]
        assert world.server.connections == 0

    in_world(app, body, make=make)


@ours_and_stock("the reader waits for ever for its turn to read the pipelined request")
def test_a_pipelining_client_that_leaves_leaks_no_connection(make: Any) -> None:
    async def body(world: World) -> None:
        for _ in range(10):
            client = await world.connect()
            await client.send_all(GET + GET)
            await client.receive_some()
            client.close(reset=True)
        await trio.sleep(1000)
        assert world.server.connections == 0

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await start(send)
        for _ in range(10):
            await part(send, b"x")
            await trio.sleep(1)

    in_world(app, body, make=make)


@ours_and_stock("the channel of messages checks for cancellation before it looks for one")
def test_a_poll_from_a_cancelled_scope_sees_the_disconnect(make: Any) -> None:
    seen = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await read_body(receive)
        await trio.sleep(1)
        with trio.CancelScope() as poll:
            poll.cancel(reason="only what is there already")
            seen.append((await receive())["type"])

    async def body(world: World) -> None:
        client = await world.connect()
        await client.send_all(GET)
        await wait_all_tasks_blocked()
        client.close()
        await trio.sleep(2)
        assert seen == ["http.disconnect"]

    in_world(app, body, make=make)


def test_sends_after_the_client_left_do_nothing() -> None:
    ended = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        write = scope["extensions"]["narwhal.write"]
        await start(send)
        for _ in range(10):
            await part(send, b"x")
            await write(b"y")
            await trio.sleep(1)
        await send({"type": "http.response.body", "body": b"end"})
        ended.append(trio.current_time())

    async def body(world: World) -> None:
        client = await world.connect()
        await client.send_all(GET)
        await trio.sleep(2.5)
        client.close()
        await trio.sleep(10)
        assert ended == [10]

    in_world(app, body)


def test_a_request_that_was_cut_never_looks_complete() -> None:
    seen = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        while (message := await receive())["type"] == "http.request":
            seen.append(message)
        seen.append(message)

    async def body(world: World) -> None:
        client = await world.connect()
        await client.send_all(post(b"abc", length=5))
        await wait_all_tasks_blocked()
        client.close()
        await wait_all_tasks_blocked()
        assert seen == [
            {"type": "http.request", "body": b"abc", "more_body": True},
            {"type": "http.disconnect"},
        ]

    in_world(app, body)


# The client does not read


@ours_and_stock("sends are shielded from cancellation")
def test_a_deadline_of_the_application_reaches_a_blocked_send(make: Any) -> None:
    ended = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await start(send)
        with trio.move_on_after(600) as limit:
            while True:
                await part(send, b"x" * 10_000)
        ended.append((limit.cancelled_caught, trio.current_time()))

    async def body(world: World) -> None:
        client = await world.connect()
        await client.send_all(GET)
        await trio.sleep(3600)
        assert ended == [(True, 600)]
        assert world.server.connections == 0

    in_world(app, body, make=make)


@pytest.mark.parametrize("sender", ["send", "write"])
def test_a_send_cancelled_in_the_middle_closes_the_connection(sender: str) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        write = scope["extensions"]["narwhal.write"]
        await read_body(receive)
        await start(send)
        await write(b"head")
        with trio.move_on_after(5):
            if sender == "send":
                await part(send, b"x" * 300_000)
            else:
                await write(b"x" * 300_000)
        assert await receive() == {"type": "http.disconnect"}
        await part(send, b"never seen")
        await write(b"never seen")
        await send({"type": "http.response.body", "body": b"never seen"})

    async def body(world: World) -> None:
        client = await world.connect()
        await client.send_all(GET)
        await trio.sleep(4)
        assert world.server.connections == 1
        await trio.sleep(1)
        await wait_all_tasks_blocked()
        assert world.server.connections == 0
        assert b"never" not in await read_to_end(client)

    in_world(app, body)


def test_a_client_that_does_not_read_slows_only_itself() -> None:
    async def body(world: World) -> None:
        slow = await world.connect()
        await slow.send_all(GET.replace(b"/", b"/slow", 1))
        await trio.sleep(100)
        for _ in range(3):
            assert b"200 OK" in await world.ask(b"GET / HTTP/1.0\r\n\r\n")

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] == "/slow":
            await stream_for_ever(scope, receive, send)
        await respond(send)

    in_world(app, body)


# Requests that must not end the server


WEBSOCKET = (
    b"GET / HTTP/1.1\r\nhost: x\r\nupgrade: websocket\r\nconnection: upgrade\r\n"
    b"sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
)
H2_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
H2_SETTINGS = b"\0\0\0\4\0\0\0\0\0"


def h2_request(path: bytes) -> bytes:
    """GET over HTTP/2, headers as literals without indexing."""
    headers = [(b":method", b"GET"), (b":scheme", b"http"), (b":authority", b"x"), (b":path", path)]
    block = b"".join(
        b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value for name, value in headers
    )
    return len(block).to_bytes(3, "big") + b"\1\5\0\0\0\1" + block


FATAL = {
    "websocket-header": WEBSOCKET + b"sec-websocket-protocol: \xff\xfe\r\n\r\n",
    "websocket-trailing": WEBSOCKET + b"\r\nx",
    "h2c-path": H2_PREFACE + H2_SETTINGS + h2_request(b"/\xff\xfe"),
}


@ours_and_stock("an exception of one connection ends the server's nursery")
@pytest.mark.parametrize("request_", [pytest.param(v, id=k) for k, v in FATAL.items()])
def test_no_request_ends_the_server(request_: bytes, make: Any) -> None:
    async def body(world: World) -> None:
        client = await world.connect()
        await client.send_all(request_)
        await trio.sleep(20)
        client.close()
        other = await world.connect()
        await other.send_all(GET)
        assert (await other.receive_some()).startswith(b"HTTP/1.1 200")

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.accept"})
            return
        await respond(send)

    in_world(app, body, make=make)


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (H2_PREFACE + H2_SETTINGS, 505),
        (GET.replace(b"1.1", b"3.0"), 505),
        (GET.replace(b"1.1", b"0.9"), 505),
        (b"CONNECT x:443 HTTP/1.1\r\nhost: x\r\n\r\n", 501),
    ],
)
def test_other_protocols_get_a_plain_answer(request_: bytes, status: int) -> None:
    async def body(world: World) -> None:
        answer = await world.ask(request_)
        assert answer.startswith(b"HTTP/1.1 %d " % status)
        head, _, text = answer.partition(b"\r\n\r\n")
        assert b"connection: close" in head
        assert json.loads(text)["error"]["message"]

    in_world(echo, body)


@pytest.mark.parametrize("wanted", [b"websocket", b"h2c"])
def test_an_upgrade_is_ignored(wanted: bytes) -> None:
    request = GET.replace(b"\r\n\r\n", b"\r\nconnection: upgrade\r\nupgrade: %b\r\n\r\n" % wanted)

    async def body(world: World) -> None:
        client = await world.connect()
        for _ in range(2):
            await client.send_all(request)
            assert (await client.receive_some()).startswith(b"HTTP/1.1 200 OK")

    in_world(echo, body)


# Ambiguous and malformed requests


def crlf(*lines: str) -> bytes:
    return "\r\n".join(lines).encode("latin-1")


SMUGGLED = {
    "length-and-chunked": crlf(
        "POST / HTTP/1.1",
        "host: x",
        "content-length: 6",
        "transfer-encoding: chunked",
        "",
        "0",
        "",
        "G",
    ),
    "chunked-and-length": crlf(
        "POST / HTTP/1.1",
        "host: x",
        "transfer-encoding: chunked",
        "content-length: 5",
        "",
        "0",
        "",
        "",
    ),
    "two-lengths": crlf(
        "POST / HTTP/1.1", "host: x", "content-length: 3", "content-length: 5", "", "abcde"
    ),
    "same-length-twice": crlf(
        "POST / HTTP/1.1", "host: x", "content-length: 3", "content-length: 3", "", "abc"
    ),
    "list-of-lengths": crlf("POST / HTTP/1.1", "host: x", "content-length: 3, 3", "", "abc"),
    "negative-length": crlf("POST / HTTP/1.1", "host: x", "content-length: -3", "", "abc"),
    "signed-length": crlf("POST / HTTP/1.1", "host: x", "content-length: +3", "", "abc"),
    "hex-length": crlf("POST / HTTP/1.1", "host: x", "content-length: 0x3", "", "abc"),
    "two-codings": crlf(
        "POST / HTTP/1.1",
        "host: x",
        "transfer-encoding: chunked",
        "transfer-encoding: chunked",
        "",
        "0",
        "",
        "",
    ),
    "unknown-coding": crlf(
        "POST / HTTP/1.1", "host: x", "transfer-encoding: xchunked", "", "0", "", ""
    ),
    "listed-coding": crlf(
        "POST / HTTP/1.1", "host: x", "transfer-encoding: gzip, chunked", "", "0", "", ""
    ),
    "chunked-in-1.0": crlf(
        "POST / HTTP/1.0", "host: x", "transfer-encoding: chunked", "", "0", "", ""
    ),
    "space-before-colon": crlf("POST / HTTP/1.1", "host: x", "content-length : 3", "", "abc"),
    "space-before-name": crlf("POST / HTTP/1.1", " host: x", "", ""),
    "line-feeds": b"POST / HTTP/1.1\nhost: x\ncontent-length: 3\n\nabc",
    "one-line-feed": b"POST / HTTP/1.1\r\nhost: x\ncontent-length: 3\r\n\r\nabc",
    "carriage-return": b"GET / HTTP/1.1\r\nhost: x\r\nx: a\rcontent-length: 3\r\n\r\nabc",
    "nul": b"GET / HTTP/1.1\r\nhost: x\r\nx: a\0b\r\n\r\n",
    "no-host": b"GET / HTTP/1.1\r\n\r\n",
    "two-hosts": crlf("GET / HTTP/1.1", "host: x", "host: y", "", ""),
    "garbage": b"\x00\x01\x02\r\n\r\n",
    "tls-hello": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\r\n\r\n",
    "no-version": b"GET /\r\n\r\n",
    "spaces-in-target": b"GET /a b HTTP/1.1\r\nhost: x\r\n\r\n",
    "non-ascii-target": b"GET /\xff HTTP/1.1\r\nhost: x\r\n\r\n",
    "non-ascii-method": b"G\xcbT / HTTP/1.1\r\nhost: x\r\n\r\n",
}


@pytest.mark.parametrize("request_", [pytest.param(v, id=k) for k, v in SMUGGLED.items()])
@pytest.mark.parametrize("split", [False, True], ids=["whole", "split"])
def test_ambiguous_requests_are_refused_and_the_connection_closed(
    request_: bytes, split: bool
) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        raise AssertionError(scope)

    async def body(world: World) -> None:
        client = await world.connect()
        for at in range(0, len(request_), 3 if split else len(request_)):
            await client.send_all(request_[at : at + (3 if split else len(request_))])
            await wait_all_tasks_blocked()
        # A request smuggled behind would be this one.
        client.send_nowait(GET)
        answer = await read_to_end(client)
        status = 501 if "coding" in names else 400
        assert answer.startswith(b"HTTP/1.1 %d " % status), answer
        assert answer.count(b"\r\n\r\n") == 1
        assert b"connection: close" in answer

    names = next(name for name, value in SMUGGLED.items() if value == request_)
    in_world(app, body)


BAD_CHUNKS = [b"zz\r\nabc\r\n", b"-3\r\nabc\r\n", b"3 \nabc\r\n", b"3\r\nabcd\r\n", b"\r\n3\r\nabc"]


@pytest.mark.parametrize("chunk", BAD_CHUNKS)
def test_a_bad_chunk_is_refused_if_the_application_has_not_answered(chunk: bytes) -> None:
    seen = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        while (message := await receive())["type"] == "http.request":
            seen.append(message["body"])
        seen.append(message["type"])
        await respond(send, b"too late")

    async def body(world: World) -> None:
        head = b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n"
        client = await world.connect()
        await client.send_all(head)
        await wait_all_tasks_blocked()
        await client.send_all(chunk)
        answer = await read_to_end(client)
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert b"late" not in answer
        await wait_all_tasks_blocked()
        assert seen[0] == b"ok"
        assert seen[-1] == "http.disconnect"

    in_world(app, body)


def test_a_bad_chunk_cuts_an_answer_that_has_begun() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await start(send)
        await part(send, b"begun")
        assert (await receive())["type"] == "http.disconnect"

    async def body(world: World) -> None:
        client = await world.connect()
        await client.send_all(b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n")
        await read_until(client, b"begun\r\n")
        await client.send_all(b"zz\r\n")
        assert await read_to_end(client) == b""

    in_world(app, body)


# Limits on the head


def one_read(head: bytes) -> list[bytes]:
    return [head]


def trickle(head: bytes) -> list[bytes]:
    return [head[at : at + 4096] for at in range(0, len(head), 4096)]


HEADS = {
    "one-large-header": (b"GET / HTTP/1.1\r\nhost: x\r\nx: %b\r\n\r\n" % (b"a" * 65536), 431),
    "large-together": (
        b"GET / HTTP/1.1\r\nhost: x\r\n" + b"x: %b\r\n" % (b"a" * 1000) * 70 + b"\r\n",
        431,
    ),
    "many-headers": (b"GET / HTTP/1.1\r\nhost: x\r\n" + b"x: y\r\n" * 128 + b"\r\n", 431),
    "long-target": (b"GET /%b HTTP/1.1\r\nhost: x\r\n\r\n" % (b"a" * 8192), 414),
    "long-method": (b"G" * 8300 + b" / HTTP/1.1\r\nhost: x\r\n\r\n", 414),
    "endless-target": (b"GET /" + b"a" * 20_000, 414),
    "endless-header": (b"GET / HTTP/1.1\r\nhost: x\r\nx: " + b"a" * 70_000, 431),
    "endless-headers": (b"GET / HTTP/1.1\r\nhost: x\r\n" + b"x: y\r\n" * 20_000, 431),
}


@pytest.mark.parametrize("name", HEADS)
@pytest.mark.parametrize("cut", [one_read, trickle])
def test_heads_over_the_limits_are_refused_however_they_arrive(
    name: str, cut: Callable[[bytes], list[bytes]]
) -> None:
    head, status = HEADS[name]

    async def app(scope: Any, receive: Any, send: Any) -> None:
        raise AssertionError("must not be called")

    async def body(world: World) -> None:
        client = await world.connect()
        for piece in cut(head):
            client.send_nowait(piece)
            await wait_all_tasks_blocked()
        assert (await read_to_end(client)).startswith(b"HTTP/1.1 %d " % status)
        assert trio.current_time() < 6

    in_world(app, body, buffer_bytes=200_000)


def around_the_targets_end(head: bytes) -> list[bytes]:
    return [head[:8193], head[8193:8200], head[8200:]]


@pytest.mark.parametrize("cut", [one_read, trickle, around_the_targets_end])
def test_heads_just_within_the_limits_are_served(cut: Callable[[bytes], list[bytes]]) -> None:
    heads = [
        b"GET /%b HTTP/1.1\r\nhost: x\r\n\r\n" % (b"a" * 8191),
        b"GET / HTTP/1.1\r\nhost: x\r\n" + b"x: y\r\n" * 127 + b"\r\n",
        b"GET / HTTP/1.1\r\nhost: x\r\nx: %b\r\n\r\n" % (b"a" * 65_000),
    ]

    async def body(world: World) -> None:
        client = await world.connect()
        for head in heads:
            for piece in cut(head):
                await client.send_all(piece)
                await wait_all_tasks_blocked()
            assert (await client.receive_some()).startswith(b"HTTP/1.1 200 OK")

    in_world(echo, body)


@pytest.mark.parametrize("x", [b"a", b"\xe9"])  # read by the short way, and by h11
@pytest.mark.parametrize("over", [0, 1])
@pytest.mark.parametrize("at", [0, -1, -2, -3])
def test_the_limit_on_a_head_is_exact_however_it_arrives(x: bytes, over: int, at: int) -> None:
    start = b"GET / HTTP/1.1\r\nhost: x\r\nx: "
    head = start + x * (65536 + over - len(start) - 4) + b"\r\n\r\n"
    status = b"431" if over else b"200"

    async def body(world: World) -> None:
        client = await world.connect()
        for piece in filter(None, (head[:at], head[at:])):
            client.send_nowait(piece)
            await wait_all_tasks_blocked()
        assert (await client.receive_some()).startswith(b"HTTP/1.1 %b " % status)

    in_world(echo, body, buffer_bytes=200_000)


@ours_and_stock("the limit is on incomplete heads only")
def test_a_large_head_in_one_read_is_refused(make: Any) -> None:
    head = b"GET / HTTP/1.1\r\nhost: x\r\nx: %b\r\n\r\n" % (b"a" * 20_000)

    async def body(world: World) -> None:
        client = await world.connect()
        await client.send_all(head)
        assert (await client.receive_some()).startswith(b"HTTP/1.1 431 ")

    in_world(echo, body, make=make, options=ServerOptions(max_header_bytes=16 * 1024))


# Time


def test_a_slow_head_is_cut_off_ten_seconds_after_the_connection() -> None:
    async def body(world: World) -> None:
        client = await world.connect()
        async with trio.open_nursery() as nursery:

            async def drip() -> None:
                for byte in GET:
                    client.send_nowait(bytes([byte]))
                    await trio.sleep(1)

            nursery.start_soon(drip)
            assert (await read_to_end(client)).startswith(b"HTTP/1.1 408 ")
            assert trio.current_time() == 10
            nursery.cancel_scope.cancel(reason="answered")

    in_world(echo, body)


def test_a_silent_connection_is_closed_after_ten_seconds() -> None:
    async def body(world: World) -> None:
        assert await read_to_end(await world.connect()) == b""
        assert trio.current_time() == 10

    in_world(echo, body)


def test_idle_connections_are_kept_longer_than_load_balancers_keep_them() -> None:
    async def body(world: World) -> None:
        client = await world.connect()
        for _ in range(3):
            await trio.sleep(0 if trio.current_time() == 0 else 74)
            await client.send_all(GET)
            assert (await client.receive_some()).startswith(b"HTTP/1.1 200 OK")
        last = trio.current_time()
        assert await read_to_end(client) == b""
        assert trio.current_time() == last + 75

    in_world(echo, body)


def test_a_slow_head_on_a_used_connection_is_cut_off_ten_seconds_after_its_first_byte() -> None:
    async def body(world: World) -> None:
        client = await world.connect()
        await client.send_all(GET)
        await client.receive_some()
        await trio.sleep(70)
        await client.send_all(GET[:10])
        await trio.sleep(9)
        await client.send_all(GET[10:20])
        assert (await read_to_end(client)).startswith(b"HTTP/1.1 408 ")
        assert trio.current_time() == 80

    in_world(echo, body)


def test_no_limit_of_the_server_touches_a_running_request() -> None:
    """Neither a slow upload nor a long silence nor a long stream is idleness.

    What bounds a slow upload is another limit, which is off here.
    """

    async def app(scope: Any, receive: Any, send: Any) -> None:
        received = await read_body(receive)
        await trio.sleep(10_000)
        await start(send)
        for _ in range(3):
            await part(send, received)
            await trio.sleep(10_000)
        await send({"type": "http.response.body", "body": b""})

    async def body(world: World) -> None:
        client = await world.connect()
        await client.send_all(post(length=3))
        for byte in (b"a", b"b", b"c"):
            await trio.sleep(1000)
            await client.send_all(byte)
        assert (await read_until(client, b"0\r\n\r\n")).count(b"abc") == 3
        await client.send_all(post(b"x"))
        await read_until(client, b"0\r\n\r\n")

    in_world(app, body, options=ServerOptions(min_body_rate=0))


# Bodies nobody reads


@ours_and_stock("an unread body blocks the answer to it, or resets the connection under it")
@pytest.mark.parametrize("delay", [0, 1])
def test_an_answer_to_an_unread_body_is_sent_and_read(delay: float, make: Any) -> None:
    answered = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await trio.sleep(delay)
        await respond(send, b"too long", status=413)
        answered.append(trio.current_time())

    async def body(world: World) -> None:
        client = await world.connect()
        broken = []

        async def upload() -> None:
            try:
                await client.send_all(post(length=4_000_000))
                for _ in range(400):
                    await client.send_all(b"y" * 10_000)
            except trio.BrokenResourceError:
                broken.append(True)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(upload)
            await trio.sleep(delay + 1)
            assert answered == [delay]
            assert b" 413 " in await read_to_end(client)
            nursery.cancel_scope.cancel(reason="answered")
        assert not broken
        client.close()
        await wait_all_tasks_blocked()
        assert world.server.connections == 0

    in_world(app, body, make=make)


async def refuse(scope: Any, receive: Any, send: Any) -> None:
    await respond(send, b"no", status=429)


def test_lingering_is_bounded_in_time() -> None:
    async def body(world: World) -> None:
        client = await world.connect()
        await client.send_all(post(length=4_000_000))
        answer = await read_to_end(client)
        assert answer.startswith(b"HTTP/1.1 429")
        assert b"connection: close" in answer
        await trio.sleep(4.9)
        assert world.server.connections == 1
        await trio.sleep(0.2)
        assert world.server.connections == 0

    in_world(refuse, body)


def test_lingering_is_bounded_in_bytes() -> None:
    async def body(world: World) -> None:
        client = await world.connect()
        await client.send_all(post(length=50_000_000))
        with pytest.raises(trio.BrokenResourceError):
            await client.send_all(b"y" * 50_000_000)
        assert trio.current_time() < 5

    in_world(refuse, body, options=ServerOptions(linger_bytes=1_000_000))


def test_a_connection_is_kept_when_the_unread_body_had_arrived_anyway() -> None:
    async def body(world: World) -> None:
        client = await world.connect()
        for _ in range(3):
            await client.send_all(post(b"x" * 5000))
            answer = await client.receive_some()
            assert answer.startswith(b"HTTP/1.1 429")
            assert b"close" not in answer

    in_world(refuse, body)


def test_an_application_that_does_not_receive_makes_the_client_wait() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await trio.sleep(100)
        size = 0
        while (message := await receive())["type"] == "http.request":
            size += len(message["body"])
            if not message["more_body"]:
                await respond(send, b"%d" % size)

    async def body(world: World) -> None:
        client = await world.connect()
        await client.send_all(post(length=1_000_000))
        with trio.move_on_after(50) as scope:
            await client.send_all(b"z" * 1_000_000)
        assert scope.cancelled_caught
        client.close()
        await trio.sleep(60)
        client = await world.connect()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.send_all, post(b"z" * 1_000_000))
            assert (await read_until(client, b"1000000")).startswith(b"HTTP/1.1 200")

    in_world(app, body)


def test_an_unread_body_that_was_complete_does_not_stop_the_next_request() -> None:
    """Not even one just large enough for the reader to have paused."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await trio.sleep(1)
        await respond(send, b"no", status=429)

    async def body(world: World) -> None:
        client = await world.connect()
        for _ in range(3):
            await client.send_all(post(b"x" * 66_000))
            assert b"close" not in await read_until(client, b"no")
        assert trio.current_time() == 3

    in_world(app, body)


def test_a_disconnect_is_delivered_behind_an_unread_body() -> None:
    seen = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await trio.sleep(10)
        while (message := await receive())["type"] == "http.request":
            seen.append(len(message["body"]))
        seen.append(message["type"])

    async def body(world: World) -> None:
        client = await world.connect()
        await client.send_all(post(b"x" * 50_000))
        client.close()
        await trio.sleep(11)
        assert seen == [50_000, "http.disconnect"]

    in_world(app, body)


# Pipelining


def test_a_flood_of_pipelined_requests_is_taken_for_a_client_that_left() -> None:
    app = Watcher()

    async def body(world: World) -> None:
        client = await world.connect()
        with pytest.raises(trio.BrokenResourceError):
            await client.send_all(GET * 10_000)
        await wait_all_tasks_blocked()
        assert app.left_at == [0]

    in_world(app, body)


# Applications that fail


FAULTY_STARTS = (b"/headers", b"/status", b"/length", b"/lengths")


def test_an_application_that_raises_before_answering_is_a_500(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] == "/group":
            async with trio.open_nursery() as nursery:
                nursery.start_soon(trio.sleep_forever)
                raise ValueError("secret")
        if scope["path"] == "/headers":
            await send(
                {"type": "http.response.start", "status": 200, "headers": [(b"a", b"b\r\nc: d")]}
            )
            await send({"type": "http.response.body", "body": b"x"})
        if scope["path"] == "/status":
            await respond(send, status=103)
        if scope["path"] in {"/length", "/lengths"}:
            values = [b"x"] if scope["path"] == "/length" else [b"1", b"1"]
            headers = [(b"content-length", value) for value in values]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await part(send, b"x")
        if scope["path"] == "/raise":
            raise ValueError("secret")

    async def body(world: World) -> None:
        for path in (b"/raise", b"/group", b"/return", *FAULTY_STARTS):
            answer = await world.ask(GET.replace(b"/", path, 1))
            head, _, text = answer.partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 500 "), path
            error = json.loads(text)["error"]
            assert (error["type"], error["code"]) == ("internal_error", "internal")
            assert "secret" not in error["message"]

    in_world(app, body)
    assert [r.getMessage() for r in caplog.records if r.levelno == logging.ERROR] == [
        f"The application failed on GET {path}"
        for path in ("/raise", "/group", *(path.decode() for path in FAULTY_STARTS))
    ]


def test_a_path_cannot_write_lines_into_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        assert scope["path"] == "/a\r\nERROR b\x1b[2J"
        raise ValueError("x")

    async def body(world: World) -> None:
        await world.ask(GET.replace(b"/", b"/a%0d%0aERROR%20b%1b[2J", 1))

    in_world(app, body)
    (record,) = caplog.records
    assert record.getMessage() == "The application failed on GET /a%0d%0aERROR%20b%1b[2J"


@pytest.mark.parametrize("how", ["raise", "return", "abort"])
def test_an_answer_that_is_not_finished_is_visibly_cut(how: str) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await start(send)
        await part(send, b"half")
        if how == "raise":
            raise ValueError
        if how == "abort":
            scope["extensions"]["narwhal.abort"]()
            await part(send, b"never seen")
            await send({"type": "http.response.body", "body": b"never seen"})

    async def body(world: World) -> None:
        answer = await world.ask(GET)
        assert answer.endswith(b"\r\n\r\n4\r\nhalf\r\n")
        # HTTP/1.0 has no chunks, so an end of file would look like the end of the body.
        client = await world.connect()
        await client.send_all(b"GET / HTTP/1.0\r\n\r\n")
        with pytest.raises(trio.BrokenResourceError):
            await read_to_end(client)

    in_world(app, body)


def test_abort_with_reset() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await read_body(receive)
        scope["extensions"]["narwhal.abort"](reset=True)
        assert await receive() == {"type": "http.disconnect"}

    async def body(world: World) -> None:
        client = await world.connect()
        await client.send_all(GET)
        with pytest.raises(trio.BrokenResourceError):
            await read_to_end(client)

    in_world(app, body)


def test_messages_out_of_order_are_the_applications_error() -> None:
    errors = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        async def wrong(call: Any) -> None:
            with pytest.raises(UnexpectedMessageError) as caught:
                await call
            errors.append(caught.value)

        write = scope["extensions"]["narwhal.write"]
        await wrong(send({"type": "http.response.body", "body": b""}))
        await wrong(write(b"x"))
        await wrong(send({"type": "http.response.trailers"}))
        await start(send)
        await wrong(start(send))
        await send({"type": "http.response.body", "body": b"x"})
        await wrong(send({"type": "http.response.body", "body": b"x"}))
        await wrong(write(b"x"))

    async def body(world: World) -> None:
        client = await world.connect()
        await client.send_all(GET)
        assert (await client.receive_some()).endswith(b"\r\n\r\nx")
        await wait_all_tasks_blocked()
        assert len(errors) == 6

    in_world(app, body)
