"""`narwhal-trio simulate replay`, as a person would use it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from replay_files import Files, files_in, run

from narwhal.cli.replay_fleet import with_settings
from narwhal.cli.replay_options import Setting


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return files_in(tmp_path)


def replayed(files: Files, *arguments: str) -> dict[str, Any]:
    done = run("replay", "--fleet", files.fleet, "--format", "json", *arguments)
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def names(document: dict[str, Any]) -> list[str]:
    return [arm["arm"] for arm in document["arms"]]


def test_text_and_json_tell_the_same(files: Files, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    trace = f"chat={files.trace('x')}"
    done = run("replay", "--trace", trace, "--fleet", files.fleet, "--out", str(out))
    assert done.exit_code == 0, done.output
    lines = done.output.splitlines()
    assert lines[:4] == [
        "trace     chat: 4 requests in 3 s (mooncake)",
        "replayed  4 requests in 3 s, 1.33/s; seeds 0",
        "fleet     3 engines, admission predictive",
        "targets   first token within 1 s, 0.05 s between tokens",
    ]
    assert lines[-1].split()[:5] == ["controller", "4", "100", "%", "0.11"]
    found = json.loads(out.read_text(encoding="utf-8"))
    (arm,) = found["arms"]
    assert (arm["offered"], arm["attained"], arm["share"]) == (4, 4, 1.0)
    assert arm["kinds"] == {"chat": {"offered": 4, "attained": 4, "share": 1.0}}
    assert arm["ttft_s"] == pytest.approx({"p50": 0.1, "p99": 0.1}, abs=0.02)
    assert arm["tpot_s"] == pytest.approx({"p50": 0.01, "p99": 0.01}, abs=0.002)
    assert (arm["refused"], arm["failed"], arm["moves"]) == ({}, {}, 0)
    (replay,) = found["replays"]
    assert [window["at"] for window in replay["windows"]] == [0.0, 1.0, 2.0, 3.0]
    assert {(each["prefill"], each["decode"]) for each in replay["samples"]} == {(2, 1)}


def test_every_arm_that_is_asked_for_is_run_once(files: Files) -> None:
    trace = files.trace("x", 2)
    found = replayed(files, "--trace", trace, "--compare", "--split", "1P2D", "--aggregated")
    assert names(found) == ["controller", "1P2D", "2P1D", "aggregated"]
    found = replayed(files, "--trace", trace, "--start", "1P2D", "--advisory")
    assert names(found) == ["controller from 1P2D", "advisory"]
    assert found["replays"][0]["samples"][0]["prefill"] == 1
    assert names(replayed(files, "--trace", trace, "--split", "1p2d")) == ["1P2D"]


def test_a_comparison_says_how_far_splits_are_away(files: Files) -> None:
    # A prompt takes 0.9 s: one engine that prefills has no time for one in 0.6 s, two have.
    trace = files.trace("x", 8, prompt=900, every_s=0.6)
    done = run("replay", "--trace", trace, "--fleet", files.fleet, "--compare")
    assert done.exit_code == 0, done.output
    best, ours = done.output.splitlines()[-2:]
    assert best.startswith("best split 2P1D 100 %, worst 1P2D ")
    assert ours.startswith("controller 100 %: 0.0 points above the best split, ")


def test_seeds_are_rows_of_their_own_in_json_and_one_in_text(files: Files) -> None:
    trace = files.trace("x", 3)
    found = replayed(files, "--trace", trace, "--seeds", "3,1,3", "--jobs", "2")
    assert found["seeds"] == [3, 1]
    assert [each["seed"] for each in found["replays"]] == [3, 1]
    (arm,) = found["arms"]
    assert (arm["offered"], arm["by_seed"]) == (6, {"3": 1.0, "1": 1.0})


def test_traces_take_turns_at_their_rates(files: Files) -> None:
    traces = ("--trace", files.trace("a", 5), "--trace", f"b={files.trace('c', 5)}")
    found = replayed(
        files, *traces, "--phases", "a,b", "--phase-s", "2", "--rates", "a=1,b=2", "--rate", "2"
    )
    (arm,) = found["arms"]
    assert {kind: share["offered"] for kind, share in arm["kinds"].items()} == {"a": 4, "b": 8}


def test_only_so_much_of_a_trace(files: Files) -> None:
    found = replayed(files, "--trace", files.trace("x", 9), "--limit", "3.5")
    assert found["arms"][0]["offered"] == 4


def test_settings_change_what_is_replayed(files: Files) -> None:
    trace = files.trace("x", 2, prompt=900)
    assert replayed(files, "--trace", trace)["arms"][0]["attained"] == 2
    tight = replayed(files, "--trace", trace, "--set", "slo.ttft_s=0.5")
    assert tight["targets"]["ttft_s"] == 0.5
    assert tight["arms"][0]["refused"] == {"prompt_too_long": 2}
    late = replayed(
        files, "--trace", trace, "--set", "slo.ttft_s=0.5", "--set", "serving.admission=open"
    )
    assert (late["arms"][0]["refused"], late["arms"][0]["attained"]) == ({}, 0)
    lenient = replayed(files, "--trace", trace, "--score-ttft", "0.5")
    assert (lenient["arms"][0]["refused"], lenient["arms"][0]["attained"]) == ({}, 0)


def test_a_preset_takes_the_place_of_defaults_that_the_file_has_copied(files: Files) -> None:
    copied = json.loads(Path(files.fleet).read_text())
    assert copied["controller"]["reactive"]["window_s"] == 120.0
    copied["controller"]["reactive"]["utilization"] = 0.7
    given = Setting("controller.reactive.step_s", 5.0)
    preset = Setting("controller.preset", "responsive")
    fleet = with_settings(files.fleet, copied, [preset, given], option="--set")
    reactive = fleet.controller.reactive
    assert (reactive.window_s, reactive.utilization, reactive.step_s) == (20.0, 0.7, 5.0)
    assert (
        with_settings(files.fleet, copied, [], option="--set").controller.reactive.window_s == 120
    )


def test_a_contract_is_of_engines_that_are_not_here(files: Files) -> None:
    contract = 'engine_contract={"version": "9.9", "max_model_len": 7}'
    found = replayed(files, "--trace", files.trace("x", 20), "--set", contract)
    assert (found["arms"][0]["refused"], found["arms"][0]["attained"]) == ({}, 20)


def test_the_router_can_be_told_of_other_engines_than_there_are(files: Files) -> None:
    trace = files.trace("x", 2, prompt=900)
    slow = files.store("slow", token=0.01, engines=("p0", "p1", "d0"))
    believed = replayed(files, "--trace", trace, "--believed", slow)
    assert believed["arms"][0]["refused"] == {"prompt_too_long": 2}
    are = replayed(files, "--trace", trace, "--profiles", slow, "--believed", "profiles.json")
    assert are["arms"][0]["refused"] == {}
    assert are["arms"][0]["ttft_s"]["p50"] == pytest.approx(9.0, abs=0.1)


@pytest.fixture(autouse=True)
def _in_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--trace", "="), "'--trace': '=' lacks a name or a file; give NAME=FILE"),
        (("--trace", "no.csv"), "--trace: no.csv: cannot be read: No such file or directory"),
        (("--trace", "a=x.jsonl", "--trace", "a=x.jsonl"), "--trace: two traces are called a"),
        (("--split", "4"), "'--split': '4' is no split; give prefill and decode engines"),
        (("--split", "0P3D"), "'--split': '0P3D' is no split"),
        (("--split", "2P2D"), "--split: 2P2D has 4 engines, and the fleet has 3; give numbers"),
        (("--start", "1P1D"), "--start: 1P1D has 2 engines, and the fleet has 3"),
        (("--rate", "0"), "'--rate': '0' is not a number above 0"),
        (("--rate", "inf"), "'--rate': 'inf' is not a number above 0"),
        (("--phase-s", "x"), "'--phase-s': 'x' is not a number above 0"),
        (("--rates", "x"), "'--rates': 'x' is not the rate of a trace"),
        (("--rates", "x=1,x=2"), "'--rates': 'x=2' is not the rate of a trace that has none yet"),
        (("--rates", "y=1"), '--rates names a trace "y", and there are: "x"'),
        (("--phases", "x,,x"), "'--phases': 'x,,x' is not a list of up to 1000 names"),
        (("--phases", "x,y"), '--phases names a trace "y", and there are: "x"'),
        (("--smooth", "-1"), "'--smooth': -1 is not in the range"),
        (("--limit", "-1"), "'--limit': '-1' is not a number above 0"),
        (("--score-ttft", "nan"), "'--score-ttft': 'nan' is not a number above 0"),
        (("--seeds", "1,-1"), "'--seeds': '1,-1' is not a list of up to 100 whole numbers"),
        (("--jobs", "0"), "'--jobs': 0 is not in the range"),
        (("--preset", "fast"), "'--preset': 'fast' is not one of"),
        (("--set", "slo.ttft_s"), "'--set': 'slo.ttft_s' is no setting; give a field"),
        (("--set", "slo.ttft_s=-1"), "--set: fleet.json: slo.ttft_s must be"),
        (("--set", "slo.ttft_s=-1"), "(with slo.ttft_s=-1)"),
        (("--set", "slo.tft_s=1"), "slo.tft_s is not a known key; "),
        (("--set", "engines.p0=1"), "--set: engines.p0: engines has no fields of its own"),
        (("--profiles", "no.json"), "--profiles: no.json: cannot be read"),
        (("--believed", "no.json"), "--believed: no.json: cannot be read"),
        (("--fleet", "no.json"), "no.json: cannot be read"),
        (("--html", "/nowhere/x.html"), "--html: /nowhere/x.html cannot be written"),
        (("--out", "/"), "--out: / cannot be written (it is a folder); give a file"),
    ],
)
def test_what_cannot_be_done_is_said_at_once(
    files: Files, arguments: tuple[str, ...], complaint: str
) -> None:
    trace = () if arguments[0] == "--trace" else ("--trace", files.trace("x"))
    done = run("replay", "--fleet", files.fleet, *trace, *arguments)
    assert done.exit_code in (1, 2)
    assert complaint in " ".join(done.output.split())


def test_a_store_without_all_engines_is_named(files: Files) -> None:
    store = files.store("few", token=0.001, engines=("p0",))
    done = run("replay", "--fleet", files.fleet, "--trace", files.trace("x"), "--profiles", store)
    assert done.exit_code == 1
    assert "--profiles: few.json: profiles" in done.output
    assert "d0" in done.output


def test_a_store_that_is_not_there_is_named_with_where_it_was_looked_for(
    files: Files, tmp_path: Path
) -> None:
    setting = ("--set", "profiles.path=of/ours.json")
    done = run("replay", "--fleet", files.fleet, "--trace", files.trace("x"), *setting)
    assert done.exit_code == 1
    assert f"profiles.path: there is no of/ours.json in {tmp_path}; run it where there is" in (
        done.output
    )


def test_a_fleet_of_one_engine_has_nothing_to_compare(files: Files, tmp_path: Path) -> None:
    document = json.loads(Path(files.fleet).read_text(encoding="utf-8"))
    document["engines"] = document["engines"][:1]
    document["profiles"]["path"] = files.store("one", token=0.001, engines=("p0",))
    alone = tmp_path / "alone.json"
    alone.write_text(json.dumps(document), encoding="utf-8")
    found = run("replay", "--fleet", str(alone), "--trace", files.trace("x"), "--split", "1P1D")
    assert "--split: 1P1D has 2 engines, and the fleet has 1" in found.output
