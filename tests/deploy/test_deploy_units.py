"""The Dockerfile, the systemd unit and the Kubernetes manifests, and that they fit the router."""

from __future__ import annotations

import configparser
import importlib.util
import json
import re
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import click
import pytest
import yaml
from monitoring_files import CONFIGS, ROOT

from narwhal.cli import main
from narwhal.config import parse_fleet
from narwhal.model.version import __version__

from processes import Command, write_fleet

if TYPE_CHECKING:
    from pathlib import Path

    from narwhal.config import FleetConfig

DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
UNIT = CONFIGS / "systemd/narwhal-trio.service"
KUBERNETES = sorted((CONFIGS / "kubernetes").glob("*.yaml"))
LAST_WORDS_S = 1.0
"""What the router takes after its grace."""


def serve_params(arguments: list[str]) -> dict[str, Any]:
    """What `narwhal-trio ARGUMENTS` makes of its arguments; they have to be those of `serve`."""
    assert arguments[0] == "serve"
    command = main.commands["serve"]
    assert isinstance(command, click.Command)
    return command.make_context("serve", arguments[1:]).params


# Dockerfile


def instructions() -> list[tuple[str, str]]:
    joined = re.sub(r"\\\n", " ", DOCKERFILE)
    lines = [line for line in joined.splitlines() if line and not line.startswith("#")]
    return [(line.split(maxsplit=1)[0], line.split(maxsplit=1)[1].strip()) for line in lines]


def only(name: str) -> str:
    """The instruction that holds in the last stage."""
    return [text for word, text in instructions() if word == name][-1]


def test_the_image_runs_the_router_without_a_shell_and_not_as_root() -> None:
    assert json.loads(only("ENTRYPOINT")) == ["narwhal-trio"]
    params = serve_params(json.loads(only("CMD")))
    assert (params["host"], params["port"]) == ("0.0.0.0", int(only("EXPOSE")))
    assert re.fullmatch(r"[1-9]\d+:[1-9]\d+", only("USER"))
    words = [word for word, _ in instructions()]
    assert sum(word == "FROM" for word in words) == 2


def test_what_is_copied_into_the_image_is_let_in() -> None:
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").split()
    assert ignored[0] == "*"
    copied = [text.split()[:-1] for word, text in instructions() if word == "COPY"]
    sources = {name for names in copied for name in names if not name.startswith(("-", "/"))}
    assert sources == {name[1:] for name in ignored if name.startswith("!")}
    assert all((ROOT / name).exists() for name in sources)


@pytest.mark.sockets
def test_the_health_check_tells_a_router_that_answers_from_one_that_does_not(
    tmp_path: Path,
) -> None:
    _, _, shown = only("HEALTHCHECK").partition("CMD ")
    python, *arguments = json.loads(shown)
    assert python == "python"
    fleet = write_fleet(tmp_path / "fleet.json", ["http://127.0.0.1:9", "http://127.0.0.1:10"])
    with Command("serve", "--fleet", str(fleet), "--port", "0") as router:
        url = router.url()
        here = [text.replace("http://127.0.0.1:8000", url) for text in arguments]
        assert here != arguments
        assert subprocess.run([sys.executable, *here], check=False).returncode == 0  # noqa: S603
    ended = subprocess.run([sys.executable, *here], check=False, capture_output=True)  # noqa: S603
    assert ended.returncode == 1


@pytest.mark.skipif(shutil.which("hadolint") is None, reason="hadolint is not installed")
def test_hadolint_finds_nothing() -> None:
    checked = subprocess.run(  # noqa: S603 - a tool for this
        [str(shutil.which("hadolint")), str(ROOT / "Dockerfile")],
        check=False, capture_output=True, text=True,
    )  # fmt: skip
    assert (checked.returncode, checked.stdout) == (0, "")


# systemd


def unit() -> configparser.ConfigParser:
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment]  # names as they are written
    parser.read_string(UNIT.read_text(encoding="utf-8"))
    return parser


def test_the_unit_starts_the_router_and_gives_it_the_time_to_drain() -> None:
    service = unit()["Service"]
    program, *arguments = service["ExecStart"].split()
    assert program.startswith("/")
    params = serve_params(arguments)
    assert params["fleet"] == "/etc/narwhal/fleet.json"
    assert params["journal"].startswith("/var/log/" + service["LogsDirectory"] + "/")
    assert service["Type"] == "notify"
    assert service["ExecReload"] == "/bin/kill -HUP $MAINPID"  # which a journal has it bear
    default = parse_fleet(fleet_of_manifest(), name="fleet", environ={})
    assert float(service["TimeoutStopSec"]) > default.serving.graceful_timeout_s + LAST_WORDS_S


def test_the_unit_s_remarks_name_options_that_there_are() -> None:
    named = re.findall(r"NARWHAL_TRIO_SERVE_(\w+)=", UNIT.read_text(encoding="utf-8"))
    options = {parameter.name for parameter in main.commands["serve"].params}
    assert named
    assert {name.lower() for name in named} <= options


def test_pages_tell_systemctl_of_this_unit() -> None:
    pages = [(path, path.read_text(encoding="utf-8")) for path in (ROOT / "docs").glob("*.md")]
    named = {
        (path.name, name)
        for path, text in pages
        for name in re.findall(r"(?:systemctl|journalctl) .*?\b(narwhal[\w-]*)", text)
    }
    assert {page for page, _ in named} >= {"deploying.md", "journal.md"}
    assert {name for _, name in named} == {UNIT.stem}


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd-analyze")
def test_systemd_takes_the_unit_and_finds_it_well_hardened(tmp_path: Path) -> None:
    # It looks whether the program is there.
    text = UNIT.read_text(encoding="utf-8").replace("/opt/narwhal/bin/narwhal-trio", sys.executable)
    copy = tmp_path / UNIT.name
    copy.write_text(text, encoding="utf-8")
    analyze = str(shutil.which("systemd-analyze"))
    checked = subprocess.run(  # noqa: S603 - systemd's own tool
        [analyze, "verify", "--man=no", str(copy)], check=False, capture_output=True, text=True
    )
    assert (checked.returncode, checked.stderr) == (0, "")
    judged = subprocess.run(  # noqa: S603 - systemd's own tool
        [analyze, "security", "--offline=true", "--threshold=20", str(copy)],
        check=False, capture_output=True, text=True,
    )  # fmt: skip
    assert judged.returncode == 0, judged.stdout


# Kubernetes


def manifests() -> dict[str, dict[str, Any]]:
    found = [yaml.safe_load(path.read_text(encoding="utf-8")) for path in KUBERNETES]
    return {each["kind"]: each for each in found}


def fleet_of_manifest() -> dict[str, Any]:
    document: dict[str, Any] = json.loads(manifests()["ConfigMap"]["data"]["fleet.json"])
    return document


def fleet() -> FleetConfig:
    return parse_fleet(fleet_of_manifest(), name="fleet.json", environ={})


def pod() -> dict[str, Any]:
    spec: dict[str, Any] = manifests()["Deployment"]["spec"]["template"]["spec"]
    return spec


def router() -> dict[str, Any]:
    (container,) = pod()["containers"]
    found: dict[str, Any] = container
    return found


VALIDATOR = importlib.util.find_spec("kubernetes_validate")


@pytest.mark.skipif(VALIDATOR is None, reason="kubernetes-validate is not installed")
@pytest.mark.parametrize("path", KUBERNETES, ids=lambda path: path.stem)
def test_a_manifest_is_as_kubernetes_has_it(path: Path) -> None:
    import kubernetes_validate

    document = yaml.safe_load(path.read_text(encoding="utf-8"))
    kubernetes_validate.validate(document, "1.31", strict=True)


def test_the_pod_s_router_has_its_files() -> None:
    params, container = serve_params(router()["args"]), router()
    where = {mount["mountPath"]: mount for mount in container["volumeMounts"]}
    assert params["fleet"] == "/etc/narwhal/fleet.json"
    assert where["/etc/narwhal"]["readOnly"]
    for path in (params["journal"], fleet().recovery.state_path):
        assert path.startswith("/var/lib/narwhal/")
    volumes = {volume["name"]: volume for volume in pod()["volumes"]}
    assert volumes["fleet"]["configMap"]["name"] == manifests()["ConfigMap"]["metadata"]["name"]
    assert {mount["name"] for mount in where.values()} == volumes.keys()
    assert container["image"] == f"narwhal-trio:{__version__}"


def test_the_pod_has_the_time_to_drain() -> None:
    stop = router()["lifecycle"]["preStop"]["exec"]["command"]
    (pause,) = re.findall(r"sleep\((\d+)\)", stop[-1])
    needed = float(pause) + fleet().serving.graceful_timeout_s + LAST_WORDS_S
    assert pod()["terminationGracePeriodSeconds"] > needed


def test_probes_ask_for_routes_that_there_are() -> None:
    container = router()
    asked = {
        kind: container[kind]["httpGet"]
        for kind in ("startupProbe", "livenessProbe", "readinessProbe")
    }
    assert {kind: probe["path"] for kind, probe in asked.items()} == {
        "startupProbe": "/health",
        "livenessProbe": "/health",
        "readinessProbe": "/ready",
    }
    page = (ROOT / "docs/http-api.md").read_text(encoding="utf-8")
    assert all(f"| `GET {probe['path']}` |" in page for probe in asked.values())
    (port,) = container["ports"]
    assert {probe["port"] for probe in asked.values()} == {port["name"]}
    assert port["containerPort"] == serve_params(container["args"])["port"]


def test_the_manifests_select_the_same_pods() -> None:
    every = manifests()
    labels = every["Deployment"]["spec"]["template"]["metadata"]["labels"]
    assert every["Deployment"]["spec"]["selector"]["matchLabels"] == labels
    assert every["Service"]["spec"]["selector"] == labels
    assert every["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"] == labels
    assert every["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"] == labels
    (port,) = every["Service"]["spec"]["ports"]
    assert port["targetPort"] == router()["ports"][0]["name"]


def test_the_router_may_reach_its_engines_and_is_not_root() -> None:
    out = manifests()["NetworkPolicy"]["spec"]["egress"]
    ports = {port["port"] for rule in out for port in rule["ports"]}
    assert {int(engine.url.rpartition(":")[2]) for engine in fleet().engines} | {53} == ports
    numbers = f"{pod()['securityContext']['runAsUser']}:{pod()['securityContext']['runAsGroup']}"
    assert only("USER") == numbers
    own = router()["securityContext"]
    assert own["readOnlyRootFilesystem"]
    assert not own["allowPrivilegeEscalation"]
    assert "cpu" not in router()["resources"]["limits"]
