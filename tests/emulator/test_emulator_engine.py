"""The engine on its clock: aborts, accounting, outages, control routes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio
from emulator_kit import COMPLETIONS, PREFILL_LEG, ask_on, completion, run_world, settings
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from narwhal.emulator import EmulatedFleet, EngineSettings, Leg, TimeModel

if TYPE_CHECKING:
    from emulator_kit import World


@hypothesis_settings(max_examples=25, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from([Leg.PREFILL, Leg.WHOLE]),
            st.booleans(),
            st.floats(0, 0.3),
            st.floats(0, 0.4),
        ),
        min_size=1,
        max_size=8,
    )
)
def test_clients_that_leave_at_any_moment_leave_nothing_behind(
    clients: list[tuple[Leg, bool, float, float]],
) -> None:
    async def test(world: World) -> None:
        async def client(leg: Leg, stream: bool, start: float, stay: float) -> None:
            await trio.sleep(start)
            body = completion(prompt="word " * 40, max_tokens=10, stream=stream)
            if leg is Leg.PREFILL:
                body["kv_transfer_params"] = PREFILL_LEG
            connection = await world.connect()
            with trio.move_on_after(stay):
                await ask_on(connection, COMPLETIONS, body)
                await connection.receive()
            connection.stream.close()

        async with trio.open_nursery() as nursery:
            for each in clients:
                nursery.start_soon(client, *each)
        await trio.sleep(31)  # leases of prefills that did finish
        engine = world.fleet.engines[0]
        assert engine.idle
        for leg in (Leg.PREFILL, Leg.WHOLE):
            ends = [engine.stats.count(end, leg) for end in ("done", "failed", "aborted")]
            assert engine.stats.count("seen", leg) == sum(ends)
            assert engine.stats.count("failed", leg) == 0

    run_world(test, settings(max_num_seqs=3))


def test_an_abort_is_seen_at_once_also_where_nothing_is_streamed() -> None:
    async def test(world: World) -> None:
        for stream in (True, False):
            client = await world.connect()
            await ask_on(client, COMPLETIONS, completion(max_tokens=100, stream=stream))
            await trio.sleep(0.1)
            engine = world.fleet.engines[0]
            assert (engine.core.running, engine.stats.inflight[Leg.WHOLE]) == (1, 1)
            client.stream.close()
            await trio.sleep(0.001)
            assert engine.idle
        assert engine.stats.count("aborted", Leg.WHOLE) == 2

    run_world(test)


def test_a_client_that_does_not_read_stops_nobody_and_gets_everything() -> None:
    async def test(world: World) -> None:
        slow = await world.connect()
        await ask_on(slow, COMPLETIONS, completion(max_tokens=2000, stream=True))
        await trio.sleep(60)
        assert world.fleet.engines[0].core.running == 0
        answer = await slow.receive()
        slow.stream.close()
        assert answer.done
        assert len(answer.chunks) == 2000
        assert max(data.count(b"data: ") for _, data in answer.reads) > 1

    run_world(test)


def test_seats_are_what_is_in_flight_at_most() -> None:
    async def test(world: World) -> None:
        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(world.complete)
        stats = world.fleet.engines[0].stats
        assert (stats.max_inflight, stats.count("done", Leg.WHOLE)) == (5, 5)

    run_world(test, settings(max_num_seqs=2))


@pytest.mark.parametrize("new_process", [False, True])
def test_an_outage_drops_connections_and_refuses_new_ones(new_process: bool) -> None:
    async def test(world: World) -> None:
        engine = world.fleet.engines[0]
        handoff = await world.prefill()
        before = engine.connector.engine_id
        client = await world.connect()
        await ask_on(client, COMPLETIONS, completion(max_tokens=1000, stream=True))
        await trio.sleep(1)
        order = {"seconds": 5.0, "restart": new_process}
        assert (await world.ask("/emulator/down", order)).json == {"ok": True}
        answer = await client.receive()
        client.stream.close()
        assert answer.status == 200
        assert answer.end != "complete"
        with pytest.raises(OSError, match="refused"):
            await world.connect()
        await trio.sleep(5.2)
        page = (await world.ask("/metrics")).body.decode()
        assert (engine.connector.engine_id != before) is new_process
        started = 1_700_000_000.0 if not new_process else engine.started_at
        assert f"process_start_time_seconds {started!r}\n" in page
        assert (engine.started_at > 1_700_000_000.0) is new_process
        assert (handoff["remote_request_id"] in engine.core.handles) is not new_process
        assert engine.stats.count("aborted", Leg.WHOLE) == 1

    run_world(test)


def test_a_dead_engine_may_be_restarted_before_it_is_gone() -> None:
    async def test(world: World) -> None:
        engine = world.fleet.engines[0]
        before = engine.connector.engine_id
        await world.complete(fault="die")
        engine.restart()
        await trio.sleep(0.2)
        assert (await world.complete()).status == 200
        assert engine.connector.engine_id != before

    run_world(test)


def test_a_dead_engine_comes_back_through_a_sibling() -> None:
    async def test(world: World) -> None:
        assert (await world.complete(1, fault="die")).status is None
        await trio.sleep(1)
        with pytest.raises(OSError, match="refused"):
            await world.connect(1)
        await world.ask("/emulator/restart", {"engine": "e1"})
        await trio.sleep(0.01)
        assert (await world.complete(1)).status == 200
        assert world.fleet["e1"].stats.restarts == 1

    run_world(test, settings("e0"), settings("e1"))


def test_faults_are_set_and_reset_over_http() -> None:
    async def test(world: World) -> None:
        order = {"fault": ["whole:status(500)*1", "health:status(503)"], "engine": "all"}
        assert (await world.ask("/emulator/fault", order)).status == 200
        assert (await world.complete(1)).status == 500
        assert (await world.complete(1)).status == 200
        assert (await world.ask("/health", engine=1)).status == 503
        assert (await world.complete(0)).status == 500
        await world.ask("/emulator/reset", {"engine": "e1"})
        assert (await world.ask("/health", engine=1)).status == 200
        assert (await world.ask("/health", engine=0)).status == 503
        state = (await world.ask("/emulator/stats", engine=1)).json
        assert (state["iid"], state["seen_whole"]) == ("e1", 0)

    run_world(test, settings("e0"), settings("e1"))


@pytest.mark.parametrize(
    "order",
    [
        ("/emulator/fault", {"fault": "explode"}),
        ("/emulator/fault", {"engine": "nobody"}),
        ("/emulator/model", {"prefill": [1, 2]}),
        ("/emulator/model", {"decode": [-1, 0, 0]}),
        ("/emulator/model", {"lease": 0}),
        ("/emulator/down", {"second": 5}),
    ],
)
def test_an_order_that_cannot_be_obeyed_is_explained(order: tuple[str, object]) -> None:
    async def test(world: World) -> None:
        answer = await world.ask(*order)
        assert answer.status == 400
        assert answer.json["error"]["message"]

    run_world(test)


def test_the_model_of_time_can_be_changed() -> None:
    async def test(world: World) -> None:
        order = {"prefill": [0, 0, 2.0], "decode": [3.0, 0, 0], "lease": 7.0}
        await world.ask("/emulator/model", order)
        began = trio.current_time()
        await world.complete(max_tokens=3)
        assert trio.current_time() - began == pytest.approx(8.0)
        await world.prefill()
        (left,) = (await world.ask("/emulator/stats")).json["leases"].values()
        assert left == pytest.approx(7.0)

    run_world(test)


def test_requests_are_remembered_as_they_came() -> None:
    async def test(world: World) -> None:
        await world.ask(COMPLETIONS, b'{"prompt": "x", "max_tokens": null}')
        (seen,) = world.fleet.engines[0].stats.requests
        assert seen.raw == b'{"prompt": "x", "max_tokens": null}'
        assert seen.body == {"prompt": "x", "max_tokens": None}
        assert seen.headers["content-type"] == "application/json"
        listed = (await world.ask("/emulator/requests")).json["requests"]
        assert [each["path"] for each in listed] == [COMPLETIONS]

    run_world(test)


def test_stats_tell_what_is_staged_and_how_often_it_was_used() -> None:
    async def test(world: World) -> None:
        handoff = await world.prefill()
        state = (await world.ask("/emulator/stats")).json
        assert (state["staged"], state["done_prefill"], state["max_uses"]) == (1, 1, 0)
        assert list(state["leases"]) == [handoff["remote_request_id"]]
        for _ in range(2):
            await world.complete(kv_transfer_params=handoff)
        state = (await world.ask("/emulator/stats")).json
        assert (state["staged"], state["max_uses"], state["released"]) == (0, 2, 1)
        assert state["notifications_after_expiry"] == 1
        await world.ask("/emulator/reset", {})
        state = (await world.ask("/emulator/stats")).json
        counters = ("max_uses", "released", "notifications_after_expiry", "done_decode")
        assert [state[name] for name in counters] == [0] * 4

    run_world(test)


def test_two_fleets_made_alike_are_alike() -> None:
    def identities(seed: int) -> list[str]:
        fleet = EmulatedFleet([settings("a"), settings("b")], seed=seed)
        return [engine.connector.engine_id for engine in fleet.engines]

    assert identities(1) == identities(1)
    assert identities(1) != identities(2)
    assert len(set(identities(1))) == 2


def test_engines_need_names_of_their_own() -> None:
    with pytest.raises(ValueError, match="iid"):
        EmulatedFleet([settings("a"), settings("a")])
    with pytest.raises(KeyError):
        EmulatedFleet([settings("a")])["b"]


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda: TimeModel(prefill=(1.0, 2.0)), "3 numbers"),  # type: ignore[arg-type]  # the point
        (lambda: TimeModel(decode=(1.0, -2.0, 0.0)), "not negative"),
        (lambda: TimeModel(handoff=(1.0, 2.0, 3.0)), "2 numbers"),  # type: ignore[arg-type]  # the point
        (lambda: EngineSettings(noise=0.31), "noise"),
        (lambda: EngineSettings(lease_s=0.0), "lease_s"),
        (lambda: EngineSettings(kv_capacity_tokens=10), "max_model_len"),
    ],
)
def test_settings_that_make_no_engine(make: object, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        make()  # type: ignore[operator]  # every one is a function
