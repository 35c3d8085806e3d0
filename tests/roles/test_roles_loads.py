"""Section 7.1: the load of each pool; and what another split is projected to make of it (7.5)."""

from __future__ import annotations

from math import inf
from typing import Any

import attrs
import pytest
from role_scenes import PROFILE, Scene, controller_of, measured

from narwhal.roles import Split
from narwhal.roles.loads import Demand, decode_load, load_above_floor, prefill_load, project

FLOOR = 0.022
"""The zero-contention interval of the profile: one request, no resident tokens."""


@pytest.mark.parametrize(
    ("interval", "floor", "target", "load"),
    [
        pytest.param(0.1, 0.02, 0.1, 1.0, id="7.1 at the target the load is 1"),
        pytest.param(0.06, 0.02, 0.1, 0.5, id="7.1 the floor is no load"),
        pytest.param(0.02, 0.02, 0.1, 0.0, id="7.1 idle"),
        pytest.param(0.01, 0.02, 0.1, 0.0, id="7.1 never below zero"),
        pytest.param(0.15, 0.1, 0.1, 1.5, id="7.1 a floor at the target: the raw ratio"),
        pytest.param(0.15, 0.3, 0.1, 1.5, id="7.1 a floor above the target: the raw ratio"),
        pytest.param(0.26, 0.02, 0.1, 3.0, id="7.1 beyond the target"),
    ],
)
def test_load_above_the_floor(interval: float, floor: float, target: float, load: float) -> None:
    assert load_above_floor(interval, floor, target) == pytest.approx(load)


@pytest.mark.parametrize(
    ("engines", "waiting_s", "load"),
    [
        pytest.param({}, 0.0, 0.0, id="7.1 nothing to prefill"),
        pytest.param({"p0": 4.0}, 0.0, 1.0, id="7.1 work is shared by the pool"),
        pytest.param({"p0": 1.0, "p1": 1.0}, 2.0, 1.0, id="7.1 waiting prefills count"),
        pytest.param({"d0": 4.0}, 0.0, 1.0, id="7.1 so do those on engines that decode now"),
    ],
)
def test_prefill_load(engines: dict[str, float], waiting_s: float, load: float) -> None:
    scene = Scene()
    for iid, seconds in engines.items():
        scene.set(iid, prefill_s=seconds)
    scene.waiting = {"waiting_s": waiting_s}
    assert prefill_load(scene.snapshot(), scene.controller.targets) == load


def test_an_empty_prefill_pool_is_overloaded_by_any_work_and_by_nothing_else() -> None:
    scene = Scene()
    scene.set("p0", "p1", live=False)
    assert prefill_load(scene.snapshot(), scene.controller.targets) == 0.0
    scene.waiting = {"waiting_s": 0.1}
    assert prefill_load(scene.snapshot(), scene.controller.targets) == inf


def decode_load_of(scene: Scene) -> float:
    controller = scene.controller
    return decode_load(scene.snapshot(), PROFILE, controller.corrections, controller.targets)


def test_decode_load_of_idle_engines_and_of_none() -> None:
    scene = Scene()
    assert decode_load_of(scene) == 0.0
    scene.set("d0", "d1", live=False, decodes=3, kv_tokens=100.0)
    assert decode_load_of(scene) == 0.0


def test_decode_load_is_that_of_the_mean_decode_above_the_corrected_floor() -> None:
    scene = Scene()
    scene.set("d0", decodes=30, kv_tokens=20_000.0)
    interval = 0.02 + 0.06 + 0.02
    assert decode_load_of(scene) == pytest.approx((interval - FLOOR) / (0.1 - FLOOR))
    # Live intervals of half what was profiled: floor and interval are corrected alike.
    scene.controller.corrections._factors["d0"] = 0.5
    expected = 0.5 * (interval - FLOOR) / (0.1 - 0.5 * FLOOR)
    assert decode_load_of(scene) == pytest.approx(expected)
    # An engine with a single decode hardly counts beside one with thirty.
    scene.set("d1", decodes=1)
    assert decode_load_of(scene) == pytest.approx(
        (30 * 0.5 * (interval - FLOOR) / 31) / (0.1 - (30 * 0.5 * FLOOR + FLOOR) / 31)
    )


def test_a_corrected_floor_at_the_target_makes_it_the_raw_ratio() -> None:
    scene = Scene(reactive={"decode_correction_max": 10.0})
    scene.set("d0", decodes=1)
    scene.controller.corrections._factors["d0"] = 5.0
    assert decode_load_of(scene) == pytest.approx(5.0 * FLOOR / 0.1)


QUIET = Demand(
    prefill=0.0,
    service_s=0.0,
    backlog_s=0.0,
    tokens=0.0,
    context=0.0,
    decodes=0,
    kv_tokens=0.0,
    correction=1.0,
)


@pytest.mark.parametrize(
    ("demand", "split", "prefill", "decode"),
    [
        pytest.param({"prefill": 1.6}, (2, 2), 1.0, 0.22, id="7.5 used over usable"),
        pytest.param({"prefill": 1.6}, (4, 2), 0.5, 0.22, id="7.5 twice the engines, half of it"),
        pytest.param({"service_s": 1.0, "backlog_s": 4.0}, (2, 2), 1.5, 0.22, id="7.5 a queue"),
        pytest.param({"prefill": 0.1}, (0, 2), inf, 0.22, id="7.5 nobody prefills"),
        pytest.param({}, (0, 2), 0.0, 0.22, id="7.5 nobody needs to"),
        pytest.param({"tokens": 1.0}, (2, 0), 0.0, inf, id="7.5 nobody decodes"),
        pytest.param({"decodes": 20, "kv_tokens": 0.0}, (2, 2), 0.0, 0.4, id="7.6 residents"),
        pytest.param({"tokens": 500.0}, (2, 1), 0.0, 1.2, id="7.5 Little's law, up to the target"),
        pytest.param({"correction": 2.0}, (2, 1), 0.0, 0.44, id="7.7 the correction"),
    ],
)
def test_projection(
    demand: dict[str, Any], split: tuple[int, int], prefill: float, decode: float
) -> None:
    targets = controller_of().targets
    found = project(Split(*split), attrs.evolve(QUIET, **demand), PROFILE, targets)
    assert found.prefill == pytest.approx(prefill)
    assert found.decode == pytest.approx(decode)
    assert found.worst == max(found.prefill, found.decode)


@pytest.mark.parametrize(
    ("profile", "least"),
    [
        pytest.param(measured(requests=10), 3.0, id="7.5 requests"),
        pytest.param(measured(kv_tokens=500), 6.0, id="7.5 tokens"),
        pytest.param(measured(memory=1000), 3.0, id="7.3 memory"),
    ],
)
def test_beyond_what_was_measured_a_ratio_is_at_least_that_far(profile: Any, least: float) -> None:
    demand = attrs.evolve(QUIET, decodes=30, kv_tokens=3000.0)
    found = project(Split(1, 1), demand, profile, controller_of().targets)
    assert found.decode == pytest.approx(least)


@pytest.mark.parametrize(("signal", "requests"), [("added", 30.0), ("larger", 20.0)])
def test_resident_signal(signal: str, requests: float) -> None:
    """A flow that amounts to ten decodes, and twenty that are there."""
    targets = controller_of(reactive={"resident_signal": signal}).targets
    # t0 / (1 - rate tr) at 250 tokens a second: 40 ms, ten of them at a time.
    demand = attrs.evolve(QUIET, tokens=250.0, decodes=20)
    found = project(Split(1, 1), demand, PROFILE, targets)
    assert found.requests == pytest.approx(requests)
