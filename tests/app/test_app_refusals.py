"""Refusals over HTTP: what clients are told, and that nobody else notices. Virtual time."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

import attrs
import h11
import pytest
import trio

from narwhal import Router
from narwhal.config import FleetConfig
from narwhal.emulator import text_of
from narwhal.net import Server
from narwhal.telemetry import RequestRow
from narwhal.testing import MemoryFleet, TimeModel, fleet_config, open_fleet, run_seeded

from worlds import Answer, Client

# A millisecond for a token of the prompt, ten for one of the answer, and a bit for neighbours.
TIME = TimeModel(prefill=(0.0, 0.001, 0.0), decode=(0.01, 1e-4, 1e-8))
BURST = 400


class Site:
    """Engines, a router and its HTTP server in memory."""

    def __init__(self, fleet: MemoryFleet, router: Router) -> None:
        self.fleet, self.router = fleet, router
        self.rows: list[RequestRow] = []
        router.telemetry.listen(self.rows.append)

    async def connect(self) -> Client:
        return Client(await self.fleet.network.connect("router", 8000))

    async def post(self, body: Any) -> Answer:
        client = await self.connect()
        try:
            return await (await client.ask(body)).answer()
        finally:
            client.close()

    async def first_token_s(self, body: Any) -> float:
        """Seconds to the first token of a stream that is read to its end."""
        client = await self.connect()
        await client.ask(body | {"stream": True})
        head = await client.head()
        assert head.status_code == 200
        first = None
        while not isinstance(event := await client.next_event(), h11.EndOfMessage):
            assert isinstance(event, h11.Data)
            if first is None and b'"text"' in event.data:
                first = trio.current_time() - client.started
        client.close()
        assert first is not None
        return first


def play(body: Callable[[Site], Awaitable[None]], made: FleetConfig, **changes: Any) -> None:
    async def main() -> None:
        async with open_fleet(made, time=TIME, **changes) as fleet, fleet.open_router() as router:
            async with trio.open_nursery() as nursery:
                listener = fleet.network.listen("router", 8000)
                await nursery.start(Server(router.app).serve, [listener])
                await body(Site(fleet, router))
                nursery.cancel_scope.cancel(reason="seen enough")
            await trio.sleep(2)
            assert router.core.ledger.total == 0
            assert fleet.idle

    run_seeded(main)


def config(*, tokenize: bool = True, **serving: Any) -> FleetConfig:
    made = fleet_config(
        prefill=2,
        decode=2,
        serving={"admission": "predictive", "max_connections": 1000} | serving,
        engine={"first_token_timeout_s": 30.0, "tokenize": tokenize},
    )
    return attrs.evolve(made, slo=attrs.evolve(made.slo, ttft_s=2.0))


def ask(tokens: int, tag: str = "a", **more: Any) -> dict[str, Any]:
    return {"model": "emulated", "prompt": text_of(tokens - 1, tag), "max_tokens": 1, **more}


async def fill(site: Site, nursery: trio.Nursery, tokens: int = 1950) -> None:
    """Something decodes on both decode engines, and both prefill engines are busy for long."""
    for n in range(2):
        nursery.start_soon(site.post, ask(2, f"decodes {n}", max_tokens=1500))
        await trio.sleep(0.05)
    for n in range(2):
        # No two of these end in the same instant: what comes first then is anybody's guess.
        nursery.start_soon(site.post, ask(tokens + 7 * n, f"fills {n}"))
        await trio.sleep(0.02)


def test_only_who_can_be_helped_by_waiting_is_told_to_come_back() -> None:
    async def body(site: Site) -> None:
        async with trio.open_nursery() as nursery:
            await fill(site, nursery)
            for never, code in (
                (ask(2100), "prompt_too_long"),
                (ask(1000, max_tokens=9000), "answer_too_long"),
            ):
                answer = await site.post(never)
                assert (answer.status, answer.error["code"]) == (429, code)
                assert "retry-after" not in answer.headers
                assert answer.headers["x-should-retry"] == "false"
                assert answer.error["type"] == "invalid_request_error"
                assert "try again" not in answer.error["message"]
            answer = await site.post(ask(1500))
            assert (answer.status, answer.error["code"]) == (429, "projected_ttft")
            assert answer.headers["retry-after"] == "2"
            assert "x-should-retry" not in answer.headers
            assert "try again in 2 s" in answer.error["message"]
            await trio.sleep(2)
            assert (await site.post(ask(1500))).status == 200
            nursery.cancel_scope.cancel(reason="seen enough")

    play(body, config(), kv_capacity_tokens=9000, max_model_len=9000)


@pytest.mark.parametrize("tokenize", [True, False])
def test_a_burst_of_refusals_moves_nobody_s_first_token(tokenize: bool) -> None:
    """Streams that are let in, and hundreds at one instant that are not, in their midst."""
    seen: list[list[float]] = []
    states: list[dict[str, Any]] = []

    async def run(site: Site, *, burst: bool) -> None:
        times: dict[int, float] = {}
        answers: list[Answer] = []

        async def stream(n: int) -> None:
            times[n] = await site.first_token_s(ask(100 + n, f"s{n}", max_tokens=20))

        async def refused() -> None:
            answers.append(await site.post(ask(2500, "long")))

        async with trio.open_nursery() as nursery:
            for n in range(30):
                if burst and n in (10, 11, 20):
                    for _ in range(BURST):
                        nursery.start_soon(refused)
                nursery.start_soon(stream, n)
                await trio.sleep(0.08)
        assert {answer.status for answer in answers} <= {429}
        assert len(answers) == 3 * BURST * burst
        assert all(answer.seconds == 0.0 for answer in answers), "told at once"
        admitted = sorted((row for row in site.rows if not row.code), key=lambda row: row.arrival)
        assert len(admitted) == 30
        seen.append([times[n] for n in range(30)])
        seen.append([row.projected_ttft_s or 0.0 for row in admitted])
        page = await site.connect()
        states.append((await (await page.ask(None, "/narwhal/state", "GET")).answer()).json)
        page.close()

    for burst in (False, True):
        play(lambda site, burst=burst: run(site, burst=burst), config(tokenize=tokenize))  # type: ignore[misc]  # the burst of this turn
    without, projected, with_burst, projected_then = seen
    assert with_burst == without
    assert projected_then == projected
    assert states[0]["admission"]["refusals"]["prompt"] == 0
    shown = states[1]["admission"]
    assert shown["refusals"]["prompt"] == shown["rejections"]["prompt_too_long"] == 3 * BURST
    assert shown["offers"] == {"sized": 30 + 3 * BURST, "unsized": 0}
    assert shown["ttft_projection"]["requests"] == 30
    if tokenize:
        assert shown["ttft_projection"]["mean_ratio"] == pytest.approx(1.0, abs=0.01)


def test_nor_does_one_that_may_come_back() -> None:
    """The same with refusals for the work ahead, while there is some."""
    seen: list[list[float | None]] = []

    async def run(site: Site, *, burst: bool) -> None:
        answers: list[Answer] = []

        async def refused() -> None:
            answers.append(await site.post(ask(1900, "long")))

        async with trio.open_nursery() as nursery:
            await fill(site, nursery, 1000)
            for n in range(3):
                nursery.start_soon(site.post, ask(300 + 3 * n, f"s{n}"))
                for _ in range(BURST * burst):
                    nursery.start_soon(refused)
                await trio.sleep(0.1)
        assert {(answer.status, answer.error["code"]) for answer in answers} <= {
            (429, "projected_ttft")
        }
        assert len(answers) == 3 * BURST * burst
        admitted = sorted((row for row in site.rows if not row.code), key=lambda row: row.arrival)
        seen.append([row.prefill_ttft_s for row in admitted])
        seen.append([row.ttft_s for row in admitted])

    for burst in (False, True):
        play(lambda site, burst=burst: run(site, burst=burst), config())  # type: ignore[misc]  # the burst of this turn
    assert seen[2:] == seen[:2]
    assert len(seen[0]) == 7


def test_the_document_for_people_is_json_whatever_was_refused() -> None:
    async def body(site: Site) -> None:
        await site.post(ask(2100))
        client = await site.connect()
        answer = await (await client.ask(None, "/narwhal/state", "GET")).answer()
        client.close()
        assert json.loads(answer.body)["recent"][0]["code"] == "prompt_too_long"

    play(body, config())
