"""A small fleet, its profiles and a trace as files, for the tests of replays."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import attrs
from click.testing import CliRunner

from narwhal.cli import main
from narwhal.config import unstructure_fleet
from narwhal.profiles import (
    DecodeCurve,
    PrefillCurve,
    Profile,
    ProfileRow,
    ProfileStore,
    Range,
    write_store,
)
from narwhal.testing import fleet_config

_FAR = Range(1, 10_000_000)


def profile(token: float) -> Profile:
    """`token` seconds a prompt token, and steps of 10 ms whatever is in them."""
    return Profile(
        prefill=PrefillCurve(a=0.0, b=token, c=0.0, tokens=_FAR, fit_mape=0.0, cv_mape=0.0),
        decode=DecodeCurve(
            t0=0.01, tr=0.0, tk=1e-12, requests=_FAR, kv_tokens=_FAR, fit_mape=0.0, cv_mape=0.0
        ),
    )


@attrs.frozen
class Files:
    """All in one folder."""

    folder: Path

    @property
    def fleet(self) -> str:
        """Two engines that prefill and one that decodes."""
        return str(self.folder / "fleet.json")

    def trace(self, name: str, count: int = 4, *, prompt: int = 100, every_s: float = 1.0) -> str:
        """As many requests, all alike, at regular times."""
        rows = [
            {"timestamp": 1000 * n * every_s, "input_length": prompt, "output_length": 5}
            for n in range(count)
        ]
        path = self.folder / f"{name}.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        return str(path)

    def store(self, name: str, *, token: float, engines: tuple[str, ...]) -> str:
        """A profile store."""
        path = self.folder / f"{name}.json"
        rows = tuple(ProfileRow(iid=iid, profile=profile(token)) for iid in engines)
        write_store(path, ProfileStore(rows=rows))
        return str(path)


def files_in(folder: Path) -> Files:
    """Write the fleet and its store: a prompt of 100 tokens takes 0.1 s."""
    files = Files(folder)
    store = files.store("profiles", token=0.001, engines=("p0", "p1", "d0"))
    config = fleet_config(
        prefill=2,
        decode=1,
        slo={"ttft_s": 1.0, "tpot_s": 0.05},
        serving={"admission": "predictive"},
        profiles={"path": store},
    )
    document = json.dumps(unstructure_fleet(config))
    Path(files.fleet).write_text(document, encoding="utf-8")
    return files


def run(command: str, *arguments: str) -> Any:
    """`narwhal-trio simulate <command>`."""
    return CliRunner().invoke(main, ["simulate", command, *arguments])
