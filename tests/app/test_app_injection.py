"""What a client writes that ends up in a head: its own answer's, or that of a leg."""

from __future__ import annotations

import json
from typing import Any

import pytest

from stub_fleet import Play, good
from worlds import World, fleet_config, play

ASK = {"model": "m", "prompt": "hello", "max_tokens": 4}
LINE = "a\r\nx-injected: yes"
LINES = [LINE, "a\nx-injected: yes", "a\rx-injected: yes", "a\0", "a\u2028x", "ä", "\x7f"]
TRACE = "00-0123456789abcdef0123456789abcdef-0123456789abcdef-01"


def heads(world: World) -> str:
    """The heads of all legs."""
    return json.dumps([each.headers for each in world.stubs.seen]).lower()


@pytest.mark.parametrize("text", LINES)
@pytest.mark.parametrize("field", ["model", "prompt", "user", "request_id", "x-request-id"])
def test_no_value_of_a_body_gets_into_a_head(text: str, field: str) -> None:
    async def body(world: World) -> None:
        answer = await world.post(ASK | {field: text})
        assert answer.status == (404 if field == "model" else 200)
        assert "x-injected" not in answer.headers
        assert "x-injected" not in heads(world)
        # In the answer's body it is escaped, and its length is right.
        assert answer.complete
        if field == "model":
            assert "\r\n" not in answer.body.decode().rstrip()

    play(body)


@pytest.mark.parametrize("name", [b"x-request-id", b"traceparent", b"content-type", b"host"])
@pytest.mark.parametrize(
    "value", [b"a\rx-injected: yes", b"a\nx-injected: yes", b"a\0b", b"a\r\n x-injected: yes"]
)
def test_a_header_that_is_none_is_refused_before_anybody_looks(name: bytes, value: bytes) -> None:
    async def body(world: World) -> None:
        client = await world.connect()
        raw = json.dumps(ASK).encode()
        await client.stream.send_all(
            b"POST /v1/completions HTTP/1.1\r\ncontent-length: %d\r\n%b: %b\r\n%b\r\n%b"
            % (len(raw), name, value, b"" if name == b"host" else b"host: router\r\n", raw)
        )
        answer = await client.answer()
        assert answer.status == 400
        assert "x-injected" not in answer.headers
        assert not world.stubs.seen
        client.close()

    play(body)


@pytest.mark.parametrize("shown", ["a" * 128, "~!", "id-1"])
def test_a_harmless_id_comes_back(shown: str) -> None:
    async def body(world: World) -> None:
        answer = await world.post(ASK, headers={"x-request-id": shown})
        assert answer.headers["x-request-id"] == shown
        assert shown not in heads(world)

    play(body)


@pytest.mark.parametrize("odd", ["a" * 129, "a b", "a\tb", "\xff", ""])
def test_another_id_is_dropped(odd: str) -> None:
    async def body(world: World) -> None:
        headers: dict[str, Any] = {"x-request-id": odd.encode("latin-1")}
        answer = await world.post(ASK, headers=headers)
        assert answer.headers["x-request-id"].startswith("req-")
        assert world.row.client_request_id is None

    play(body)


@pytest.mark.parametrize(
    ("trace", "passed"),
    [(TRACE, True), (TRACE.upper(), False), (TRACE + "x", False), ("", False)],
)
def test_only_a_trace_context_is_passed_on(trace: str, passed: bool) -> None:
    async def body(world: World) -> None:
        await world.post(ASK, headers={"traceparent": trace})
        found = {each.headers.get("traceparent") for each in world.stubs.legs("prefill")}
        assert found == ({TRACE} if passed else {None})

    play(body)


def test_what_goes_with_a_trace_context_cannot_forge_a_line() -> None:
    async def body(world: World) -> None:
        odd: Any = {"traceparent": TRACE, "tracestate": "a=\xff".encode("latin-1")}
        await world.post(ASK, headers=odd)
        await world.post(ASK, headers={"traceparent": TRACE, "tracestate": "a=1," * 200})
        await world.post(ASK, headers={"tracestate": "a=1"})
        found = [each.headers.get("tracestate") for each in world.stubs.legs("prefill")]
        assert found == [None, ",".join(["a=1"] * 128), None]

    play(body)


def test_nothing_else_of_a_client_s_head_is_passed_on() -> None:
    async def body(world: World) -> None:
        names = ("authorization", "cookie", "x-forwarded-for", "x-data-parallel-rank", "via")
        await world.post(ASK, headers=dict.fromkeys(names, "mine"))
        assert "mine" not in heads(world)

    play(body, fleet_config(engine={"engine_api_key_env": "ENGINE_KEY"}))


OK = b"HTTP/1.1 200 OK\r\n"
AMBIGUOUS = {
    "length-and-chunks": OK + b"content-length: 2\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    "two-lengths": OK + b"content-length: 2\r\ncontent-length: 3\r\n\r\n{} ",
    "another-coding": OK + b"transfer-encoding: gzip, chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
    "bad-chunk": OK + b"transfer-encoding: chunked\r\n\r\n-2\r\n{}\r\n0\r\n\r\n",
    "flood": OK + b"a: b\r\n" * 20_000 + b"content-length: 2\r\n\r\n{}",
}


@pytest.mark.parametrize("case", AMBIGUOUS)
@pytest.mark.parametrize("leg", ["prefill", "decode"])
def test_an_engine_that_answers_in_two_ways_has_failed(case: str, leg: str) -> None:
    async def body(world: World) -> None:
        async def script(play_: Play) -> None:
            if play_.leg == leg:
                await play_.send(AMBIGUOUS[case])
            else:
                await good(play_)

        world.script(script)
        answer = await world.post(ASK)
        assert (answer.status, answer.error["code"]) == (502, "engine_protocol")
        engine = world.router.core.engines["p0" if leg == "prefill" else "d0"]
        assert engine.pools.data.idle == 0, "its connection is not used again"
        assert b"gzip" not in answer.body

    play(body, fleet_config(engine={"tokenize": False}))


@pytest.mark.parametrize(
    "header", [b"x-evil: a\r\n b", b"set-cookie: mine", b"connection: mine", b"retry-after: 5\x0b6"]
)
def test_headers_of_an_engine_do_not_reach_the_client(header: bytes) -> None:
    async def body(world: World) -> None:
        async def script(play_: Any) -> None:
            content = b'{"error":{"message":"no","type":"t","code":400}}'
            await play_.send(
                b"HTTP/1.1 503 X\r\ncontent-type: application/json\r\n%b\r\n"
                b"content-length: %d\r\n\r\n%b" % (header, len(content), content)
            )

        world.script(script)
        answer = await world.post(ASK)
        assert answer.status in (502, 503)
        assert "mine" not in str(answer.headers)
        assert {"x-evil", "set-cookie"}.isdisjoint(answer.headers)
        assert answer.headers.get("retry-after", "1").isdigit()

    play(body)
