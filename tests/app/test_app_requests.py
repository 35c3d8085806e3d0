"""Bad input: each a clear error, and nothing lost. Headers in and out. The other pages."""

from __future__ import annotations

import contextlib
import json
import random
from typing import Any
from urllib.parse import quote

import attrs
import pytest
import trio

from narwhal.model import Terminal
from narwhal.telemetry import Endpoint
from narwhal.telemetry.kinds import StatusClass

from stub_fleet import Play, good
from worlds import World, fleet_config, play

ASK = {"model": "m", "prompt": "hello", "max_tokens": 2}
DEEP = b'{"model":"m","prompt":"x","v":' + b"[" * 10_000 + b"]" * 10_000 + b"}"


@pytest.mark.parametrize("stream", [b"true", b"false"])
@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b"", None),
        (b"{", None),
        (b'{"model":"m","prompt":"x"} trailing', None),
        (b"[1,2]", None),
        (b'"m"', None),
        (b'{"model":"m","prompt":"x","temperature":NaN}', None),
        (b'{"model":"m","model":"m","prompt":"x"}', "model"),
        (b'{"model":"m","prompt":"\xff"}', None),
        (DEEP, None),
        (b'{"prompt":"x"}', "model"),
        (b'{"model":7,"prompt":"x"}', "model"),
        (b'{"model":"m"}', "prompt"),
        (b'{"model":"m","prompt":123}', "prompt"),
        (b'{"model":"m","prompt":[]}', "prompt"),
        (b'{"model":"m","prompt":["a","b"]}', "prompt"),
        (b'{"model":"m","prompt":"x","n":2}', "n"),
        (b'{"model":"m","prompt":"x","best_of":2}', "best_of"),
        (b'{"model":"m","prompt":"x","stream":"yes"}', "stream"),
        (b'{"model":"m","prompt":"x","max_tokens":0}', "max_tokens"),
        (b'{"model":"m","prompt":"x","max_tokens":true}', "max_tokens"),
        (b'{"model":"m","prompt":"x","max_tokens":1.5}', "max_tokens"),
        (
            b'{"model":"m","prompt":"x","kv_transfer_params":{"do_remote_prefill":true}}',
            "kv_transfer_params",
        ),
    ],
)
def test_a_bad_body_is_a_400_that_names_the_field(
    body: bytes, param: str | None, stream: bytes
) -> None:
    if body.startswith(b'{"model":"m",') and b'"stream"' not in body and body != DEEP:
        body = body.replace(b'{"model":"m",', b'{"stream":%b,"model":"m",' % stream, 1)

    async def main(world: World) -> None:
        answer = await world.post(body)
        assert answer.status == 400
        assert answer.headers["content-type"] == "application/json"
        assert answer.error["type"] == "invalid_request_error"
        assert answer.error["param"] == param
        assert answer.error["message"]
        assert world.row.terminal is Terminal.INVALID
        assert not world.stubs.seen
        assert (await world.post(ASK)).status == 200

    play(main)


def test_bad_chats() -> None:
    async def main(world: World) -> None:
        wrong: list[Any] = [123, "hi", [], [1], None, {}]
        for messages in wrong:
            ask = {"model": "m", "messages": messages}
            answer = await world.post(ask, "/v1/chat/completions")
            assert (answer.status, answer.error["param"]) == (400, "messages"), messages

    play(main)


def test_an_unknown_model_is_a_404_in_either_form() -> None:
    async def main(world: World) -> None:
        for stream in (True, False):
            answer = await world.post(ASK | {"model": "gpt-9", "stream": stream})
            assert (answer.status, answer.error["code"]) == (404, "model_not_found")
            assert "'gpt-9'" in answer.error["message"]
            assert "'m'" in answer.error["message"]

    play(main)


@pytest.mark.parametrize(
    ("path", "method", "status"),
    [
        ("/", "GET", 404),
        ("/v1/embeddings", "POST", 404),
        ("/v1/completions/", "POST", 404),
        ("/v1/completions", "GET", 405),
        ("/v1/chat/completions", "DELETE", 405),
        ("/health", "POST", 405),
        ("/metrics", "PUT", 405),
    ],
)
def test_unknown_routes_and_methods(path: str, method: str, status: int) -> None:
    async def main(world: World) -> None:
        answer = await world.get(path, method)
        assert answer.status == status
        assert answer.error["message"]
        assert answer.error["code"] == {404: "not_found", 405: "method_not_allowed"}[status]
        assert ("allow" in answer.headers) is (status == 405)
        assert not world.rows

    play(main)


@pytest.mark.parametrize("declared", [True, False])
def test_a_body_over_the_limit_is_a_413_that_the_client_can_read(declared: bool) -> None:
    async def main(world: World) -> None:
        body = json.dumps(ASK | {"prompt": "x" * 5 * 1024 * 1024}).encode()
        client = await world.connect()
        if declared:
            head = b"content-length: %d\r\n" % len(body)
        else:
            head = b"transfer-encoding: chunked\r\n"
            body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)

        async def upload() -> None:
            with contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                await client.stream.send_all(
                    b"POST /v1/completions HTTP/1.1\r\nhost: x\r\n" + head + b"\r\n" + body
                )

        async with trio.open_nursery() as nursery:
            nursery.start_soon(upload)
            client._h11.send(_h11_request())
            answer = await client.answer()
            nursery.cancel_scope.cancel(reason="answered")
        assert (answer.status, answer.error["code"]) == (413, "body_too_large")
        assert "serving.max_request_bytes" in answer.error["message"]
        client.close()
        assert (await world.post(ASK)).status == 200

    play(main)


def _h11_request() -> Any:
    import h11

    return h11.Request(method="POST", target="/", headers=[("host", "x"), ("content-length", "0")])


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"content-type": "text/plain"}, 400),
        ({"content-type": "application/x-www-form-urlencoded"}, 400),
        ({"content-encoding": "gzip"}, 400),
        ({"content-type": "application/json; charset=utf-8"}, 200),
    ],
)
def test_content_types(headers: dict[str, str], status: int) -> None:
    async def main(world: World) -> None:
        assert (await world.post(ASK, headers=headers)).status == status

    play(main)


def test_pipelined_requests_are_answered_in_order() -> None:
    async def main(world: World) -> None:
        client = await world.connect()
        one = json.dumps(ASK).encode()
        request = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%b" % (
            len(one),
            one,
        )
        await client.stream.send_all(request * 3 + b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
        data = b""
        while data.count(b"HTTP/1.1 200") < 4:
            data += await client.stream.receive_some()
        client.close()
        assert [row.terminal for row in world.rows] == [Terminal.COMPLETED] * 3

    play(main)


# Headers


@pytest.mark.parametrize("stream", [True, False])
def test_what_goes_to_engines_and_what_comes_back(stream: bool) -> None:
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    headers = {
        "authorization": "Bearer clients-own",
        "cookie": "secret=1",
        "x-request-id": "mine-42",
        "traceparent": trace,
        "tracestate": "vendor=1,other=2",
        "te": "trailers",
        "x-custom": "1",
    }

    async def main(world: World) -> None:
        answer = await world.post(ASK | {"stream": stream}, headers=headers)
        assert answer.status == 200
        assert answer.headers["x-request-id"] == "mine-42"
        if stream:
            assert answer.headers["cache-control"] == "no-cache"
            assert answer.headers["x-accel-buffering"] == "no"
            assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
        ids = set()
        for seen in world.stubs.seen:
            assert not {"cookie", "te", "x-custom"} & seen.headers.keys()
            assert seen.headers["authorization"] == "Bearer engine-secret"
            if seen.leg in ("prefill", "decode"):
                assert seen.headers["traceparent"] == trace
                assert seen.headers["tracestate"] == "vendor=1,other=2"
                ids.add(seen.headers["x-request-id"])
        assert len(ids) == 2
        assert not any("mine-42" in each for each in ids)
        assert world.row.client_request_id == "mine-42"
        assert world.row.request_id.startswith("req-")

    play(main, fleet_config(engine={"engine_api_key_env": "ENGINE_KEY"}))


@pytest.mark.parametrize("bad", ["a b", "x" * 500, 'q"uote\\', "caf\u00e9"])
def test_a_clients_id_cannot_do_harm(bad: str) -> None:
    async def main(world: World) -> None:
        client = await world.connect()
        raw = json.dumps(ASK).encode()
        await client.stream.send_all(
            b"POST /v1/completions HTTP/1.1\r\nhost: x\r\nx-request-id: "
            + bad.encode()
            + b"\r\ncontent-length: %d\r\n\r\n" % len(raw)
            + raw
        )
        client._h11.send(_h11_request())
        answer = await client.answer()
        client.close()
        assert answer.status == 200
        assert answer.headers["x-request-id"].isascii()
        assert len(answer.headers["x-request-id"]) <= 128

    play(main)


def test_engines_that_want_a_key_get_it_on_every_call() -> None:
    async def main(world: World) -> None:
        for stub in world.stubs.engines.values():
            stub.key = "engine-secret"
        assert (await world.post(ASK, headers={"authorization": "Bearer x"})).status == 200
        for client in world.router.core.engines.values():
            assert await client.health()
        for page in ("/health", "/ready", "/metrics", "/narwhal/state"):
            answer = await world.get(page)
            assert answer.status == 200
            assert b"engine-secret" not in answer.body

    play(main, fleet_config(engine={"engine_api_key_env": "ENGINE_KEY"}))


# Pages


def test_pages() -> None:
    async def main(world: World) -> None:
        await world.post(ASK)
        models = await world.get("/v1/models")
        assert [each["id"] for each in models.json["data"]] == ["m"]
        assert (await world.get("/health")).status == 200
        assert (await world.get("/ready")).json == {"ready": True}
        state = (await world.get("/narwhal/state")).json
        assert state["requests"]["terminals"]["completed"] == 1
        assert {e["iid"] for e in state["engines"]} == {"p0", "d0"}
        assert state["pools"] == {"prefill": ["p0"], "decode": ["d0"]}
        assert state["admission"]["offers"] == {"sized": 1, "unsized": 0}
        metrics = (await world.get("/metrics")).body.decode()
        assert 'narwhal_requests_total{route="completions",terminal="completed"} 1.0' in metrics
        head = await world.get("/health", "HEAD")
        assert (head.status, head.body) == (200, b"")

    play(main)


@pytest.mark.parametrize("model", ["m", "meta-llama/Llama-3.1-8B", "a b/ü?%2F#", "/", "models"])
def test_a_model_is_found_by_its_id(model: str) -> None:
    """As `models.retrieve` asks, which escapes slashes, and as people write it."""

    async def main(world: World) -> None:
        listed = (await world.get("/v1/models")).json["data"]
        for path in {quote(model), quote(model, safe="")}:
            found = await world.get(f"/v1/models/{path}")
            assert (found.status, [found.json]) == (200, listed)
            head = await world.get(f"/v1/models/{path}", "HEAD")
            assert (head.status, head.body) == (200, b"")
            for method in ("POST", "DELETE"):
                answer = await world.post(b"{}", f"/v1/models/{path}", method=method)
                assert (answer.status, answer.headers["allow"]) == (405, "GET")
            unknown = await world.get(f"/v1/models/{path}x")
            posted = await world.post(ASK | {"model": f"{model}x"})
            assert unknown.status == posted.status == 404
            told = unknown.error
            assert told == {name: posted.error[name] for name in told}
            assert (told["type"], told["param"]) == ("invalid_request_error", "model")
            assert told["code"] == "model_not_found"
        assert (await world.get("/v1/models/")).error["code"] == "not_found"
        assert (await world.get("/v1/models?id=m")).json["data"] == listed
        told_of = world.router.telemetry.metrics.http_responses
        assert told_of[Endpoint.MODELS, StatusClass.CLIENT].value

    play(main, attrs.evolve(fleet_config(), model=model))


def test_no_client_can_make_a_metric_series() -> None:
    async def main(world: World) -> None:
        rng = random.Random(7)
        before = (await world.get("/metrics")).body.count(b"\n")

        def word() -> str:
            return "".join(rng.choices("abcdefghij", k=8))

        client = await world.connect()
        for n in range(2000):
            kind = n % 4
            headers = {"x-request-id": word(), "user-agent": word(), "x-tenant": word()}
            if kind == 0:
                await client.ask(ASK | {"model": word()}, headers=headers)
            elif kind == 1:
                await client.ask(None, "/" + word(), "GET", headers)
            elif kind == 2:
                await client.ask(None, "/v1/completions", word().upper(), headers)
            else:
                await client.ask(ASK | {"user": word()}, headers=headers)
            await client.answer()
            client.next_cycle()
        client.close()
        metrics = (await world.get("/metrics")).body
        assert metrics.count(b"\n") == before
        assert b'narwhal_requests_ended_total{code="model_not_found"} 500.0' in metrics

    play(main)


def test_big_prompts_do_not_starve_the_health_page() -> None:
    async def main(world: World) -> None:
        async def slow(play_: Play) -> None:
            await play_.wait(0.5)
            await good(play_)

        world.script(slow)
        async with trio.open_nursery() as nursery:
            for _ in range(150):
                nursery.start_soon(world.post, ASK | {"prompt": "x" * 220_000})
            for _ in range(10):
                await trio.sleep(0.1)
                assert (await world.get("/health")).seconds < 0.01

    play(main)
