"""Real engines are measured, and a router admits and places by what came of it."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from real_engines import Engines
from real_router import COMPLETIONS, Router, completion, write_fleet_file

from processes import run

pytestmark = [pytest.mark.real, pytest.mark.sockets]

# Few and small: the way there is what is tried, and no engine of this size says anything of others.
LIMITS = (
    "--prefill-lens=128,384,768,1152,1664",
    "--prefill-repeats=5",
    "--decode-concurrency=1,4",
    "--decode-input-lens=64,1800",
    "--decode-tokens=16",
    "--limits=16",
)
# Whoever shares the processors bends the times: fits may be off further than on engines of their
# own, and if they are off as far as no fit may be, the engine is measured again.
TRIES = 8
LOOSE = {"max_decode_fit_mape": 0.5, "max_decode_cv_mape": 0.5}


@pytest.fixture(scope="module")
def folder(stage: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a fleet file whose engines are measured."""
    engines = stage.use("split")
    folder = tmp_path_factory.mktemp("profile")
    roles = {engines["p0"]: "prefill", engines["d0"]: "decode"}
    settings = {"profiles": {"path": str(folder / "profiles.json"), **LOOSE}}
    fleet = write_fleet_file(folder / "fleet.json", roles, settings)
    for _ in range(TRIES):
        code, out, err = run("profile", "--fleet", str(fleet), "--format", "json", *LIMITS)
        if code == 0:
            break
        assert "measure" in err, err
    assert code == 0, err
    (folder / "report.json").write_text(out, encoding="utf-8")
    return folder


def test_profiled(folder: Path, split: Engines, note: Callable[..., None]) -> None:
    """Both engines have a profile, and nothing is left on them."""
    document = json.loads((folder / "profiles.json").read_text(encoding="utf-8"))
    profiles = {row["iid"]: row for row in document["profiles"]}
    assert set(profiles) == {"p0", "d0"}
    for iid, row in profiles.items():
        note(**{f"{iid}, prefill of 1000 tokens, s": round(prefill_s(row, 1000), 4)})
        note(**{f"{iid}, between two tokens, s": round(row["tpot_intercept"], 4)})
    assert not any(each.pinned or each.busy for each in split.all[:2])


def prefill_s(row: dict[str, Any], tokens: int) -> float:
    seconds: float = row["ttft_a"] * tokens**2 + row["ttft_b"] * tokens + row["ttft_c"]
    return seconds


def test_admitted_by_its_profile(folder: Path, split: Engines, note: Callable[..., None]) -> None:
    """With predictive admission what fits is served, and what cannot meet its target is refused."""
    roles = {split["p0"]: "prefill", split["d0"]: "decode"}
    profiles = {"path": str(folder / "profiles.json"), **LOOSE}
    common = {"serving": {"admission": "predictive"}, "profiles": profiles}
    body = completion(f"{uuid.uuid4()} lambda", max_tokens=8)
    with Router(folder / "generous", roles, **common) as router:
        answer = router.post(COMPLETIONS, body)
        assert answer.status_code == 200, answer.text
        assert answer.json()["choices"] == split["alone"].post(COMPLETIONS, body).json()["choices"]
        projected = router.state["admission"]["ttft_projection"]
        assert projected["requests"] == 1
        note(ttft_over_projected=round(projected["mean_ratio"], 2))
    with Router(folder / "strict", roles, slo={"ttft_s": 0.0001}, **common) as router:
        refused = router.post(COMPLETIONS, body)
        assert refused.status_code == 429
        assert refused.json()["error"]["code"] == "prompt_too_long"
