"""The files under configs/ that Prometheus and Grafana read, taken apart."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import attrs
import yaml
from promql import exposed, names

ROOT = Path(__file__).parents[2]
CONFIGS = ROOT / "configs"
PROMETHEUS = CONFIGS / "prometheus"
PROMTOOL = shutil.which("promtool")


@attrs.frozen
class Query:
    where: str
    expression: str


def rules(name: str) -> list[dict[str, Any]]:
    document = yaml.safe_load((PROMETHEUS / name).read_text(encoding="utf-8"))
    return [rule for group in document["groups"] for rule in group["rules"]]


ALERTS = rules("alerts.yml")
RECORDINGS = rules("recording.yml")
DASHBOARD = json.loads((CONFIGS / "grafana/narwhal.json").read_text(encoding="utf-8"))


def panels() -> list[dict[str, Any]]:
    return [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]


def panel_queries() -> list[Query]:
    return [
        Query(f"{panel['title']} {target['refId']}", target["expr"])
        for panel in panels()
        for target in panel["targets"]
    ]


def recorded() -> dict[str, dict[str, tuple[str, ...]]]:
    """What the recording rules add, with the labels that they group by."""
    scraped = exposed()
    out: dict[str, dict[str, tuple[str, ...]]] = {}
    for rule in RECORDINGS:
        values: dict[str, tuple[str, ...]] = {}
        for selector in names(rule["expr"]).selectors:
            values |= (scraped | out)[selector.metric]
        grouped = names(rule["expr"]).grouped
        out[rule["record"]] = {label: values.get(label, ()) for label in grouped - {"le"}}
    return out


def known() -> dict[str, dict[str, tuple[str, ...]]]:
    return exposed() | recorded()


def promtool(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(  # noqa: S603 - Prometheus' own tool
        [str(PROMTOOL), *arguments], cwd=cwd, check=False, capture_output=True, text=True
    )
