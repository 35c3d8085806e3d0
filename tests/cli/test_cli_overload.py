"""`narwhal-trio simulate overload`, as a person would use it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from click.testing import CliRunner

from narwhal.cli import main
from narwhal.cli.overload_report import panels
from narwhal.simulate.overload import Arm, Experiment, Figures


def run(*arguments: str) -> Any:
    return CliRunner().invoke(main, ["simulate", "overload", *arguments])


# A request every four seconds: five of them while it warms up.
IDLE = ("--loads", "0.02", "--requests", "8", "--prefill", "1", "--decode", "1")


def test_text_json_and_plot_tell_the_same(tmp_path: Path) -> None:
    plot = tmp_path / "overload.svg"
    text = run(*IDLE, "--plot", str(plot))
    assert text.exit_code == 0, text.output
    lines = text.output.splitlines()
    assert lines[0].startswith("capacity  ")
    names = ["exact", "10 % too low", "10 % too high", "10 % off, mixed", "admission open"]
    assert [line[:16].strip() for line in lines[-5:]] == names
    assert all(line.count("100 %") == 4 for line in lines[-5:])
    found = json.loads(run(*IDLE, "--format", "json").stdout)
    assert [each["arm"] for each in found["runs"]] == ["exact", "low", "high", "mixed", "open"]
    capacity = found["capacity"]["rate"]
    assert f"{capacity:.1f} requests/s" in lines[0]
    for each in found["runs"]:
        assert (each["offered"], each["admitted"], each["good"]) == (8, 8, 8)
        assert each["goodput"] == pytest.approx(0.02 * capacity)
        assert each["ttft_met"] == each["first_token_met"] == each["tpot_met"] == 1.0
    drawn = plot.read_text(encoding="utf-8")
    ET.fromstring(drawn)  # noqa: S314 - our own text
    assert all(name in drawn for name in (*names, "Goodput", "Tokens", "TTFT", "TPOT"))


def test_how_far_profiles_are_off_is_said() -> None:
    done = run(*IDLE, "--off", "0.25")
    assert "25 % too low" in done.output


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--loads", "0.7,x"), "'--loads': 'x' is not a number from 0.01 to 20; give multiples"),
        (("--loads", "1,,3"), "'--loads': '' is not a number"),
        (("--loads", "-1"), "'--loads': '-1' is not a number from 0.01 to 20"),
        (("--loads", "nan"), "'--loads': 'nan' is not a number"),
        (("--loads", "21"), "'--loads': '21' is not a number"),
        (("--loads", ",".join(map(str, range(1, 20))) * 3), "'--loads'"),
        (("--off", "nan"), "'--off': 'nan' is not a fraction from 0 to 0.9; give 0.1 for 10 %"),
        (("--off", "1"), "'--off': '1' is not a fraction"),
        (("--requests", "0"), "'--requests': 0 is not in the range"),
        (("--prefill", "0"), "'--prefill': 0 is not in the range"),
        (("--jobs", "none"), "'--jobs': 'none' is not a valid integer"),
        (("--plot", "/nowhere/x.svg"), "--plot: /nowhere/x.svg cannot be written (see /nowhere)"),
        (("--plot", "/"), "--plot: / cannot be written (it is a folder); give a file"),
    ],
)
def test_what_cannot_be_done_is_said_at_once(arguments: tuple[str, ...], complaint: str) -> None:
    done = run(*arguments)
    assert done.exit_code in (1, 2)
    assert complaint in done.output


def figures(arm: Arm, load: float, admitted: int) -> Figures:
    return Figures(
        arm=arm,
        load=load,
        seconds=10.0,
        offered=100,
        admitted=admitted,
        refused={},
        failed={},
        ttft_met=admitted,
        first_token_met=0,
        tpot_met=0,
        good=0,
        good_tokens=0,
    )


def test_what_has_no_share_is_not_drawn() -> None:
    experiment = Experiment(requests=10, loads=(3.0, 0.5), arms=(Arm.EXACT, Arm.OPEN))
    found = [figures(arm, load, 100 * (load < 1)) for arm in experiment.arms for load in (3.0, 0.5)]
    goodput, tokens, ttft, _ = panels(experiment, found)
    assert tokens.series[0].points == ((0.5, 0.0), (3.0, 0.0))
    assert ttft.series[0].points == ((0.5, 100.0),)
    most = goodput.series[-1].points
    rate = experiment.capacity.rate
    assert most == ((0.5, 0.5 * rate), (1.0, rate), (3.0, rate))
