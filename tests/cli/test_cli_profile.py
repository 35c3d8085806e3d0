"""`narwhal-trio profile`: what it saves and when, what it tells, and what it says of mistakes."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import attrs
import pytest
import trio
from click.testing import CliRunner, Result
from trio.testing import MockClock

from narwhal.cli.main import main
from narwhal.cli.profile_run import FleetRun, Stopped
from narwhal.emulator import TimeModel
from narwhal.engine import engine_clients
from narwhal.profiler import TEXTS, Wanted
from narwhal.profiles import load_samples, load_store, samples_path, write_store
from narwhal.testing import MemoryFleet, fleet_config, open_fleet

QUICK = Wanted(
    prefill_lens=(64, 256, 1024, 4096),
    prefill_repeats=3,
    decode_input_lens=(64, 512),
    decode_concurrency=(1, 4),
    decode_tokens=8,
)
SPEED = TimeModel(handoff=(0.01, 1e-5))


def profile(
    store: Path,
    *,
    chosen: tuple[str, ...] = ("p0", "d0"),
    overwrite: bool = False,
    prepare: Callable[[MemoryFleet], None] = lambda _fleet: None,
    within: float = float("inf"),
    seed: int = 0,
) -> tuple[FleetRun, Stopped | None]:
    """What the command does once it has read its options, in virtual time."""

    async def act() -> tuple[FleetRun, Stopped | None]:
        async with open_fleet(fleet_config(), seed=seed, noise=0.02, time=SPEED) as fleet:
            prepare(fleet)
            clients = engine_clients(
                fleet.config, environ={}, connect=fleet.connect, data_connections=300
            )
            run = FleetRun(
                config=fleet.config,
                store=store,
                chosen=chosen,
                overwrite=overwrite,
                wanted=dict.fromkeys(chosen, QUICK),
                texts=TEXTS,
                rng=random.Random(seed),
            )
            stopped: Stopped | None = run.interrupted()
            with trio.move_on_after(within):
                stopped = await run.measure(clients)
            for client in clients.values():
                client.close()
            return run, stopped

    return trio.run(act, clock=MockClock(autojump_threshold=0))


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "profiles.json"


def saved(store: Path) -> list[str]:
    """The engines that are saved; the two files agree about them."""
    rows = [row.iid for row in load_store(store).rows]
    assert rows == [each.engine.iid for each in load_samples(samples_path(store)).engines]
    return rows


# Measuring


def test_every_engine_is_saved_with_its_samples(store: Path) -> None:
    run, stopped = profile(store)
    assert stopped is None
    assert saved(store) == ["d0", "p0"]
    assert [row.iid for row in run.report.rows] == ["p0", "d0"]
    assert load_store(store).row("p0") == run.report.rows[0]


def test_an_engine_that_stops_it_costs_only_itself_and_those_after_it(store: Path) -> None:
    _, stopped = profile(store, prepare=lambda fleet: fleet.fail_with("whole:rst", iid="d0"))
    assert stopped is not None
    assert stopped.lines[0].startswith("d0: a prefill of 64 tokens: ")
    assert stopped.lines[1].startswith("measured and saved: p0; ")
    assert saved(store) == ["p0"]
    assert not stopped.interrupted


def test_engines_that_do_not_answer_are_named_before_any_is_measured(store: Path) -> None:
    def prepare(fleet: MemoryFleet) -> None:
        fleet["p0"].take_down(1000.0)
        fleet.fail_with("version:hang*9", iid="d0")

    run, stopped = profile(store, chosen=("p0", "d0"), prepare=prepare, within=8.0)
    assert stopped is not None
    unreachable, silent = stopped.lines
    assert unreachable.startswith("p0: does not say its version: ")
    text = "d0: does not say its version: no answer within engine.health_timeout_s (5 s)"
    assert silent == text
    assert run.report.rows == []
    assert not store.exists()


def test_a_log_is_told_how_long_it_takes_what_goes_on_and_how_much_is_left(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    profile(store)
    first, *lines = capsys.readouterr().err.splitlines()
    assert first.startswith("measuring 2 engines, one after the other: by default some minutes")
    assert lines[0] == "measuring p0, 1 of 2"
    second = [line for line in lines if line.startswith("measuring d0, 2 of 2: 5")]
    assert re.fullmatch(r"measuring d0, 2 of 2: 50% done, about [\d.]+ s left", second[0])
    assert len(lines) <= 11
    assert all("% done, about " in line for line in lines[1:])
    left = [float(line.split()[-3]) for line in lines[1:]]
    assert left[-1] < left[0]


def test_nothing_is_announced_when_all_is_measured(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    profile(store)
    capsys.readouterr()
    profile(store)
    assert capsys.readouterr().err == ""


def test_an_interruption_keeps_what_was_finished_and_the_next_run_goes_on(store: Path) -> None:
    _, stopped = profile(store, within=9.0)
    assert stopped is not None
    assert stopped.interrupted
    assert saved(store) == ["p0"]
    before = load_store(store).row("p0")
    run, stopped = profile(store, seed=1)
    assert stopped is None
    assert run.report.kept == ["p0"]
    assert [row.iid for row in run.report.rows] == ["d0"]
    assert saved(store) == ["d0", "p0"]
    assert load_store(store).row("p0") == before


def test_engines_with_a_profile_are_measured_again_only_if_told_to(store: Path) -> None:
    profile(store)
    before = load_store(store)
    run, _ = profile(store, seed=1)
    assert run.report.kept == ["p0", "d0"]
    assert load_store(store) == before
    run, _ = profile(store, seed=1, overwrite=True, chosen=("d0",))
    after = load_store(store)
    assert after.row("p0") == before.row("p0")
    assert after.row("d0") != before.row("d0")


@pytest.mark.parametrize("digest", [None, "sha256:" + "0" * 64, "generation-1:sha256:" + "0" * 64])
def test_a_profile_of_something_else_is_not_replaced_unasked(
    store: Path, digest: str | None
) -> None:
    profile(store)
    rows = load_store(store)
    other = attrs.evolve(rows.rows[0], generation_digest=digest)
    write_store(store, rows.with_rows([other]))
    _, stopped = profile(store, chosen=("d0",))
    assert stopped is not None
    assert "the profile of d0 is not bound to the engine as it runs now" in stopped.lines[0]
    assert "--overwrite" in stopped.lines[0]


# The command


@pytest.fixture
def fleet(tmp_path: Path, store: Path) -> Path:
    path = tmp_path / "fleet.json"
    engines = [
        {"iid": iid, "url": f"http://127.0.0.1:{port}", "role": role}
        for iid, port, role in (("p0", 1, "prefill"), ("d0", 2, "decode"))
    ]
    document = {
        "schema": "narwhal.fleet",
        "schema_version": 1,
        "model": "emulated",
        "engines": engines,
        "slo": {"ttft_s": 2.0, "tpot_s": 0.05},
        "profiles": {"path": str(store)},
    }
    path.write_text(json.dumps(document))
    return path


def command(*args: str | Path) -> Result:
    return CliRunner().invoke(main, ["profile", *map(str, args)])


def refitted(fleet: Path, *args: str | Path) -> Any:
    result = command("--fleet", fleet, "--refit", "--format", "json", *args)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_refitting_gives_the_same_store_from_the_samples_alone(fleet: Path, store: Path) -> None:
    profile(store)
    before = store.read_bytes()
    store.unlink()
    document = refitted(fleet)
    assert store.read_bytes() == before
    assert [each["iid"] for each in document["engines"]] == ["p0", "d0"]
    assert document["engines"][0]["prefill"]["tokens"] == {"low": 64, "high": 4096}
    assert document["engines"][0]["seats"][0]["context_tokens"] == 1024
    assert document["chars_per_token"] == pytest.approx(3.5, abs=0.5)


def test_refitting_one_engine_leaves_the_others(fleet: Path, store: Path) -> None:
    profile(store)
    before = load_store(store)
    refitted(fleet, "--only", "d0")
    assert load_store(store) == before


def test_the_text_report_has_the_formulas_the_errors_and_the_seats(
    fleet: Path, store: Path
) -> None:
    profile(store)
    result = command("--fleet", fleet, "--refit")
    assert result.exit_code == 0
    for words in (
        "p0\n  prefill   ",
        "n^2 + ",
        "where left out",
        "requests of 4096 tokens within 0.05 s a token (bound: ",
        "engine.chars_per_token 3.",
        f"2 profiles written to {store}",
    ):
        assert words in result.stdout


def test_the_report_warns_of_fits_that_the_fleet_file_does_not_allow(
    fleet: Path, store: Path
) -> None:
    profile(store)
    document = json.loads(fleet.read_text())
    document["profiles"]["max_decode_cv_mape"] = 0.0
    fleet.write_text(json.dumps(document))
    warnings = refitted(fleet)["warnings"]
    assert "profiles.max_decode_cv_mape allows 0" in warnings[0]


def test_the_plot_has_three_panels_for_each_engine(
    fleet: Path, store: Path, tmp_path: Path
) -> None:
    profile(store)
    refitted(fleet, "--plot", tmp_path / "fits.svg")
    text = (tmp_path / "fits.svg").read_text()
    ET.fromstring(text)  # noqa: S314 - we wrote it ourselves
    for iid in ("p0", "d0"):
        for curve in ("prefill", "interval between tokens", "handoff"):
            assert f"{iid}: {curve}" in text


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--only", "x9"], "--only x9: the fleet has no such engine, but p0, d0"),
        (["--prefill-lens", "64,a"], "'64,a' is not a list of whole numbers from 1"),
        (["--prefill-lens", "0,64"], "'0,64' is not a list of whole numbers from 1"),
        (["--limits", "0"], "'0' is neither a whole number from 1 nor a JSON file"),
        (["--limits", "nowhere.json"], "'nowhere.json' is neither"),
        (["--text", "nowhere.txt"], "nowhere.txt: cannot be read"),
        (["--prefill-repeats", "2"], "2 is not in the range x>=3"),
        (["--refit"], "profiles.samples.json: "),
    ],
)
def test_a_mistake_is_named_with_what_to_do(fleet: Path, args: list[str], said: str) -> None:
    result = command("--fleet", fleet, *args)
    assert result.exit_code in (1, 2)
    assert said in result.stderr


def test_refitting_what_was_not_measured_is_refused(fleet: Path, store: Path) -> None:
    profile(store, chosen=("p0",))
    result = command("--fleet", fleet, "--refit")
    assert result.exit_code == 1
    assert "has nothing about engine d0: measure it without --refit" in result.stderr


def test_a_broken_store_or_samples_file_is_found_before_anything_is_measured(
    fleet: Path, store: Path
) -> None:
    store.write_text("{")
    result = command("--fleet", fleet)
    assert result.exit_code == 1
    assert "profiles.json: " in result.stderr
    store.unlink()
    samples_path(store).write_text('{"schema": "other"}')
    result = command("--fleet", fleet)
    assert result.exit_code == 1
    assert "profiles.samples.json: " in result.stderr


def test_limits_from_a_file_are_those_of_each_engine(tmp_path: Path) -> None:
    from narwhal.cli.profile_options import Limits

    path = tmp_path / "limits.json"
    path.write_text('{"p0": 64, "d0": 256}')
    assert Limits().convert(str(path), None, None) == {"p0": 64, "d0": 256}
    assert Limits().convert("8", None, None) == 8
    for wrong in ('{"p0": true}', '{"p0": 0}', "[]", '"8"', "-1", '{"p0": 1.5}'):
        path.write_text(wrong)
        result = CliRunner().invoke(main, ["profile", "--fleet", "f", "--limits", str(path)])
        assert result.exit_code == 2, wrong
