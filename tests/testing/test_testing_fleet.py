"""A fleet in memory, as an application's own tests would use it."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from narwhal import ConfigError, RequestFailed
from narwhal.config import parse_fleet
from narwhal.emulator import TimeModel
from narwhal.model import Role
from narwhal.testing import fleet_config, open_fleet, run_seeded
from narwhal.testing.fleet import ENGINE_KEY, MemoryFleet

ASK: dict[str, Any] = {
    "model": "emulated",
    "messages": [{"role": "user", "content": "Why is the sea salty?"}],
    "max_tokens": 5,
}


def test_a_request_through_both_legs_and_nothing_left_behind() -> None:
    async def main() -> str:
        async with open_fleet() as fleet, fleet.open_router() as router:
            answer = await router.complete(ASK)
            assert fleet["p0"].stats.prompt_tokens > 0
            assert fleet["d0"].stats.pulled_tokens > 0
            await trio.sleep(1)
            assert fleet.idle
        assert fleet.network.open_streams == 0
        return str(answer["id"])

    assert run_seeded(main, seed=1) == run_seeded(main, seed=1)


def test_engines_fail_when_they_are_told_to_and_then_no_more() -> None:
    serving = {"max_attempts": 2, "handoff_timeout_s": 10.0}

    async def main() -> None:
        config = fleet_config(decode=2, serving=serving)
        async with open_fleet(config) as fleet, fleet.open_router() as router:
            fleet.fail_with("decode:tokens(0);rst*1", iid="d0")
            await router.complete(ASK)
            assert router.telemetry.totals().retries == 1
            fleet.fail_with("decode:status(500)")
            with pytest.raises(RequestFailed, match="answered 500"):
                await router.complete(ASK)
            fleet.fail_with()
            await router.complete(ASK)

    run_seeded(main)


def test_how_fast_engines_are_can_be_said() -> None:
    async def main(factor: float) -> float:
        time = TimeModel().faster(factor)
        async with open_fleet(time=time) as fleet, fleet.open_router() as router:
            await router.complete(ASK)
        return trio.current_time()

    slow, fast = run_seeded(main, 1.0), run_seeded(main, 10.0)
    assert slow == pytest.approx(10 * fast)


def test_a_fleet_file_of_real_engines_is_stood_in_for() -> None:
    document = {
        "schema": "narwhal.fleet",
        "schema_version": 1,
        "model": "big",
        "engines": [
            {"iid": "a", "url": "https://gpu1.example:8443", "role": "prefill"},
            {"iid": "b", "url": "https://[fd00::2]:8443", "role": "decode"},
        ],
        "slo": {"ttft_s": 1.0, "tpot_s": 0.1},
        "serving": {"admission": "open"},
        "engine": {"engine_api_key_env": "KEY", "kv_lease_s": 7.0},
    }
    config = parse_fleet(document, name="fleet.json", environ={"KEY": "secret"})

    async def main() -> None:
        async with open_fleet(config) as fleet, fleet.open_router() as router:
            assert fleet.environ == {"KEY": ENGINE_KEY}
            assert fleet["b"].settings.lease_s == 7.0
            await router.complete(ASK | {"model": "big"})

    run_seeded(main)


def test_settings_are_checked_as_those_of_a_file() -> None:
    with pytest.raises(ConfigError, match="max_attempts"):
        fleet_config(serving={"max_attempts": 9})
    config = fleet_config(prefill=2, decode=0)
    assert [spec.role for spec in config.engines] == [Role.PREFILL, Role.PREFILL]


def test_engines_can_be_given_settings_of_their_own() -> None:
    fleet = MemoryFleet(fleet_config(), max_model_len=100)
    assert fleet["p0"].settings.max_model_len == 100


def test_the_blocks_own_error_comes_out_as_it_is() -> None:
    async def main() -> None:
        async with open_fleet():
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        run_seeded(main)
