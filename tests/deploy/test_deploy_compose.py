"""The compose file: that its parts fit each other, and the commands that it runs."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from typing import Any

import click
import pytest
import yaml
from monitoring_files import CONFIGS, PROMETHEUS, ROOT

from narwhal.cli import main
from narwhal.config import load_fleet
from narwhal.model.version import __version__

COMPOSE = yaml.safe_load((CONFIGS / "compose.yml").read_text(encoding="utf-8"))
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OURS = ("engines", "router")
FLEET = load_fleet(CONFIGS / "compose-fleet.json", environ={})
SCHEMA = importlib.util.find_spec("check_jsonschema")


def parsed(service: str) -> dict[str, Any]:
    """The parameters of a service's command, as the command line would read them."""
    name, *arguments = SERVICES[service]["command"]
    command = main.commands[name]
    assert isinstance(command, click.Command)
    return command.make_context(name, list(arguments)).params


def mounts(service: str) -> dict[str, str]:
    """Where in the container something of the host or a volume is."""
    return {parts[1]: parts[0] for parts in (v.split(":") for v in SERVICES[service]["volumes"])}


@pytest.mark.skipif(SCHEMA is None, reason="check-jsonschema is not installed")
def test_it_is_as_the_compose_specification_has_it() -> None:
    command = ["-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec"]
    checked = subprocess.run(  # noqa: S603 - a tool for this
        [sys.executable, *command, str(CONFIGS / "compose.yml")],
        check=False, capture_output=True, text=True,
    )  # fmt: skip
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_the_router_finds_its_engines() -> None:
    emulated = parsed("engines")
    ports = range(emulated["base_port"], emulated["base_port"] + emulated["engines"])
    urls = [engine.url for engine in FLEET.engines]
    assert urls == [f"http://engines:{port}" for port in ports]
    assert emulated["model"] == FLEET.model
    assert emulated["host"] == "0.0.0.0"
    assert SERVICES["router"]["depends_on"] == {"engines": {"condition": "service_healthy"}}


def test_the_router_has_its_files() -> None:
    params, where = parsed("router"), mounts("router")
    assert where[params["fleet"]] == "./compose-fleet.json"
    (volume,) = (path for path, source in where.items() if source == "state")
    assert params["journal"].startswith(volume + "/")
    assert FLEET.recovery.state_path.startswith(volume + "/")
    assert params["host"] == "0.0.0.0"


def test_it_has_the_time_to_drain() -> None:
    grace = float(SERVICES["router"]["stop_grace_period"].removesuffix("s"))
    assert grace > FLEET.serving.graceful_timeout_s + 1


def test_what_is_mounted_is_there_and_volumes_are_declared() -> None:
    for name, service in SERVICES.items():
        for source in mounts(name).values() if "volumes" in service else ():
            if source.startswith("."):
                assert (CONFIGS / source).exists(), source
            else:
                assert source in COMPOSE["volumes"]


def test_prometheus_and_grafana_find_each_other() -> None:
    scraped = yaml.safe_load((PROMETHEUS / "prometheus.yml").read_text())["scrape_configs"]
    (job,) = scraped
    assert job["job_name"] == "narwhal"
    assert job["static_configs"] == [{"targets": [f"router:{parsed('router')['port']}"]}]
    assert mounts("prometheus")["/etc/prometheus"] == "./prometheus"
    grafana = mounts("grafana")
    assert grafana["/etc/grafana/provisioning"] == "./grafana/provisioning"
    assert grafana["/etc/narwhal/dashboards/narwhal.json"] == "./grafana/narwhal.json"
    home = SERVICES["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert home in grafana


def test_nothing_is_shown_to_the_network_and_versions_are_fixed() -> None:
    for name, service in SERVICES.items():
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ())), name
        if name not in OURS:
            assert re.search(r":v?\d+\.\d+\.\d+$", service["image"]), name
    for name in OURS:
        assert SERVICES[name]["image"] == f"narwhal-trio:{__version__}"
        assert SERVICES[name]["read_only"]
        assert SERVICES[name]["cap_drop"] == ["ALL"]
    assert (CONFIGS / SERVICES["engines"]["build"]).resolve() == ROOT
