"""`engine_contract`: an engine that is something else gets no work until that has changed."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from lifecycle_stage import Stage, change, play

from narwhal.fleet import EngineState
from narwhal.testing import fleet_config

S = EngineState


def fleet(contract: dict[str, Any], **more: Any) -> Any:
    return fleet_config(prefill=1, decode=2, engine_contract=contract, **more)


def test_an_engine_that_differs_at_the_start_is_blocked() -> None:
    async def body(stage: Stage) -> None:
        change(stage.fleet["d1"], version="0.31.9")
        await trio.sleep(2)
        assert stage.state("d1") is S.BLOCKED
        wanted = 'version is "0.31.9", and engine_contract wants "0.32.0"'
        assert stage.reason("d1") == wanted
        assert {stage.state("p0"), stage.state("d0")} == {S.SERVING}
        for n in range(4):
            await stage.ask(str(n))
        assert stage.fleet["d1"].stats.routes["/v1/completions"] == 0
        # It is asked again, and proved when it matches.
        await stage.restart("d1", version="0.32.0")
        await trio.sleep(25)
        assert stage.state("d1") is S.SERVING
        assert stage.changes("d1") == ["blocked", "held", "serving"]

    assert not play(body, fleet({"version": "0.32.0"})).failed


def test_an_engine_that_comes_back_as_another_version_is_blocked() -> None:
    """It is not generation that is at fault: it would be proved otherwise."""

    async def body(stage: Stage) -> None:
        await trio.sleep(15)
        assert stage.state("d1") is S.SERVING
        await stage.restart("d1", version="0.33.0")
        await trio.sleep(30)
        assert stage.state("d1") is S.BLOCKED
        assert '"0.33.0"' in stage.reason("d1")
        assert "serving" not in stage.changes("d1")
        await stage.ask()

    assert not play(body, fleet({"version": "0.32.0"})).failed


@pytest.mark.parametrize(
    ("contract", "reported"),
    [
        ({"model": "other"}, 'model is "emulated"'),
        ({"max_model_len": 4096}, "max_model_len is 32768"),
        ({"block_size": 32}, 'block_size is "16"'),
        ({"kv_capacity_tokens": 1024}, "kv_capacity_tokens is 65536"),
        ({"num_gpu_blocks": 64}, 'num_gpu_blocks is "4096"'),
        ({"cache_dtype": "fp8"}, 'cache_dtype is "auto"'),
    ],
)
def test_every_key_that_an_engine_reports_is_compared(
    contract: dict[str, Any], reported: str
) -> None:
    async def body(stage: Stage) -> None:
        await trio.sleep(2)
        assert stage.state("d0") is S.BLOCKED
        assert stage.reason("d0").startswith(reported)
        assert stage.router.not_ready() == ["no engine is in service"]

    play(body, fleet(contract), kv_capacity_tokens=65_536)


def test_what_is_right_or_cannot_be_compared_blocks_nothing_and_costs_no_question() -> None:
    async def body(stage: Stage) -> None:
        await trio.sleep(120)
        for iid in ("p0", "d0", "d1"):
            assert stage.state(iid) is S.SERVING
            routes = stage.fleet[iid].stats.routes
            assert routes["/v1/models"] == 0
            assert routes["/version"] == routes["/metrics"] == routes["/health"]

    play(body, fleet({"version": "0.32.0", "block_size": 16, "attention": "flash", "dtype": "x"}))


def test_the_list_of_models_is_asked_for_once_if_the_contract_needs_it() -> None:
    async def body(stage: Stage) -> None:
        await trio.sleep(120)
        assert stage.fleet["d0"].stats.routes["/v1/models"] == 1

    play(body, fleet({"max_model_len": 32768}))


def test_an_engine_that_does_not_report_is_asked_again() -> None:
    async def body(stage: Stage) -> None:
        stage.fleet.fail_with("models:status(500)*2", iid="d0")
        change(stage.fleet["d0"], max_model_len=1024)
        await trio.sleep(6)
        assert stage.state("d0") is S.BLOCKED

    play(body, fleet({"max_model_len": 32768}))


def test_a_blocked_engine_can_be_readmitted_once_it_matches() -> None:
    async def body(stage: Stage) -> None:
        lifecycle = stage.router.lifecycle
        change(stage.fleet["d0"], version="1")
        await trio.sleep(2)
        assert stage.state("d0") is S.BLOCKED
        verdict = await lifecycle.readmit("d0")
        assert verdict.failed == "contract"
        assert stage.state("d0") is S.DRAINED
        change(stage.fleet["d0"], version="0.32.0")
        assert (await lifecycle.readmit("d0")).failed is None

    play(body, fleet({"version": "0.32.0"}))
