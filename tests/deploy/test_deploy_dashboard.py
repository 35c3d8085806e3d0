"""The Grafana dashboard: it asks for what there is, and shows all of it."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest
import yaml
from monitoring_files import (
    ALERTS,
    CONFIGS,
    DASHBOARD,
    PROMTOOL,
    known,
    panel_queries,
    panels,
    promtool,
)
from promql import complaints, names

from narwhal.telemetry.catalogue import CATALOGUE

if TYPE_CHECKING:
    from pathlib import Path

    from monitoring_files import Query

VARIABLES = {variable["name"] for variable in DASHBOARD["templating"]["list"]}


@pytest.mark.parametrize("query", panel_queries(), ids=lambda query: query.where)
def test_a_panel_asks_only_for_what_there_is(query: Query) -> None:
    assert complaints(query.expression, known()) == []
    assert set(re.findall(r"\$(\w+)", query.expression)) <= VARIABLES | {"__rate_interval"}


def test_legends_show_labels_that_the_query_has() -> None:
    for panel in panels():
        for target in panel["targets"]:
            asked = names(target["expr"])
            labels = {label for s in asked.selectors for label in known()[s.metric]}
            has = asked.grouped or labels | {"job", "instance"}
            shown = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            assert shown <= has, (panel["title"], target["expr"])


def test_every_metric_is_shown_somewhere() -> None:
    asked = {s.metric for q in panel_queries() for s in names(q.expression).selectors}
    asked |= {s.metric for alert in ALERTS for s in names(alert["expr"]).selectors}
    stems = {re.sub(r"_(bucket|sum|count)$", "", name) for name in asked}
    assert [m.full_name for m in CATALOGUE if m.full_name not in stems] == []


def test_variables_ask_for_labels_that_there_are() -> None:
    for variable in DASHBOARD["templating"]["list"]:
        if variable["type"] == "datasource":
            continue
        found = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["query"]["query"])
        assert found is not None
        assert complaints(found[1], known()) == []
        (selector,) = names(found[1]).selectors
        assert found[2] in known()[selector.metric].keys() | {"job", "instance"}


def test_panels_have_ids_of_their_own_and_do_not_overlap() -> None:
    every = DASHBOARD["panels"]
    assert len({panel["id"] for panel in every}) == len(every)
    taken: set[tuple[int, int]] = set()
    for panel in every:
        at = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert max(x for x, _ in cells) < 24
        assert not cells & taken, panel["title"]
        taken |= cells


def test_nothing_belongs_to_one_installation() -> None:
    text = json.dumps(DASHBOARD)
    assert set(re.findall(r'"uid": "([^"]*)"', text)) == {"${datasource}", "narwhal-trio"}
    assert '"id": null' not in text


def test_grafana_is_told_where_the_dashboard_and_prometheus_are() -> None:
    provisioning = CONFIGS / "grafana/provisioning"
    (provider,) = yaml.safe_load((provisioning / "dashboards/narwhal.yml").read_text())["providers"]
    assert provider["options"]["path"] == "/etc/narwhal/dashboards"
    (source,) = yaml.safe_load((provisioning / "datasources/prometheus.yml").read_text())[
        "datasources"
    ]
    assert (source["type"], source["url"]) == ("prometheus", "http://prometheus:9090")


@pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed")
def test_promtool_parses_every_panel(tmp_path: Path) -> None:
    rules = [
        {"record": f"panel:number:{number}", "expr": plain(query.expression)}
        for number, query in enumerate(panel_queries())
    ]
    document = {"groups": [{"name": "panels", "rules": rules}]}
    (tmp_path / "panels.yml").write_text(json.dumps(document), encoding="utf-8")
    checked = promtool("check", "rules", "panels.yml", cwd=tmp_path)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert f"{len(rules)} rules found" in checked.stdout


def plain(expression: str) -> str:
    """The expression as Grafana would send it with all chosen."""
    return re.sub(r"\$(job|instance|engine)", ".+", expression.replace("$__rate_interval", "1m"))
