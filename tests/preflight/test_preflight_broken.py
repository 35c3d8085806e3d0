"""Broken fleets: each fails at the gate that knows best, with words that one can act on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import pytest
from preflight_stage import ENGINE, check, exact_store, found, pinned, worst

from narwhal.config import FleetConfig
from narwhal.emulator import TimeModel
from narwhal.preflight import Gate, Grade, Options
from narwhal.profiles import ProfileStore
from narwhal.testing import MemoryFleet, fleet_config

QUICK = Options(lease_wait_s=0.1)


@attrs.frozen(kw_only=True)
class Broken:
    gate: Gate
    subject: str
    says: str
    """In what was seen."""
    do: str
    """In what to do."""
    faults: dict[str, str] = attrs.field(factory=dict)
    config: Callable[[], FleetConfig] = pinned
    store: Callable[[MemoryFleet], Any] = exact_store
    before: Callable[[MemoryFleet], object] = lambda _fleet: None
    on_gate: Callable[[MemoryFleet, Gate], None] = lambda _fleet, _gate: None
    changes: dict[str, Any] = attrs.field(factory=dict)
    options: Options = QUICK
    left: bool = False
    environ: dict[str, str] = attrs.field(factory=dict)


def own(iid: str, **settings: Any) -> dict[str, Any]:
    return {"own": {iid: settings}}


def stale(fleet: MemoryFleet) -> ProfileStore:
    return exact_store(fleet, version="0.31.0")


def without_d0(fleet: MemoryFleet) -> ProfileStore:
    return ProfileStore(rows=exact_store(fleet).rows[1:])


def badly_fitted(fleet: MemoryFleet) -> ProfileStore:
    rows = [
        attrs.evolve(
            row,
            profile=attrs.evolve(
                row.profile, decode=attrs.evolve(row.profile.decode, fit_mape=0.3)
            ),
        )
        for row in exact_store(fleet).rows
    ]
    return ProfileStore(rows=rows)


def at_release(fault: str) -> Callable[[MemoryFleet, Gate], None]:
    def act(fleet: MemoryFleet, gate: Gate) -> None:
        if gate is Gate.RELEASE:
            fleet.fail_with(fault, iid="d0")

    return act


def keyed() -> FleetConfig:
    config = pinned()
    return attrs.evolve(config, engine=attrs.evolve(config.engine, engine_api_key_env="ENGINE_KEY"))


BROKEN = {
    "wrong key": Broken(
        gate=Gate.AUTH,
        subject="d0",
        says="wrong key: it answered 401 to the one in ENGINE_KEY",
        do="into the variable ENGINE_KEY",
        config=keyed,
        changes=own("d0", api_key="another"),
    ),
    "a key that nobody knew of": Broken(
        gate=Gate.AUTH,
        subject="p0",
        says="asks for a key (401)",
        do="engine.engine_api_key_env",
        changes=own("p0", api_key="secret"),
    ),
    "wrong model": Broken(
        gate=Gate.MODEL,
        subject="d0",
        says='it serves "other"',
        do="--served-model-name",
        changes=own("d0", model="other"),
    ),
    "no list of models": Broken(
        gate=Gate.MODEL,
        subject="d0",
        says="/v1/models: it answered 404",
        do="API of OpenAI",
        faults={"d0": "models:status(404)"},
    ),
    "another context": Broken(
        gate=Gate.MODEL,
        subject="d0",
        says="a context of 8192 tokens",
        do="--max-model-len",
        changes=own("d0", max_model_len=8192),
    ),
    "wrong version": Broken(
        gate=Gate.CONTRACT,
        subject="p0",
        says='version is "0.32.0", and engine_contract wants "0.33.0"',
        do="engine_contract",
        config=lambda: pinned(engine_contract={"version": "0.33.0"}),
    ),
    "two versions": Broken(
        gate=Gate.IDENTITY,
        subject="d0",
        says="version 0.31.9",
        do="one version",
        changes=own("d0", version="0.31.9"),
    ),
    "no version": Broken(
        gate=Gate.IDENTITY,
        subject="d0",
        says="/version answered no version",
        do="/version",
        faults={"d0": 'version:status(200,{"release":1})'},
    ),
    "no metrics": Broken(
        gate=Gate.IDENTITY,
        subject="p0",
        says="/metrics: it answered 404",
        do="/metrics",
        faults={"p0": "metrics:status(404)"},
    ),
    "no tokenise": Broken(
        gate=Gate.TOKENIZE,
        subject="p0",
        says="/tokenize: it answered 404",
        do="set engine.tokenize to false",
        faults={"p0": "tokenize:status(404)"},
    ),
    "slow to tokenise": Broken(
        gate=Gate.TOKENIZE,
        subject="p0",
        says="no answer within 2 s (engine.tokenize_timeout_s)",
        do="raise engine.tokenize_timeout_s",
        faults={"p0": "tokenize:hang"},
    ),
    "other tokens": Broken(
        gate=Gate.TOKENIZE,
        subject="d0",
        says="other tokens",
        do="one tokenizer",
        faults={"d0": 'tokenize:status(200,{"count":2,"tokens":[5,6],"max_model_len":32768})'},
    ),
    "no connector": Broken(
        gate=Gate.PRODUCE,
        subject="p0",
        says="no kv_transfer_params",
        do="--kv-transfer-config",
        changes=own("p0", connector=False),
    ),
    "a producer that only decodes": Broken(
        gate=Gate.PRODUCE,
        subject="d0",
        says="no kv_transfer_params",
        do='"pin": true',
        config=lambda: fleet_config(engine=ENGINE),
        faults={"d0": "prefill:nokv"},
    ),
    "garbage descriptor": Broken(
        gate=Gate.PRODUCE,
        subject="p0",
        says="remote_block_ids",
        do="--kv-transfer-config",
        faults={"p0": "prefill:kv(remote_block_ids)"},
        left=True,
    ),
    "prefill fails": Broken(
        gate=Gate.PRODUCE,
        subject="p0",
        says="prefill leg: it answered 500",
        do="log",
        faults={"p0": "prefill:status(500)"},
    ),
    "prefill hangs": Broken(
        gate=Gate.PRODUCE,
        subject="p0",
        says="no answer within 2.5 s (engine.first_token_timeout_s)",
        do="log",
        faults={"p0": "prefill:hang"},
    ),
    "one side channel for two": Broken(
        gate=Gate.PRODUCE,
        subject="p1",
        says="p0 and p1 both name 127.0.0.1:5600",
        do="VLLM_NIXL_SIDE_CHANNEL_PORT",
        config=lambda: fleet_config(prefill=2, engine=ENGINE, controller={"advisory": True}),
        faults={"p1": "prefill:kv(remote_port,5600)"},
        left=True,
    ),
    "one-way KV": Broken(
        gate=Gate.CONSUME,
        subject="d0 -> p0",
        says="no answer within 2.5 s (engine.first_token_timeout_s)",
        do="VLLM_NIXL_SIDE_CHANNEL_HOST",
        config=lambda: fleet_config(engine=ENGINE),
        faults={"d0": 'prefill:kv(remote_host,"10.9.9.9")'},
        left=True,
    ),
    "KV that yields other text": Broken(
        gate=Gate.CONSUME,
        subject="p0 -> d0",
        says="and p0 alone",
        do="the KV cache does not arrive as it was made",
        faults={"p0": f"prefill:kv(remote_block_ids,{[[1] * 30]})".replace(" ", "")},
    ),
    "engines that compute differently": Broken(
        gate=Gate.CONSUME,
        subject="p0 -> d0",
        says="without a handoff d0 says the same as with it",
        do="attention backend on both",
        faults={"p0": "whole:huge(9)"},
    ),
    "no KV moved": Broken(
        gate=Gate.CONSUME,
        subject="p0 -> d0",
        says="no KV moved",
        do="kv_consumer",
        changes=own("d0", connector=False),
        left=True,
    ),
    "decode dies": Broken(
        gate=Gate.CONSUME,
        subject="p0 -> d0",
        says="decode leg: ",
        do="log",
        faults={"d0": "decode:rst"},
        left=True,
    ),
    "decode fails in the stream": Broken(
        gate=Gate.CONSUME,
        subject="p0 -> d0",
        says="decode leg: ",
        do="look into the decoder's log",
        faults={"d0": "decode:tokens(0);error"},
        left=True,
    ),
    "a release leg that frees nothing": Broken(
        gate=Gate.RELEASE,
        subject="p0",
        says="still held 2 s after the release leg to d0",
        do="tells the producer",
        on_gate=at_release("early;status(503)"),
        left=True,
    ),
    "short lease": Broken(
        gate=Gate.RELEASE,
        subject="p0",
        says="a forgotten handoff was free after 1 s",
        do="kv_lease_duration 3",
        changes=own("p0", lease_s=1.0),
        options=Options(lease_wait_s=10),
    ),
    "endless lease": Broken(
        gate=Gate.RELEASE,
        subject="p0",
        says="still held after 6.3 s",
        do="kv_lease_duration",
        changes=own("p0", lease_s=1e6),
        options=Options(lease_wait_s=10),
    ),
    "no profile of one": Broken(
        gate=Gate.PROFILE,
        subject="d0",
        says="has no row for it",
        do="--only d0",
        store=without_d0,
    ),
    "no profiles at all": Broken(
        gate=Gate.PROFILE,
        subject="fleet",
        says="there is no runs/profiles.json",
        do="narwhal-trio profile",
        config=lambda: pinned(serving={"admission": "predictive"}),
        store=lambda _fleet: None,
    ),
    "stale profile": Broken(
        gate=Gate.PROFILE,
        subject="d0",
        says="another version, model or contract",
        do="--overwrite",
        store=stale,
    ),
    "bad fit": Broken(
        gate=Gate.PROFILE,
        subject="p0",
        says="profiles.max_decode_fit_mape allows 0.05",
        do="--overwrite",
        store=badly_fitted,
    ),
    "broken store": Broken(
        gate=Gate.PROFILE,
        subject="fleet",
        says="profiles.json: is not JSON",
        do="mend it",
        store=lambda _fleet: ("profiles.json: is not JSON",),
    ),
    "unreachable": Broken(
        gate=Gate.REACH,
        subject="d0",
        says="/health: ",
        do="start it",
        before=lambda fleet: fleet["d0"].take_down(),
    ),
    "hung": Broken(
        gate=Gate.REACH,
        subject="d0",
        says="no answer within 5 s (engine.health_timeout_s)",
        do="restart it",
        faults={"d0": "health:hang"},
    ),
    "slow to boot": Broken(
        gate=Gate.REACH,
        subject="d0",
        says=", for 20 s",
        do="--wait SECONDS",
        before=lambda fleet: fleet["d0"].take_down(60.0),
        options=Options(wait_s=20, lease_wait_s=0.1),
    ),
    "unwell": Broken(
        gate=Gate.REACH,
        subject="p0",
        says="/health: it answered 503",
        do="--wait SECONDS",
        faults={"p0": "health:status(503)"},
    ),
    "a target that no token meets": Broken(
        gate=Gate.SLO,
        subject="d0",
        says="a token alone",
        do="raise slo.tpot_s",
        config=lambda: pinned(slo={"ttft_s": 2.0, "tpot_s": 0.01}),
    ),
    "a target that no prompt meets": Broken(
        gate=Gate.SLO,
        subject="p0",
        says="the shortest 0.0101 s",
        do="raise slo.ttft_s",
        config=lambda: pinned(slo={"ttft_s": 0.005, "tpot_s": 0.1}),
    ),
    "no plain answer": Broken(
        gate=Gate.PACE,
        subject="p0",
        says="plain leg: it answered 500",
        do="log",
        faults={"p0": "whole:status(500)"},
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_fleet_fails_at_the_right_gate(name: str) -> None:
    broken = BROKEN[name]
    report = check(
        broken.config(),
        faults=broken.faults,
        store=broken.store,
        before=broken.before,
        on_gate=broken.on_gate,
        options=broken.options,
        environ=broken.environ,
        left=broken.left,
        **broken.changes,
    )
    assert not report.ok
    failed = [each for each in report.findings if each.grade is Grade.FAIL]
    assert failed[0].gate is broken.gate, failed
    (finding,) = [each for each in worst(report, broken.gate) if each.subject == broken.subject]
    assert broken.says in finding.seen
    assert broken.do in finding.advice
    assert finding.expected


def test_the_other_direction_of_a_one_way_fleet_is_passed() -> None:
    report = check(
        fleet_config(engine=ENGINE),
        faults={"d0": 'prefill:kv(remote_host,"10.9.9.9")'},
        options=QUICK,
        left=True,
    )
    assert [each.subject for each in worst(report, Gate.CONSUME)] == ["d0 -> p0"]


def test_an_engine_that_boots_in_time_is_waited_for() -> None:
    report = check(
        before=lambda fleet: fleet["d0"].take_down(15.0),
        options=Options(wait_s=60, lease_wait_s=0.1),
    )
    assert report.ok
    (reached,) = found(report, Gate.REACH, "d0")
    assert 14 < reached.figures["reach_s"] < 16


def test_what_an_engine_does_not_get_through_is_not_asked_of_it_again() -> None:
    report = check(before=lambda fleet: fleet["d0"].take_down(), options=QUICK)
    later = [each for each in report.findings if "d0" in each.subject and each.gate != Gate.REACH]
    assert {each.grade for each in later if each.gate not in (Gate.PROFILE, Gate.SLO)} == {
        Grade.SKIPPED
    }
    assert "did not get through `reach`" in found(report, Gate.CONSUME)[0].seen
    # The other one is looked at all the same.
    assert found(report, Gate.TOKENIZE, "p0")[0].grade is Grade.PASS


WARNED: dict[str, tuple[Gate, str, dict[str, Any]]] = {
    "clock ahead": (
        Gate.PACE,
        "clock is 3600 s ahead",
        {"before": lambda fleet: fleet["d0"].step_clock(3600)},
    ),
    "clock behind": (
        Gate.PACE,
        "clock is 60 s behind",
        {"before": lambda fleet: fleet["d0"].step_clock(-60)},
    ),
    "slower than its profile": (
        Gate.PACE,
        "then 0.0",
        {"before": lambda fleet: fleet["d0"].set_time(TimeModel(decode=(0.08, 2e-4, 2e-7)))},
    ),
    "a profile that is bound to nothing": (
        Gate.PROFILE,
        "bound to nothing",
        {
            "store": lambda fleet: ProfileStore(
                rows=[attrs.evolve(row, generation_digest=None) for row in exact_store(fleet).rows]
            )
        },
    ),
    "a cap above the lease": (
        Gate.CONFIG,
        "serving.handoff_timeout_s 10 s, engine.kv_lease_s 3 s",
        {"config": pinned(serving={"handoff_timeout_s": 10})},
    ),
    "a first token after the lease": (
        Gate.CONFIG,
        "engine.first_token_timeout_s 5 s",
        {"config": pinned(engine={**ENGINE, "first_token_timeout_s": 5})},
    ),
    "no counters": (
        Gate.IDENTITY,
        "no process_start_time_seconds",
        {"faults": {"d0": 'metrics:status(200,"")'}},
    ),
}


@pytest.mark.parametrize("name", WARNED)
def test_what_is_odd_but_works_is_a_warning(name: str) -> None:
    gate, says, settings = WARNED[name]
    config = settings.pop("config", None)
    report = check(config, options=QUICK, **settings)
    assert report.ok, worst(report, gate)
    warned = [each for each in found(report, gate) if each.grade is Grade.WARN]
    assert says in warned[0].seen
    assert warned[0].advice
