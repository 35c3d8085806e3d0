"""What is in the wheel and in the source distribution, and that one makes the other."""

from __future__ import annotations

import email
import os
import subprocess
import tarfile
import zipfile
from pathlib import Path

import pytest
from monitoring_files import ROOT

from narwhal.model.version import __version__

hatchling = pytest.importorskip("hatchling.build", reason="hatchling is not installed")

SOURCES = ROOT / "src/narwhal"


def tracked() -> set[str]:
    """What the repository holds."""
    listed = subprocess.run(
        ["git", "ls-files"],  # noqa: S607 - wherever it is
        cwd=ROOT,
        check=False,
        capture_output=True,
        text=True,
    )
    if listed.returncode:
        pytest.skip("this is no clone")
    return set(listed.stdout.split())


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The source distribution of this tree, and a wheel built from what is in it."""
    folder = tmp_path_factory.mktemp("dist")
    before = Path.cwd()
    try:
        os.chdir(ROOT)
        source = folder / hatchling.build_sdist(str(folder))
        with tarfile.open(source) as archive:
            archive.extractall(folder, filter="data")
        os.chdir(folder / f"narwhal_trio-{__version__}")
        wheel = folder / hatchling.build_wheel(str(folder))
    finally:
        os.chdir(before)
    return source, wheel


def test_the_wheel_is_the_package_and_nothing_else(built: tuple[Path, Path]) -> None:
    names = set(zipfile.ZipFile(built[1]).namelist())
    info = f"narwhal_trio-{__version__}.dist-info"
    package = {name for name in names if not name.startswith(info)}
    there = {
        f"narwhal/{path.relative_to(SOURCES)}"
        for path in SOURCES.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert package == there
    assert "narwhal/py.typed" in package
    kept = {"METADATA", "WHEEL", "RECORD", "entry_points.txt", "licenses/LICENSE"}
    assert names - package == {f"{info}/{name}" for name in kept}


def test_the_wheel_says_what_it_is(built: tuple[Path, Path]) -> None:
    archive = zipfile.ZipFile(built[1])
    info = f"narwhal_trio-{__version__}.dist-info"
    said = email.message_from_bytes(archive.read(f"{info}/METADATA"))
    assert (said["Name"], said["Version"]) == ("narwhal-trio", __version__)
    assert said["Requires-Python"] == ">=3.11"
    assert said["License-Expression"] == "Apache-2.0"
    needed = {line for line in said.get_all("Requires-Dist", []) if ";" not in line}
    assert any(each.startswith("trio>=") for each in needed)
    assert not any("pytest" in each for each in needed)
    assert "A router for fleets of LLM engines" in said.get_payload()
    assert archive.read(f"{info}/entry_points.txt").decode().split() == [
        "[console_scripts]",
        "narwhal-trio",
        "=",
        "narwhal.cli:main",
    ]
    assert archive.read(f"{info}/WHEEL").decode().count("py3-none-any") == 1


def test_the_source_distribution_is_what_the_repository_holds(built: tuple[Path, Path]) -> None:
    with tarfile.open(built[0]) as archive:
        names = {member.name.partition("/")[2] for member in archive.getmembers()}
    extra = {"PKG-INFO"}
    missing = {name for name in tracked() - names if Path(name).parts[0] != ".ci"}
    assert missing <= {".pre-commit-config.yaml"}
    assert {name for name in names - tracked() - extra if "__pycache__" in name} == set()
    # New files are there before they are committed, so what is more is only what nobody ignores.
    assert not any(name.startswith(("build", "dist", ".venv", ".tox", "runs")) for name in names)
