"""The lifecycle routes: bodies, refusals, and clients that leave, on any server and on our own."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest
import trio

from narwhal import Router
from narwhal.app.lifecycle import MOST_BYTES
from narwhal.config import FleetConfig
from narwhal.fleet import EngineState
from narwhal.net import Server
from narwhal.testing import MemoryFleet, fleet_config, open_fleet, run_seeded

S = EngineState
PATH = "/narwhal/lifecycle"
Body = Callable[[httpx.AsyncClient, MemoryFleet, Router], Awaitable[None]]


def play(body: Body, config: FleetConfig | None = None) -> None:
    """Run `body` with a client, in virtual time, on a server that has no extensions of ours."""

    async def main() -> None:
        made = config or fleet_config(prefill=1, decode=2)
        async with open_fleet(made) as fleet, fleet.open_router() as router:
            transport = httpx.ASGITransport(app=router.app)
            async with httpx.AsyncClient(transport=transport, base_url="http://router") as client:
                with trio.fail_after(600):
                    await body(client, fleet, router)

    run_seeded(main)


def error(answer: httpx.Response) -> tuple[int, str, str]:
    told = answer.json()["error"]
    return answer.status_code, told["code"], told["message"]


def test_the_state_of_every_engine() -> None:
    async def body(client: httpx.AsyncClient, fleet: MemoryFleet, router: Router) -> None:
        answer = await client.get(PATH)
        assert answer.status_code == 200
        engines = answer.json()["engines"]
        assert [each["iid"] for each in engines] == ["p0", "d0", "d1"]
        assert engines[0] == {
            "iid": "p0",
            "role": "prefill",
            "state": "serving",
            "reason": "",
            "residents": 0,
            "ready_to_stop": False,
            "checking": None,
            "process_start_s": None,
            "drain": None,
        }
        head = await client.head(PATH)
        assert (head.status_code, head.content) == (200, b"")
        counted = [
            line
            for line in router.telemetry.metrics.render().splitlines()
            if b"http_responses" in line and b'"lifecycle"' in line and b'"2xx"' in line
        ]
        assert [line.split()[-1] for line in counted] == [b"2.0"]

    play(body)


def test_drain_restart_readmit() -> None:
    async def body(client: httpx.AsyncClient, fleet: MemoryFleet, router: Router) -> None:
        answer = await client.post(f"{PATH}/drain", json={"engine": "d0", "deadline_s": 60})
        assert answer.status_code == 200
        (engine,) = answer.json()["engines"]
        assert (engine["state"], engine["ready_to_stop"]) == ("drained", True)
        started = fleet["d0"].started_at
        assert engine["drain"] == {
            "since_s": 0.0,
            "deadline_s": pytest.approx(60.0),
            "overdue": False,
            "process_start_s": started,
        }
        state = json.loads(router.telemetry.state(trio.current_time()))
        shown = {each["iid"]: each["drain"] for each in state["engines"]}
        assert shown == {"p0": None, "d0": engine["drain"], "d1": None}

        answer = await client.post(f"{PATH}/readmit", json={"engine": "d0"})
        status, code, message = error(answer)
        assert (status, code) == (409, "check_failed")
        assert message.startswith("d0 stays out of service. Its check identity failed: it is still")
        told = answer.json()
        assert told["passed"] == ["health", "model"]
        assert told["failed"]["check"] == "identity"
        assert told["engine"]["state"] == "drained"

        fleet["d0"].take_down(1.0, new_process=True)
        await trio.sleep(3)
        answer = await client.post(f"{PATH}/readmit", json={"engine": "d0"})
        assert answer.status_code == 200
        told = answer.json()
        assert told["engine"]["state"] == "serving"
        assert told["passed"][-1] == "health"
        assert (len(told["passed"]), told["skipped"]) == (7, [])
        assert told["engine"]["drain"] is None

        status, code, message = error(await client.post(f"{PATH}/readmit", json={"engine": "d0"}))
        assert (status, code) == (409, "not_now")
        assert message == "d0 is serving: there is nothing to readmit it from; drain it first."

    play(body)


@pytest.mark.parametrize("whole", [{}, {"engine": "all"}])
def test_the_fleet_as_a_wave(whole: dict[str, Any]) -> None:
    async def body(client: httpx.AsyncClient, fleet: MemoryFleet, router: Router) -> None:
        answer = await client.post(f"{PATH}/drain", json=whole)
        states = {each["iid"]: each["state"] for each in answer.json()["engines"]}
        assert states == dict.fromkeys(["p0", "d0", "d1"], "drained")
        assert (await client.get("/ready")).status_code == 503
        ask = {"model": "emulated", "prompt": "x"}
        refused = await client.post("/v1/completions", json=ask)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "no_engine")
        for iid in ("p0", "d0", "d1"):
            order = {"engine": iid, "same_process": True}
            assert (await client.post(f"{PATH}/readmit", json=order)).status_code == 200
        assert (await client.get("/ready")).status_code == 200

    play(body)


@pytest.mark.parametrize(
    ("order", "content", "kind", "says"),
    [
        ("drain", b"", "application/json", 'Send an object such as {"engine": "p0"}'),
        ("drain", b"{}", "", "content-type: application/json"),
        ("drain", b'{"engine":"d0"}', "text/plain", "content-type: application/json"),
        ("drain", b"{", "application/json", "no JSON"),
        ("drain", b'{"engine":"\xff"}', "application/json", "no JSON"),
        ("drain", b'["d0"]', "application/json", "Expected `object`, got `array`"),
        ("drain", b'{"engine":1}', "application/json", "$.engine"),
        ("drain", b'{"engine":null}', "application/json", "$.engine"),
        ("drain", b'{"engines":"d0"}', "application/json", "unknown field `engines`"),
        ("drain", b'{"deadline_s":0}', "application/json", "deadline_s is 0"),
        ("drain", b'{"deadline_s":-1}', "application/json", "more than 0"),
        ("drain", b'{"deadline_s":"9"}', "application/json", "$.deadline_s"),
        ("drain", b'{"same_process":true}', "application/json", "is for readmissions"),
        ("readmit", b"{}", "application/json", "Say which engine: one of p0, d0, d1"),
        ("readmit", b'{"engine":"d0","deadline_s":1}', "application/json", "is for drains"),
        ("readmit", b'{"engine":"d0","same_process":1}', "application/json", "$.same_process"),
    ],
)
def test_a_bad_body_says_what_to_send(order: str, content: bytes, kind: str, says: str) -> None:
    async def body(client: httpx.AsyncClient, fleet: MemoryFleet, router: Router) -> None:
        headers = {"content-type": kind} if kind else {}
        answer = await client.post(f"{PATH}/{order}", content=content, headers=headers)
        status, code, message = error(answer)
        assert (status, code) == (400, "invalid_request")
        assert says in message
        assert {each.state for each in router.live_state().engines} == {S.SERVING}

    play(body)


def test_bodies_are_bounded() -> None:
    async def body(client: httpx.AsyncClient, fleet: MemoryFleet, router: Router) -> None:
        long = b'{"engine": "' + b"d" * MOST_BYTES + b'"}'
        headers = {"content-type": "application/json"}
        status, code, message = error(
            await client.post(f"{PATH}/drain", content=long, headers=headers)
        )
        assert (status, code) == (413, "body_too_large")
        assert str(MOST_BYTES) in message

    play(body)


@pytest.mark.parametrize("order", ["drain", "readmit"])
def test_an_unknown_engine_is_told_of_the_others(order: str) -> None:
    async def body(client: httpx.AsyncClient, fleet: MemoryFleet, router: Router) -> None:
        answer = await client.post(f"{PATH}/{order}", json={"engine": "x" * 999})
        status, code, message = error(answer)
        assert (status, code) == (404, "engine_not_found")
        assert message == f'There is no engine "{"x" * 64}"; the fleet has p0, d0, d1.'

    play(body)


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [("POST", "", "GET"), ("GET", "/drain", "POST"), ("DELETE", "/readmit", "POST")],
)
def test_other_methods(method: str, path: str, allowed: str) -> None:
    async def body(client: httpx.AsyncClient, fleet: MemoryFleet, router: Router) -> None:
        answer = await client.request(method, PATH + path)
        assert (answer.status_code, answer.headers["allow"]) == (405, allowed)
        assert (await client.get(f"{PATH}/other")).status_code == 404

    play(body)


def test_two_readmissions_of_one_engine() -> None:
    async def body(client: httpx.AsyncClient, fleet: MemoryFleet, router: Router) -> None:
        fleet.fail_with("models:wait(1)", iid="d0")
        await client.post(f"{PATH}/drain", json={"engine": "d0"})
        order = {"engine": "d0", "same_process": True}
        statuses: list[int] = []

        async def readmit() -> None:
            statuses.append((await client.post(f"{PATH}/readmit", json=order)).status_code)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(readmit)
            await trio.sleep(0.5)
            (engine,) = (
                each for each in (await client.get(PATH)).json()["engines"] if each["iid"] == "d0"
            )
            assert (engine["state"], engine["checking"]) == ("validating", "model")
            status, code, message = error(await client.post(f"{PATH}/readmit", json=order))
            assert (status, code) == (409, "not_now")
            assert message.startswith("d0 is being readmitted already (model)")
        assert statuses == [200]

    play(body)


@pytest.mark.parametrize("reset", [False, True])
def test_a_client_that_leaves_gives_its_readmission_up(reset: bool) -> None:
    """On the project's own server."""

    async def main() -> None:
        async with open_fleet() as fleet, fleet.open_router() as router:
            fleet.fail_with("whole:wait(2)", iid="d0")
            await router.lifecycle.drain(["d0"])
            async with trio.open_nursery() as nursery:
                listener = fleet.network.listen("router", 80)
                await nursery.start(Server(router.app).serve, [listener])
                stream = await fleet.network.connect("router", 80)
                order = b'{"engine":"d0","same_process":true}'
                await stream.send_all(
                    b"POST /narwhal/lifecycle/readmit HTTP/1.1\r\nhost: router\r\n"
                    b"content-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
                    % (len(order), order)
                )
                await trio.sleep(0.5)
                assert router.lifecycle.checking("d0") == "generation"
                stream.close(reset=reset)
                await trio.sleep(0.1)
                standings = router.core.health.standings
                assert router.lifecycle.checking("d0") is None
                assert standings.state("d0") is S.DRAINED
                assert "the client that asked for it left" in standings.reason("d0")
                await trio.sleep(1)
                assert fleet.idle
                nursery.cancel_scope.cancel(reason="seen")

    run_seeded(main)


def test_both_orders_on_our_own_server() -> None:
    async def main() -> None:
        async with (
            open_fleet() as fleet,
            fleet.open_router() as router,
            trio.open_nursery() as nursery,
        ):
            listener = fleet.network.listen("router", 80)
            await nursery.start(Server(router.app).serve, [listener])
            for order, more in (("drain", b""), ("readmit", b',"same_process":true')):
                stream = await fleet.network.connect("router", 80)
                content = b'{"engine":"d0"%b}' % more
                await stream.send_all(
                    b"POST /narwhal/lifecycle/%b HTTP/1.1\r\nhost: router\r\nconnection: close\r\n"
                    b"content-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
                    % (order.encode(), len(content), content)
                )
                answer = b""
                while data := await stream.receive_some():
                    answer += data
                assert answer.startswith(b"HTTP/1.1 200 ")
                stream.close()
            assert router.core.health.standings.state("d0") is S.SERVING
            nursery.cancel_scope.cancel(reason="seen")

    run_seeded(main)
