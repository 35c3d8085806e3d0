"""The server as a client and an application see it when nothing goes wrong."""

from __future__ import annotations

from typing import Any

import pytest
import trio
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
from narwhal.net.streams import RECEIVE_BYTES

OK_EMPTY = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"


def test_a_small_answer_is_one_send_with_its_length() -> None:
    async def body(world: World) -> None:
        client = await world.connect()
        await client.send_all(post(b"hello"))
        await wait_all_tasks_blocked()
        assert client.receive_nowait() == b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello"
        await client.send_all(GET)
        assert await client.receive_some() == OK_EMPTY

    in_world(echo, body)


def test_the_scope_says_what_asgi_asks_for() -> None:
    scopes: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        scopes.append(scope | {"extensions": set(scope["extensions"])})
        await respond(send)

    async def body(world: World) -> None:
        client = await world.connect()
        await client.send_all(b"PUT /a%20b/c?x=1&y HTTP/1.1\r\nHost: h\r\nX-A: 1\r\nx-a: 2\r\n\r\n")
        assert await client.receive_some() == OK_EMPTY
        (scope,) = scopes
        extensions = scope.pop("extensions")
        names = {"write", "write_nowait", "flush", "abort", "on_gone", "respond"}
        assert extensions == {f"narwhal.{name}" for name in names}
        assert scope == {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": "PUT",
            "scheme": "http",
            "path": "/a b/c",
            "raw_path": b"/a%20b/c",
            "query_string": b"x=1&y",
            "root_path": "",
            "headers": [(b"host", b"h"), (b"x-a", b"1"), (b"x-a", b"2")],
            "client": client.local,
            "server": client.peer,
            "state": {},
        }

    in_world(app, body)


def test_a_stream_is_chunked_and_its_first_send_carries_the_head() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await start(send, content_type="text/event-stream")
        await trio.sleep(1)
        await part(send, b"one")
        await trio.sleep(1)
        await part(send, b"two!")
        await trio.sleep(1)
        await send({"type": "http.response.body", "body": b"end"})

    async def body(world: World) -> None:
        client = await world.connect()
        await client.send_all(GET)
        head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked"
        assert await client.receive_some() == head + b"\r\n\r\n3\r\none\r\n"
        assert trio.current_time() == 1
        assert await client.receive_some() == b"4\r\ntwo!\r\n"
        assert await client.receive_some() == b"3\r\nend\r\n0\r\n\r\n"

    in_world(app, body)


def test_an_empty_body_message_puts_the_head_on_the_wire() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await start(send)
        await part(send, b"")
        await trio.sleep(5)
        await send({"type": "http.response.body", "body": b""})

    async def body(world: World) -> None:
        client = await world.connect()
        await client.send_all(GET)
        got = await client.receive_some()
        assert got == b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
        assert trio.current_time() == 0
        assert await client.receive_some() == b"0\r\n\r\n"

    in_world(app, body)


def test_the_write_extension_is_the_same_as_a_body_message() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        write = scope["extensions"]["narwhal.write"]
        await start(send)
        await write(b"a")
        await write(b"")
        await write(b"bc")
        await send({"type": "http.response.body", "body": b""})

    async def body(world: World) -> None:
        client = await world.connect()
        await client.send_all(GET)
        answer = await read_until(client, b"0\r\n\r\n")
        assert answer.endswith(b"\r\n\r\n1\r\na\r\n2\r\nbc\r\n0\r\n\r\n")

    in_world(app, body)


def test_writing_without_waiting_keeps_the_order_of_what_is_left() -> None:
    size = 200_000

    async def app(scope: Any, receive: Any, send: Any) -> None:
        write_nowait = scope["extensions"]["narwhal.write_nowait"]
        flush = scope["extensions"]["narwhal.flush"]
        await start(send)
        assert write_nowait(b"")  # the head, alone
        assert write_nowait(b"a")
        assert not write_nowait(b"b" * size)
        assert not write_nowait(b"c")
        await flush()
        assert write_nowait(b"d")
        assert not write_nowait(b"e" * size)
        await send({"type": "http.response.body", "body": b"f"})

    async def body(world: World) -> None:
        client = await world.connect()
        await client.send_all(GET)
        answer = await read_until(client, b"0\r\n\r\n")
        assert answer.partition(b"\r\n\r\n")[2] == b"".join(
            b"%x\r\n%b\r\n" % (len(piece), piece)
            for piece in (b"a", b"b" * size, b"c", b"d", b"e" * size, b"f", b"")
        )

    in_world(app, body)


def test_writing_without_waiting_works_with_a_length_too() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await start(send, content_length="3")
        assert scope["extensions"]["narwhal.write_nowait"](b"ab")
        await send({"type": "http.response.body", "body": b"c"})

    async def body(world: World) -> None:
        client = await world.connect()
        await client.send_all(GET)
        assert (await read_until(client, b"abc")).endswith(b"length: 3\r\n\r\nabc")

    in_world(app, body)


@pytest.mark.parametrize("size", [0, 1, 65535, 65536, 300_000])
def test_bodies_arrive_whole_however_they_are_framed(size: int) -> None:
    sent = bytes(range(256)) * (size // 256) + bytes(range(size % 256))

    async def body(world: World) -> None:
        chunked = b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
        for at in range(0, size, 70_001):
            piece = sent[at : at + 70_001]
            chunked += b"%x\r\n%b\r\n" % (len(piece), piece)
        for request in (post(sent), chunked + b"0\r\n\r\n"):
            client = await world.connect()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(client.send_all, request)
                answer = await read_until(client, sent or b"\r\n\r\n")
            assert answer.startswith(b"HTTP/1.1 200 OK")

    in_world(echo, body)


@pytest.mark.parametrize("size", [1000, 32768, 46_000, 120_000])
def test_a_body_that_is_all_there_is_one_message(size: int) -> None:
    messages = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        messages.append(await receive())
        await respond(send)

    async def body(world: World) -> None:
        client = await world.connect()
        await client.send_all(post(b"x" * size))
        await client.receive_some()
        assert messages == [{"type": "http.request", "body": b"x" * size, "more_body": False}]

    in_world(app, body, buffer_bytes=200_000)


def test_a_client_that_leaves_behind_a_full_read_is_noticed_behind_it() -> None:
    seen: list[object] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(len((await receive())["body"]))
        seen.append((await receive())["type"])

    async def body(world: World) -> None:
        client = await world.connect()
        size = 2 * RECEIVE_BYTES - len(post(b"x" * RECEIVE_BYTES))
        request = post(b"x" * size)
        assert len(request) == RECEIVE_BYTES
        await client.send_all(request)
        client.close()
        await wait_all_tasks_blocked()
        assert seen == [size, "http.disconnect"]

    in_world(app, body, buffer_bytes=200_000)


def test_http_10_gets_its_body_up_to_the_end_of_file() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await start(send)
        await part(send, b"one")
        await send({"type": "http.response.body", "body": b"two"})

    async def body(world: World) -> None:
        answer = await world.ask(b"GET / HTTP/1.0\r\n\r\n")
        assert answer == b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\nonetwo"

    in_world(app, body)


@pytest.mark.parametrize("status", [204, 304])
def test_statuses_without_a_body_have_none(status: int) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await respond(send, b"must not be seen", status=status)

    async def body(world: World) -> None:
        client = await world.connect()
        for _ in range(2):
            await client.send_all(GET)
            answer = await client.receive_some()
            assert answer.startswith(b"HTTP/1.1 %d" % status)
            assert answer.endswith(b"\r\n\r\n")
            assert b"seen" not in answer
            assert b"content-length" not in answer

    in_world(app, body)


def test_head_has_the_headers_of_get_and_no_body() -> None:
    async def body(world: World) -> None:
        client = await world.connect()
        await client.send_all(b"HEAD / HTTP/1.1\r\nhost: x\r\n\r\n" + GET)
        answer = await read_until(client, b"abc")
        assert answer.count(b"content-length: 3") == 2
        assert answer.count(b"abc") == 1

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await respond(send, b"abc")

    in_world(app, body)


def test_a_length_the_application_gives_is_kept_and_enforced() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await start(send, content_length="6")
        await part(send, b"abc")
        await send({"type": "http.response.body", "body": scope["raw_path"][1:]})

    async def body(world: World) -> None:
        client = await world.connect()
        await client.send_all(GET.replace(b"/", b"/def", 1))
        assert (await read_until(client, b"abcdef")).count(b"content-length: 6\r\n") == 1
        for wrong in (b"/de", b"/defg"):
            answer = await world.ask(GET.replace(b"/", wrong, 1))
            assert answer.endswith(b"\r\n\r\nabc")

    in_world(app, body)


def test_pipelined_requests_are_answered_in_order_one_at_a_time() -> None:
    running = 0

    async def app(scope: Any, receive: Any, send: Any) -> None:
        nonlocal running
        running += 1
        assert running == 1
        await read_body(receive)
        await trio.sleep(1)
        running -= 1
        await respond(send, scope["raw_path"])

    async def body(world: World) -> None:
        client = await world.connect()
        requests = [post(b"x" * n, path=f"/{n}") for n in range(5)]
        joined = b"".join(requests)
        await client.send_all(joined[:200])
        await client.send_all(joined[200:])
        answer = await read_until(client, b"/4")
        found = [answer.index(b"\r\n\r\n/%d" % n) for n in range(5)]
        assert found == sorted(found)
        assert trio.current_time() == 5

    in_world(app, body)


def test_requests_split_anywhere_are_understood() -> None:
    request = post(b"split me") + post(b"and me")

    async def body(world: World) -> None:
        for step in (1, 3, 7):
            client = await world.connect()
            for at in range(0, len(request), step):
                await client.send_all(request[at : at + step])
                await wait_all_tasks_blocked()
            answer = await read_until(client, b"and me")
            assert b"split me" in answer

    in_world(echo, body)


def test_continue_is_sent_when_the_application_asks_for_the_body() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] == "/refuse":
            await respond(send, status=413)
        else:
            await echo(scope, receive, send)

    async def body(world: World) -> None:
        head = b"POST / HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: 3\r\n\r\n"
        client = await world.connect()
        await client.send_all(head)
        assert await client.receive_some() == b"HTTP/1.1 100 Continue\r\n\r\n"
        await client.send_all(b"abc")
        assert (await client.receive_some()).endswith(b"abc")
        await client.send_all(head + b"def")
        assert (await client.receive_some()).startswith(b"HTTP/1.1 200")
        refused = await world.ask(head.replace(b"/ ", b"/refuse ", 1))
        assert refused.startswith(b"HTTP/1.1 413")
        assert b"connection: close" in refused

    in_world(app, body)


def test_continue_is_not_sent_into_an_answer() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await start(send)
        await part(send, b"early")
        assert await read_body(receive) == b"abc"
        await send({"type": "http.response.body", "body": b"late"})

    async def body(world: World) -> None:
        client = await world.connect()
        await client.send_all(
            b"POST / HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: 3\r\n\r\n",
        )
        await read_until(client, b"early\r\n")
        await wait_all_tasks_blocked()
        await client.send_all(b"abc")
        assert await read_to_end(client) == b"4\r\nlate\r\n0\r\n\r\n"

    in_world(app, body)


@pytest.mark.parametrize("more", [True, False])
def test_how_a_body_is_transferred_is_for_the_server_to_say(more: bool) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await start(send, Transfer_Encoding="chunked")
        if more:
            await part(send, b"a")
        await send({"type": "http.response.body", "body": b"b"})

    async def body(world: World) -> None:
        client = await world.connect()
        for _ in range(2):
            await client.send_all(GET)
            answer = await read_until(client, b"0\r\n\r\n" if more else b"b")
            assert answer.lower().count(b"transfer-encoding") == more
            assert answer.lower().count(b"content-length") == (not more)

    in_world(app, body)


@pytest.mark.parametrize("name", ["Connection", "connection"])
def test_an_application_may_end_the_connection(name: str) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await start(send, **{name: "Close"})
        await send({"type": "http.response.body", "body": b"x"})

    async def body(world: World) -> None:
        assert (await world.ask(GET)).lower().count(b"connection: close") == 1

    in_world(app, body)


def test_date_and_server_are_sent_only_when_asked_for() -> None:
    async def body(world: World) -> None:
        client = await world.connect()
        await client.send_all(GET)
        answer = await client.receive_some()
        assert b"\r\ndate: " in answer
        assert b"\r\nserver: " in answer

    options = ServerOptions(include_date_header=True, include_server_header=True)
    in_world(echo, body, options=options)


def test_connection_close_is_honoured() -> None:
    async def body(world: World) -> None:
        request = b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
        assert b"connection: close" in await world.ask(request)
        # Some clients end a body with an extra line; it must not spoil the answer.
        assert (await world.ask(request + b"\r\n")).startswith(b"HTTP/1.1 200")

    in_world(echo, body)


def test_keep_alive_ends_after_the_allowed_number_of_requests() -> None:
    async def body(world: World) -> None:
        client = await world.connect()
        await client.send_all(GET)
        assert b"close" not in await client.receive_some()
        await client.send_all(GET)
        assert b"connection: close" in await read_to_end(client)

    in_world(echo, body, options=ServerOptions(keep_alive_max_requests=2))


def test_an_application_may_go_on_after_its_answer() -> None:
    ended = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await respond(send)
        assert await receive() == {"type": "http.disconnect"}
        await trio.sleep(10)
        ended.append(scope["raw_path"])

    async def body(world: World) -> None:
        client = await world.connect()
        for path in (b"/1", b"/2"):
            await client.send_all(GET.replace(b"/", path, 1))
            assert await client.receive_some() == OK_EMPTY
        assert world.server.requests == 2
        await trio.sleep(11)
        assert sorted(ended) == [b"/1", b"/2"]

    in_world(app, body)
