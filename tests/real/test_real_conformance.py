"""Emulated engines answer as real ones do: both are held to what real ones were recorded to say.

The emulated ones are checked in every run, the real ones in `tox -e real`. To record anew, after an
update of vLLM: `NARWHAL_REAL_RECORD=1 tox -e real -- -k conformance`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from real_cases import CASES, Pair
from real_engines import MODEL

from processes import Command

pytestmark = pytest.mark.sockets

RECORDED = Path(__file__).with_name("real_answers.json")


@pytest.fixture(scope="module")
def emulated() -> Iterator[Pair]:
    """As fast as they can be, with the sizes of the real ones."""
    speed = ("--prefill", "0,1e-6,1e-4", "--decode", "1e-3,0,0")
    sizes = ("--max-model-len", "2048", "--kv-capacity", "8064")
    options = ("--engines", "2", "--base-port", "0", "--model", MODEL)
    with Command("emulate", *options, *speed, *sizes) as command:
        yield Pair(command.url(), command.url())


@pytest.fixture(params=["emulated", pytest.param("real", marks=pytest.mark.real)])
def pair(request: pytest.FixtureRequest) -> Pair:
    """Two engines."""
    if request.param == "emulated":
        emulated: Pair = request.getfixturevalue("emulated")
        return emulated
    split = request.getfixturevalue("split")
    return Pair(split["p0"].url, split["d0"].url)


def recorded() -> dict[str, object]:
    """What real engines were seen to answer, by case."""
    answers: dict[str, object] = json.loads(RECORDED.read_text(encoding="utf-8"))
    return answers


@pytest.mark.parametrize("name", CASES)
def test_conformance(name: str, pair: Pair, request: pytest.FixtureRequest) -> None:
    """The form of the answer is the recorded one."""
    seen = json.loads(json.dumps(CASES[name](pair)))
    if os.environ.get("NARWHAL_REAL_RECORD") == "1" and request.node.get_closest_marker("real"):
        answers = recorded() if RECORDED.exists() else {}
        RECORDED.write_text(json.dumps(answers | {name: seen}, indent=1) + "\n", encoding="utf-8")
    expected = recorded()[name]
    assert json.dumps(seen, indent=1) == json.dumps(expected, indent=1)


def test_every_case_is_recorded() -> None:
    """Nothing is recorded that is not asked, and nothing asked that is not recorded."""
    assert set(recorded()) == set(CASES)
