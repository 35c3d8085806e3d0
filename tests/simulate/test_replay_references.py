"""The reference profiles: made from the figures that the page beside them names, and of use."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from narwhal.cli.serve_command import load_profiles
from narwhal.config import Admission, FleetConfig, load_fleet
from narwhal.emulator import TimeModel
from narwhal.model import Role
from narwhal.profiles import Profile, load_store, store_bytes
from narwhal.simulate.overload import Demand, capacity_of
from narwhal.simulate.replay.reference import (
    ENGINES,
    LLAMA_7B_MEASURED,
    LLAMA_70B_MEASURED,
    REFERENCES,
    Reference,
)
from narwhal.simulate.replay.roofline import FirstTokens, mean_reached
from narwhal.simulate.replay.traces import read_trace

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "configs/profiles/README.md").read_text(encoding="utf-8")
REAL = Path(__file__).parents[3] / "shared/data/traces"
FLEETS = {"h100-8b.json": "replay-8b.json", "h100-70b.json": "replay-70b.json"}

each_reference = pytest.mark.parametrize("reference", REFERENCES, ids=lambda each: each.file)


def fleet_of(reference: Reference) -> FleetConfig:
    return load_fleet(ROOT / "configs" / FLEETS[reference.file], environ={})


def profile_of(reference: Reference) -> Profile:
    return reference.store.rows[0].profile


@each_reference
def test_the_file_is_what_the_figures_give(reference: Reference) -> None:
    path = ROOT / "configs/profiles" / reference.file
    assert path.read_bytes() == store_bytes(reference.store), (
        "make it again: python -m narwhal.simulate.replay.reference"
    )
    store = load_store(path, iids=ENGINES)
    assert len({row.profile for row in store.rows}) == 1


@each_reference
def test_its_fleet_loads_with_it_and_is_predictive(
    reference: Reference, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = fleet_of(reference)
    monkeypatch.chdir(ROOT)
    profiles = load_profiles(config)
    assert profiles is not None
    assert tuple(profiles) == ENGINES == tuple(spec.iid for spec in config.engines)
    assert [spec.role for spec in config.engines] == [*[Role.PREFILL] * 4, *[Role.DECODE] * 4]
    assert config.serving.admission is Admission.PREDICTIVE
    assert config.hardware is not None
    assert config.hardware.accelerators_per_engine == reference.count


@each_reference
def test_the_targets_leave_room_for_work(reference: Reference) -> None:
    """The longest prompt of the Azure traces, and a batch of conversations, are within them."""
    slo, profile = fleet_of(reference).slo, profile_of(reference)
    assert profile.prefill_seconds(14_050) + profile.handoff_seconds(14_050) < slo.ttft_s
    assert profile.decode_seats(1_200, slo.tpot_s).count >= 64
    assert profile.idle_interval() < slo.tpot_s / 2


@pytest.mark.parametrize("measured", [LLAMA_7B_MEASURED, LLAMA_70B_MEASURED])
def test_what_is_taken_lies_between_the_measurements(measured: tuple[FirstTokens, ...]) -> None:
    shares = sorted(each.reached for each in measured)
    assert 0.3 < shares[0] < mean_reached(measured) < shares[-1] < 0.75
    for each in measured:
        assert each.overhead + 128 * each.per_token == pytest.approx(each.short[1])
        assert each.overhead + 2048 * each.per_token == pytest.approx(each.long[1])


def test_the_larger_engine_is_slower_by_about_what_it_has_more_to_do() -> None:
    small, large = (profile_of(reference) for reference in REFERENCES)
    ratio = 70.6 / 8.03 / 4
    assert large.decode.t0 / small.decode.t0 == pytest.approx(ratio, rel=0.01)
    assert large.prefill_seconds(4096) > ratio * small.prefill_seconds(4096)


def cells(heading: str) -> dict[str, list[str]]:
    part = PAGE.split(f"## {heading}\n")[1].split("\n## ")[0]
    rows = [line.strip("|").split("|") for line in part.splitlines() if line.startswith("|")]
    return {row[0].strip(): [cell.strip() for cell in row[1:]] for row in rows}


def numbers(text: str) -> list[float]:
    return [float(each) for each in re.findall(r"\d[\d.]*(?:e-?\d+)?", text.replace(",", ""))]


@pytest.mark.parametrize("column", [0, 1])
def test_the_page_has_the_figures(column: int) -> None:
    reference = REFERENCES[column]
    model, profile = reference.model, profile_of(reference)
    given = {name: numbers(row[column]) for name, row in cells("Figures").items()}
    assert given["parameters"] == [model.parameters]
    shape = [model.layers, model.heads, model.kv_heads, model.head_dim]
    assert given["layers, heads, KV heads, size of a head"] == shape
    assert given["longest context"] == [model.context]
    follows = {name: numbers(row[column]) for name, row in cells("What follows").items()}
    named = {name.split("`")[1]: values[0] for name, values in follows.items() if "`" in name}
    assert named == {
        "ttft_a": pytest.approx(profile.prefill.a, rel=0.01),
        "ttft_b": pytest.approx(1e6 * profile.prefill.b, rel=0.01),
        "ttft_c": pytest.approx(1e3 * profile.prefill.c, rel=0.01),
        "tpot_intercept": pytest.approx(1e3 * profile.decode.t0, rel=0.01),
        "tpot_request_slope": pytest.approx(1e6 * profile.decode.tr, rel=0.01),
        "tpot_slope": pytest.approx(1e6 * profile.decode.tk, rel=0.01),
        "kv_capacity_tokens": profile.kv_capacity_tokens,
    }
    assert profile.handoff is not None
    assert follows["handoff"] == [5, pytest.approx(1e6 * profile.handoff.token_s, rel=0.02)]
    reached = {name: row[column] for name, row in cells("What engines reach of them").items()}
    meta = reference.store.meta["reached"]
    assert isinstance(meta, dict)
    assert numbers(reached["arithmetic of a prefill"]) == [pytest.approx(meta["compute"], abs=5e-4)]
    assert numbers(reached["seconds of any prefill"]) == [
        pytest.approx(meta["prefill_s"], rel=0.01)
    ]
    for name, key in (
        ("arithmetic of attention", "attention"),
        ("bandwidth of a decode step", "bandwidth"),
        ("memory for weights and cache", "memory"),
        ("requests at once", "requests"),
        ("seconds of any handoff", "handoff_s"),
    ):
        assert numbers(reached[name]) == [meta[key]]


def capacities(reference: Reference, name: str) -> list[float]:
    """Of the fleet with 1 to 7 engines for prefill."""
    profile, tpot_s = profile_of(reference), fleet_of(reference).slo.tpot_s
    prefill, decode = profile.prefill, profile.decode
    time = TimeModel(
        prefill=(prefill.a, prefill.b, prefill.c), decode=(decode.t0, decode.tr, decode.tk)
    )
    demand = [
        Demand(prompt=each.prompt, answer=each.output, cap=each.output)
        for each in read_trace(REAL / f"azure_llm_2023_{name}.csv").arrivals
    ]
    return [
        capacity_of(demand, time, prefill=count, decode=8 - count, tpot_s=tpot_s).rate
        for count in range(1, 8)
    ]


@pytest.mark.skipif(not REAL.is_dir(), reason="the traces themselves are not part of this")
@each_reference
def test_what_the_fleets_can_do(reference: Reference) -> None:
    part = PAGE.split("## What the fleets can do\n")[1].split("\n## ")[0]
    for name, said in (("code", "code"), ("conv", "conversation")):
        rates = capacities(reference, name)
        best = max(rates)
        split = rates.index(best) + 1
        row = f"{rates[3]:.1f} | {best:.1f}, {split}P{8 - split}D"
        assert f"| `{FLEETS[reference.file]}` | {said} | {row} |" in part


def test_the_page_s_worked_step() -> None:
    step = profile_of(REFERENCES[0]).decode
    text = " ".join(PAGE.split())
    assert f"{1e3 * 100 * step.tr:.1f} of the {1e3 * step.interval(100, 120_000):.1f} ms" in text
