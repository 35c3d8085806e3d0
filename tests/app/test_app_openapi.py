"""`/openapi.json` against the routes, the answers and the codes that it describes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest
import trio
from jsonschema import Draft202012Validator
from openapi_spec_validator import OpenAPIV31SpecValidator
from referencing import Registry, Resource
from trio.testing import MockClock

from narwhal import Router
from narwhal.app.openapi import errors, openapi_document
from narwhal.app.openapi.state import state_schemas
from narwhal.net import MemoryNetwork, Server
from narwhal.telemetry import Endpoint
from narwhal.telemetry.codes import ERROR_CODES
from narwhal.testing import MemoryFleet, open_fleet
from narwhal.testing import fleet_config as emulated_config

from worlds import Answer, Client, World, fleet_config, play

ASK: dict[str, Any] = {"model": "m", "prompt": "hello", "max_tokens": 3}
CHAT: dict[str, Any] = {
    "model": "m",
    "messages": [{"role": "user", "content": "hello"}],
    "max_tokens": 3,
}
COMPLETIONS: list[tuple[str, dict[str, Any]]] = [
    ("/v1/completions", ASK),
    ("/v1/chat/completions", CHAT),
]
METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS")


def document_of(router: Router) -> Any:
    app: Any = router.app
    engines = [spec.iid for spec in router.config.engines]
    made = openapi_document(app.routes, model=router.config.model, engines=engines)
    return msgspec.json.decode(made)


class Described:
    """A router on emulated engines, and what it says of its answers."""

    def __init__(self, router: Router, network: MemoryNetwork) -> None:
        self.document = document_of(router)
        self._network = network
        # A name of its own for the document, so that what is taken out of it can refer to it.
        self._whole = self._named(self.document)
        resource = Resource.opaque(self._whole)
        self._registry: Any = Registry().with_resource("doc:", resource)

    @staticmethod
    def _named(part: Any) -> Any:
        return msgspec.json.decode(msgspec.json.encode(part).replace(b'"#/', b'"doc:#/'))

    def response(self, method: str, path: str, status: int) -> Any:
        responses = self.document["paths"][path][method.lower()]["responses"]
        exact, ranged = str(status), f"{status // 100}XX"
        return responses[exact if exact in responses else ranged]

    async def ask(self, path: str, body: Any = None, *, model: str = "m") -> Answer:
        """Ask, and check that the answer is one of those that the document lists."""
        client = Client(await self._network.connect("router", 8000))
        method = "GET" if body is None else "POST"
        answer = await (await client.ask(body, path.format(model=model), method)).answer()
        client.close()
        content = self.response(method, path, answer.status)["content"]
        kind = answer.headers["content-type"].partition(";")[0]
        assert kind in content
        if kind == "application/json":
            self.valid(content[kind]["schema"], answer.json)
        return answer

    def valid(self, schema: Any, value: Any) -> None:
        Draft202012Validator(self._named(schema), registry=self._registry).validate(value)


def play_described(body: Callable[[Described, Router, MemoryFleet], Awaitable[None]]) -> None:
    async def main() -> None:
        config = emulated_config(model="m")
        async with (
            open_fleet(config) as fleet,
            fleet.open_router() as router,
            trio.open_nursery() as nursery,
        ):
            listener = fleet.network.listen("router", 8000)
            await nursery.start(Server(router.app).serve, [listener])
            await body(Described(router, fleet.network), router, fleet)
            nursery.cancel_scope.cancel(reason="all was asked")

    trio.run(main, clock=MockClock(autojump_threshold=0))


def test_it_is_a_document_of_its_kind_and_the_same_each_time() -> None:
    async def body(world: World) -> None:
        answer = await world.get("/openapi.json")
        assert (answer.status, answer.headers["content-type"]) == (200, "application/json")
        assert answer.json == document_of(world.router)
        assert answer.json["openapi"] == "3.1.0"
        OpenAPIV31SpecValidator(answer.json).validate()
        assert (await world.get("/openapi.json")).body == answer.body
        head = await world.get("/openapi.json", "HEAD")
        assert (head.body, head.headers) == (b"", answer.headers)
        metrics = world.router.telemetry.metrics.http_responses
        assert sum(cell.value for (end, _), cell in metrics.items() if end is Endpoint.OPENAPI) == 3

    play(body)


def test_every_route_is_in_it_and_every_route_in_it_is_served() -> None:
    async def body(world: World) -> None:
        paths = document_of(world.router)["paths"]
        app: Any = world.router.app
        assert set(paths) == set(app.routes)
        for path, operations in paths.items():
            for method in METHODS:
                answer = await world.post(
                    b"{}" if method == "POST" else None, path.format(model="m"), method=method
                )
                if method.lower() in operations:
                    assert answer.status in (200, 400), (method, path)
                else:
                    assert answer.status == 405
                    assert answer.headers["allow"].lower() in operations
        names = [op["operationId"] for each in paths.values() for op in each.values()]
        assert len(set(names)) == len(names)

    play(body)


def test_a_route_of_which_nothing_is_known_is_noticed() -> None:
    with pytest.raises(KeyError):
        openapi_document({"/elsewhere": "GET"}, model="m", engines=["p0"])


def test_the_state_is_typed_to_its_leaves() -> None:
    """A program that is made from the document has a name for everything in a state."""
    made = openapi_document({}, model="m", engines=["p0"])
    schemas = msgspec.json.decode(made)["components"]["schemas"]
    parts = state_schemas()
    assert parts.items() <= schemas.items(), "two schemas of one name"

    def untyped(schema: Any, where: str) -> list[str]:
        if "$ref" in schema:
            return []
        if "anyOf" in schema:
            return [each for one in schema["anyOf"] for each in untyped(one, where)]
        if "enum" in schema or schema.get("type") not in ("object", "array"):
            return [] if "type" in schema else [where]
        inner = schema.get("properties", {}) | {
            key: schema[key] for key in ("items", "additionalProperties") if key in schema
        }
        if not inner:
            return [where]
        return [each for key, one in inner.items() for each in untyped(one, f"{where}.{key}")]

    assert [each for name, part in parts.items() for each in untyped(part, name)] == []
    assert untyped({"type": "object", "properties": {"a": {"type": "object"}}}, "x") == ["x.a"]
    assert all("description" in part for part in parts.values())


def test_answers_are_as_they_are_described() -> None:
    async def body(described: Described, router: Router, fleet: MemoryFleet) -> None:
        for path, operations in described.document["paths"].items():
            if "get" in operations:
                assert (await described.ask(path)).status == 200
        unknown = await described.ask("/v1/models/{model}", model="other")
        assert (unknown.status, unknown.error["code"]) == (404, "model_not_found")
        for path, ask in COMPLETIONS:
            whole = await described.ask(path, ask)
            streamed = await described.ask(path, ask | {"stream": True})
            assert (whole.status, streamed.status) == (200, 200)
            for wrong in ({"n": 2}, {"model": "other"}, {"stream": "yes"}):
                assert (await described.ask(path, ask | wrong)).status in (400, 404)
            assert (await described.ask(path, {})).status == 400
        await router.drain(0)
        assert (await described.ask("/ready")).status == 503
        assert (await described.ask("/v1/completions", ASK)).status == 503

    play_described(body)


def test_answers_to_orders_are_as_they_are_described() -> None:
    async def body(described: Described, router: Router, fleet: MemoryFleet) -> None:
        told: list[tuple[str, dict[str, Any], int]] = [
            ("drain", {"engine": "d0", "deadline_s": 9}, 200),
            ("drain", {"engine": "none"}, 404),
            ("drain", {"deadline_s": 0}, 400),
            ("drain", {"engine": "x" * 20_000}, 413),
            ("readmit", {"engine": "p0"}, 409),
            ("readmit", {"engine": "d0"}, 409),
            ("readmit", {"engine": "d0", "same_process": True}, 200),
            ("readmit", {}, 400),
        ]
        for order, ask, status in told:
            answer = await described.ask(f"/narwhal/lifecycle/{order}", ask)
            assert answer.status == status, answer.body
        await described.ask("/narwhal/lifecycle")

    play_described(body)


@pytest.mark.parametrize(("path", "ask"), COMPLETIONS)
def test_the_events_of_a_stream_are_as_they_are_described(path: str, ask: Any) -> None:
    async def body(described: Described, router: Router, fleet: MemoryFleet) -> None:
        words = described.response("POST", path, 200)["description"]
        (name,) = (each for each in ("ChatCompletionChunk", "Completion") if f"`{each}`" in words)
        schema = {"$ref": f"#/components/schemas/{name}"}
        options = {"stream": True, "stream_options": {"include_usage": True}}
        events = (await described.ask(path, ask | options)).events
        assert events.pop() == b"[DONE]"
        assert len(events) >= 4
        for event in events:
            described.valid(schema, event)
        fleet.fail_with("decode:tokens(1);end")
        failed = (await described.ask(path, ask | options)).events
        described.valid({"$ref": "#/components/schemas/CompletionError"}, failed[-1])

    play_described(body)


def test_failures_of_engines_are_as_they_are_described() -> None:
    async def body(described: Described, router: Router, fleet: MemoryFleet) -> None:
        refused = await described.ask("/v1/completions", ASK | {"max_tokens": 10**7})
        assert refused.status == 400
        for fault, status in (("decode:status(422)", 422), ("decode:rst", 502), ("nokv", 502)):
            fleet.fail_with(fault)
            assert (await described.ask("/v1/completions", ASK)).status == status

    play_described(body)


def test_the_codes_are_the_catalogue_s() -> None:
    other = {*errors.IN_STREAMS, *errors.UNSENT, *errors.PASSED_ON}
    assert set(errors.STATUSES) | other == set(ERROR_CODES)
    assert not set(errors.STATUSES) & other
    document = msgspec.json.decode(openapi_document({}, model="m", engines=["p0"]))
    listed = document["components"]["schemas"]["ErrorCode"]["enum"]
    assert set(ERROR_CODES) - {*errors.UNSENT, *errors.PASSED_ON} <= set(listed)
    for status in {*errors.STATUSES.values()}:
        assert (
            f"`{errors.codes_of(status)[0]}`"
            in errors.completion_errors()[str(status)]["description"]
        )


def test_it_names_this_fleet_s_model_and_engines() -> None:
    async def body(world: World) -> None:
        paths = document_of(world.router)["paths"]
        text = msgspec.json.encode(paths["/v1/completions"]).decode()
        assert '"model":{"const":"m"' in text
        order = paths["/narwhal/lifecycle/drain"]["post"]["requestBody"]["content"]
        schema = order["application/json"]["schema"]
        assert schema["properties"]["engine"]["enum"] == ["p0", "p1", "d0", "all"]

    play(body, fleet_config(prefill=2))


def test_what_is_answered_without_a_key_or_token_is_in_it() -> None:
    config = fleet_config(api_key_env="CLIENT_KEYS", control={"token_env": "CONTROL_TOKEN"})

    async def body(world: World) -> None:
        document = document_of(world.router)
        for path, operations in document["paths"].items():
            method = next(iter(operations))
            answer = await world.get(path, method.upper())
            asked = {next(iter(way)) for way in operations[method].get("security", []) if way}
            assert asked <= set(document["components"]["securitySchemes"])
            if answer.status == 401:
                assert asked == {"OperatorToken" if path.startswith("/narwhal/") else "ClientKey"}
                described = operations[method]["responses"]["401"]["description"]
                assert f"`{answer.error['code']}`" in described
            else:
                assert path in {"/health", "/ready", "/metrics"}

    play(body, config)
